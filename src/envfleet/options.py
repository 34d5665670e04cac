"""Options of a fleet in one frozen dataclass."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, TypeAlias, get_args

import gymnasium as gym
from gymnasium.vector import AutoresetMode

from envfleet.errors import InvalidArgument
from envfleet.fleet.checks import check_choice, check_flag, check_seconds, check_whole

BackendName: TypeAlias = Literal["auto", "serial", "thread", "process", "ray", "kernel", "native"]
"""Names of the built-in backends."""

DeviceName: TypeAlias = Literal["cpu", "cuda"]
FailurePolicy: TypeAlias = Literal["raise", "restart"]
ObservationMode: TypeAlias = Literal["same", "different"]

AutoresetName: TypeAlias = Literal[
    "NEXT_STEP", "SAME_STEP", "DISABLED", "next_step", "same_step", "disabled", "NextStep", "SameStep", "Disabled"
]
"""Names and values of Gymnasium's `AutoresetMode`."""

_LEAST = {
    "workers": 1,
    "envs_per_worker": 1,
    "seed": 0,
    "recycle_episodes": 1,
    "batch_size": 1,
    "max_restarts": 0,
    "stream": 0,
}
_FLAGS = frozenset({"copy", "record_episodes", "final_infos", "debug", "lenient"})
_SECONDS = frozenset({"start_timeout_s", "step_timeout_s"})
_CHOICES: dict[str, tuple[str, ...]] = {
    "device": get_args(DeviceName),
    "on_failure": get_args(FailurePolicy),
    "observation_mode": get_args(ObservationMode),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """Options of `envfleet.make`, which documents them; made by `read_options`."""

    backend: str = "auto"
    device: DeviceName = "cpu"
    stream: int | None = None
    workers: int | None = None
    envs_per_worker: int | None = None
    autoreset_mode: AutoresetMode = AutoresetMode.NEXT_STEP
    copy: bool = True
    batch_size: int | None = None
    on_failure: FailurePolicy = "raise"
    max_restarts: int = 10
    step_timeout_s: float | None = None
    start_timeout_s: float = 300.0
    ray_options: Mapping[str, Any] | None = None
    seed: int | None = None
    shared: Mapping[str, Any] | None = None
    recycle_episodes: int | None = None
    record_episodes: bool = False
    final_infos: bool = True
    observation_mode: ObservationMode | tuple[gym.Space[Any], gym.Space[Any]] = "same"
    transforms: Sequence[Any] = ()
    debug: bool = False
    lenient: bool = False  # as Gymnasium's classes: unchecked actions, unknown keys of observations, rewards of None

    def non_default(self) -> dict[str, Any]:
        """Return the options that differ from their defaults, by name."""
        values = {}
        for field in dataclasses.fields(self):
            value, default = getattr(self, field.name), field.default
            if value is not default and not (type(value) is type(default) and value == default):
                values[field.name] = value
        return values


def read_options(**values: Any) -> Options:
    """Return checked options.

    Raises:
        InvalidArgument: An option has an invalid value.
    """
    options, read = Options(**values), dict[str, Any]()
    for name, value in options.non_default().items():
        if name == "observation_mode" and options.lenient and _are_spaces(value):
            continue
        if name in _CHOICES:
            check_choice(name, value, _CHOICES[name])
        elif name in _FLAGS:
            check_flag(name, value)
        elif name in _SECONDS:
            check_seconds(name, value)
        elif name in _LEAST:
            read[name] = check_whole(name, value, _LEAST[name])
        elif name == "autoreset_mode":
            read[name] = read_autoreset_mode(value)
        elif name == "shared" and not isinstance(value, Mapping):
            raise InvalidArgument(
                f"shared is of type {type(value).__name__}, expected a dict of arrays by name: "
                'write shared={"prices": array}'
            )
    return dataclasses.replace(options, **read)


def _are_spaces(value: Any) -> bool:
    return isinstance(value, tuple) and len(value) == 2 and all(isinstance(space, gym.Space) for space in value)


def read_autoreset_mode(mode: AutoresetMode | str) -> AutoresetMode:
    """Return an autoreset mode from Gymnasium's enum, its name or its value.

    Raises:
        InvalidArgument: The mode does not exist.
    """
    for known in AutoresetMode:
        if mode in (known, known.name, known.value, known.name.lower()):
            return known
    raise InvalidArgument(f"autoreset_mode={mode!r}: pass one of {', '.join(repr(one.name) for one in AutoresetMode)}")


OPTIONS = ("num_envs", *(field.name for field in dataclasses.fields(Options)))
"""Names of all options of `make` except the environment, `num_envs` first."""

WHOLE_DICTS = frozenset({"kwargs", "env_kwargs", "env_options"})
"""Keywords of other libraries for the arguments of environments."""

_ELSEWHERE = {"num_threads": "workers", "vectorization_mode": "backend"}  # as EnvPool and Gymnasium call them


def advise(name: str, known: Iterable[str]) -> str:
    """Return advice about an unknown keyword, the end of an error message.

    Args:
        name: Unknown keyword.
        known: Accepted keywords, the likeliest first.
    """
    known = list(known)
    if name in _ELSEWHERE:
        return f"did you mean {_ELSEWHERE[name]}?"
    if name in WHOLE_DICTS:
        return "write each of its entries as a keyword of make() itself"
    if name == "wrappers":
        return "pass a callable that makes the environment and wraps it, as lambda: Wrapper(make_one())"
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.7) or [one for one in known if one in name]
    return f"did you mean {near[0]}?" if near else "check the spelling, or leave it out"
