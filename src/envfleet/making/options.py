"""What `make` may be told beside the environment, and the check of all of it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from gymnasium.vector import AutoresetMode

from envfleet.core.arguments import check_choice, check_flag, check_seconds, check_whole
from envfleet.errors import InvalidArgument

BACKENDS = ("auto", "serial", "thread", "process", "ray", "kernel")

_RECYCLING = frozenset({"recycle_episodes", "recycle_bytes"})
_PERMITTING = frozenset({"max_restarts", "start_timeout_s", "observation_mode", "record_episodes"})
"""Options that only allow something, or spare it; a kernel, which does nothing of the kind, can be chosen with them."""

_OF_PYTHON = frozenset(
    {
        "envs_per_worker",
        "batch_size",
        "on_failure",
        "step_timeout_s",
        "start_method",
        "ray_options",
        "shared",
        "spares",
    }
    | _RECYCLING
)
"""Options that ask for what a kernel's fleet does not have."""

_OF_KERNELS = frozenset({"device", "debug"})
"""Options that only a kernel's fleet has."""

_IGNORED: dict[str, tuple[str, frozenset[str]]] = {
    "auto": ("which chooses among what this machine can run", frozenset({"ray_options"})),
    "serial": (
        "which steps every sub-environment in this thread",
        frozenset({"workers", "envs_per_worker", "start_method", "ray_options"}) | _OF_KERNELS | _RECYCLING,
    ),
    "thread": (
        "whose workers are threads of this process",
        frozenset({"start_method", "ray_options"}) | _OF_KERNELS | _RECYCLING,
    ),
    "process": ("whose workers are processes of this machine", frozenset({"ray_options"}) | _OF_KERNELS),
    "ray": ("whose workers are started by Ray", frozenset({"start_method"}) | _OF_KERNELS | _RECYCLING),
    "kernel": ("which has no Python to run in workers", _OF_PYTHON | _PERMITTING),
}
"""Of each backend: what it is, and the options that would mean nothing with it."""

_LEAST = {"workers": 1, "envs_per_worker": 1, "seed": 0, "recycle_episodes": 1, "recycle_bytes": 1}
"""The smallest value of whole numbers that may be left out."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """Options of `make`, which explains them, with its defaults."""

    backend: str = "auto"
    device: str = "cpu"
    debug: bool = False
    workers: int | None = None
    envs_per_worker: int | None = None
    autoreset_mode: AutoresetMode | str = AutoresetMode.NEXT_STEP
    copy: bool = True
    batch_size: int | None = None
    on_failure: Literal["raise", "restart"] = "raise"
    max_restarts: int = 10
    step_timeout_s: float | None = None
    start_timeout_s: float = 300.0
    start_method: Literal["forkserver", "spawn", "fork"] | None = None
    ray_options: Mapping[str, Any] | None = None
    seed: int | None = None
    shared: Mapping[str, Any] | None = None
    recycle_episodes: int | None = None
    recycle_bytes: int | None = None
    spares: bool = False
    record_episodes: bool = True
    observation_mode: Literal["same", "different"] = "same"

    @property
    def is_recycled(self) -> bool:
        """Whether worker processes are replaced now and then."""
        return self.recycle_episodes is not None or self.recycle_bytes is not None

    @property
    def suits_kernel(self) -> bool:
        """Whether nothing is asked for that a kernel's fleet does not have."""
        return not any(name in _OF_PYTHON for name in self._given())

    def checked(self) -> Options:
        """The same after a check of each option, and of whether it means something with the backend.

        Raises:
            InvalidArgument: An option cannot be used; says what was given, what was expected and what to do.
        """
        check_choice("backend", self.backend, BACKENDS)
        check_choice("device", self.device, ("cpu", "cuda"))
        check_choice("on_failure", self.on_failure, ("raise", "restart"))
        check_choice("observation_mode", self.observation_mode, ("same", "different"))
        check_choice("start_method", self.start_method, (None, "forkserver", "spawn", "fork"))
        for name in ("debug", "copy", "spares", "record_episodes"):
            check_flag(name, getattr(self, name))
        if self.shared is not None and not isinstance(self.shared, Mapping):
            raise InvalidArgument(
                f"shared is of type {type(self.shared).__name__}, expected a dict of arrays by name: write "
                'shared={"prices": array}'
            )
        check_seconds("start_timeout_s", self.start_timeout_s)
        if self.step_timeout_s is not None:
            check_seconds("step_timeout_s", self.step_timeout_s)
        counts: dict[str, Any] = {"max_restarts": check_whole("max_restarts", self.max_restarts, 0)}
        for name, least in _LEAST.items():
            if getattr(self, name) is not None:
                counts[name] = check_whole(name, getattr(self, name), least)
        self._refuse_ignored()
        if self.recycle_bytes is not None and not Path("/proc/self/statm").exists():
            raise InvalidArgument(
                f"recycle_bytes={self.recycle_bytes}: this system has no /proc to read from what a process holds; "
                "pass recycle_episodes"
            )
        return dataclasses.replace(self, autoreset_mode=read_autoreset_mode(self.autoreset_mode), **counts)

    def _refuse_ignored(self) -> None:
        what, ignored = _IGNORED[self.backend]
        for name, value in self._given().items():
            if name not in ignored or (name == "workers" and value == 1):  # one worker is what "serial" is
                continue
            users = [one for one, (_, unused) in _IGNORED.items() if name not in unused and one != "auto"]
            advice = f'pass backend="{users[0]}" or leave it out' if len(users) == 1 else "leave it out"
            raise InvalidArgument(f'{name}={value!r} means nothing with backend="{self.backend}", {what}: {advice}')

    def check_without_kernel(self) -> None:
        """Check that nothing is asked for that only a kernel's fleet has.

        Raises:
            InvalidArgument: Something is.
        """
        for name, value in self._given().items():
            if name in _OF_KERNELS:
                raise InvalidArgument(
                    f"{name}={value!r} means nothing where no kernel is chosen: leave it out, or pass a kernel and "
                    'backend="kernel"'
                )

    def _given(self) -> dict[str, Any]:
        """Options that are not at their defaults, by name."""
        given = {}
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if value is not None if field.default is None else value != field.default:
                given[field.name] = value
        return given


def read_autoreset_mode(mode: AutoresetMode | str) -> AutoresetMode:
    """Gymnasium's mode, or the one of this name or value.

    Raises:
        InvalidArgument: There is no such mode.
    """
    if isinstance(mode, AutoresetMode):
        return mode
    for known in AutoresetMode:
        if mode in (known.name, known.value, known.name.lower()):
            return known
    names = ", ".join(repr(known.name) for known in AutoresetMode)
    raise InvalidArgument(f"autoreset_mode={mode!r}: pass one of {names}")
