"""Environment that fails on demand, to test how a vector environment reacts: `FaultyEnv`.

Examples:
    Sub-environment 1 of 3 kills its process in its fourth step, but only the first time:

    >>> import functools, tempfile
    >>> from envfleet.testing.faults import FaultyEnv, once_marker
    >>> marker = once_marker(tempfile.mkdtemp())
    >>> def build(index):
    ...     return FaultyEnv("sigkill" if index == 1 else None, "step", nth=4, once=marker)
    >>> env_fns = [functools.partial(build, index) for index in range(3)]
"""

from __future__ import annotations

import ctypes
import faulthandler
import itertools
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from typing import Any, Literal, cast

import numpy as np

from envfleet.testing.envs import CountingEnv

When = Literal["constructor", "reset", "step", "close", "render"]


class PlainError(Exception):
    """Ordinary exception."""


class TwoArgumentsError(Exception):
    """Exception that cannot be constructed from its message, so that pickling it by default fails."""

    def __init__(self, part: str, code: int) -> None:
        super().__init__(f"{part} failed with code {code}")
        self.part, self.code = part, code


class UnpicklableError(Exception):
    """Exception with a lock, which cannot be pickled."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.lock = threading.Lock()


class BadReprError(Exception):
    """Exception that raises in `str` and `repr`."""

    def __str__(self) -> str:
        raise RuntimeError("no text either")

    __repr__ = __str__


def _spin(duration_s: float) -> None:
    end = time.monotonic() + duration_s
    while time.monotonic() < end:
        pass


def _native_sleep(duration_s: float) -> None:
    """Sleep in C, which returns early after a signal."""
    ctypes.CDLL(None).sleep(int(duration_s))


def _native_loop(duration_s: float) -> None:
    """Loop in C with the interpreter lock held, so that Python code in this process cannot run.

    The duration is approximate, since reading the clock needs Python code.
    """
    sum(itertools.repeat(0, int(duration_s * 5e7)))


def _native_crash() -> None:
    # The signal ends the process as a fault in native code does; faulthandler would print a report.
    faulthandler.disable()
    os.kill(os.getpid(), signal.SIGSEGV)


_ERRORS: dict[str, Callable[[], BaseException]] = {
    "raise": lambda: PlainError("broken on purpose"),
    "raise_two_arguments": lambda: TwoArgumentsError("gripper", 7),
    "raise_unpicklable": lambda: UnpicklableError("holds a lock"),
    "raise_bad_repr": BadReprError,
    "raise_stop_iteration": StopIteration,
    "keyboard_interrupt": lambda: KeyboardInterrupt("from the environment"),
    "generator_exit": GeneratorExit,
}
_ACTS: dict[str, Callable[[float], None]] = {
    "sys_exit": lambda _: sys.exit(3),
    "os_exit": lambda _: os._exit(3),
    "sigkill": lambda _: os.kill(os.getpid(), signal.SIGKILL),
    "sigsegv": lambda _: _native_crash(),
    "hang": time.sleep,
    "slow": time.sleep,
    "spin": _spin,
    "native_loop": _native_loop,
    "native_sleep": _native_sleep,
}
_BAD_VALUES: dict[str, tuple[int, Any]] = {
    "wrong_shape": (0, np.zeros(7)),
    "shape_that_spreads": (0, np.zeros(1)),  # NumPy would broadcast the number to all five elements
    "wrong_dtype": (0, np.array(["not", "a", "number", "at", "all"])),
    "no_observation": (0, None),
    "wrong_key": (0, {"unheard_of": 1}),
    "too_few_values": (-1, None),
    "nan_reward": (1, float("nan")),
    "text_reward": (1, "much"),
    "unpicklable_info": (-1, {"lock": threading.Lock()}),
    "info_not_a_dict": (-1, ["not", "a", "dict"]),
}
"""By name, the index of a value among the results of `reset` or `step`, and its replacement."""

FAULTS: tuple[str, ...] = (*_ERRORS, *_ACTS, *_BAD_VALUES)
"""Faults of `FaultyEnv`. Those after `"native_sleep"` change the results of `reset` or `step`."""


def once_marker(folder: str | None = None) -> str:
    """Return the path of a file that does not exist, for `FaultyEnv(once=…)`.

    Args:
        folder: Folder of the file; by default a new temporary folder.
    """
    return f"{tempfile.mkdtemp(dir=folder, prefix='envfleet-once-')}/fired"


class FaultyEnv(CountingEnv):
    """`CountingEnv` that fails in a chosen call.

    Args:
        fault: One of `FAULTS`, or `None` for an environment without faults.
        when: Call that fails.
        nth: Number of the call of this instance that fails, from 1; 0 lets every call fail. Ignored by `"constructor"`.
        once: Path of a file that does not exist. The fault happens only if the file can be created, so the first
            instance fails, and its replacement does not.
        duration_s: Duration of faults that take time (`"hang"`, `"slow"`, `"spin"`, …).
        **counting: Arguments of `CountingEnv`.
    """

    def __init__(
        self,
        fault: str | None = "raise",
        when: When = "step",
        *,
        nth: int = 1,
        once: str | None = None,
        duration_s: float = 3600.0,
        **counting: Any,
    ) -> None:
        if fault is not None and fault not in FAULTS:
            raise ValueError(f"fault is {fault!r}, expected None or one of {', '.join(FAULTS)}: pass one of these")
        super().__init__(**counting)
        self.fault, self.when, self.nth, self.once, self.duration_s = fault, when, nth, once, duration_s
        self.calls: dict[str, int] = {}
        self._fail("constructor")

    def _is_due(self, verb: When) -> bool:
        if self.fault is None or verb != self.when:
            return False
        self.calls[verb] = self.calls.get(verb, 0) + 1
        if self.nth not in (0, self.calls[verb]):
            return False
        if self.once is None:
            return True
        try:
            os.close(os.open(self.once, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return False
        return True

    def _fail(self, verb: When) -> bool:
        """Fail if this call must; return whether its result must be corrupted instead."""
        if not self._is_due(verb):
            return False
        if self.fault in _ERRORS:
            error = _ERRORS[self.fault]()
            raise error
        if self.fault in _ACTS:
            _ACTS[self.fault](self.duration_s)
        return self.fault in _BAD_VALUES

    def _corrupt(self, values: tuple[Any, ...]) -> Any:
        if self.fault == "too_few_values":
            return values[:-1]
        place, value = _BAD_VALUES[cast("str", self.fault)]
        corrupted = list(values)
        if place < len(values) - 1:  # the result of a reset lacks a reward
            corrupted[place] = value
        return tuple(corrupted)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Reset, or fail."""
        is_corrupt = self._fail("reset")
        result: Any = super().reset(seed=seed, options=options)
        return self._corrupt(result) if is_corrupt else result  # type: ignore[no-any-return]

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Step, or fail."""
        is_corrupt = self._fail("step")
        result: Any = super().step(action)
        return self._corrupt(result) if is_corrupt else result  # type: ignore[no-any-return]

    def render(self) -> Any:
        """Render, or fail."""
        self._fail("render")
        return super().render()

    def close(self) -> None:
        """Close, or fail."""
        self._fail("close")
        super().close()  # type: ignore[no-untyped-call]  # Gymnasium's
