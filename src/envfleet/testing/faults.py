"""`FaultyEnv`: an environment that fails on demand, for trying out what a vector environment does then.

Examples:
    Sub-environment 1 of 3 kills its own process in its fourth step, but only the first time it gets there:

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
    """An ordinary exception."""


class TwoArgumentsError(Exception):
    """An exception that cannot be built from its message alone, and so breaks when it is pickled carelessly."""

    def __init__(self, part: str, code: int) -> None:
        super().__init__(f"{part} failed with code {code}")
        self.part, self.code = part, code


class UnpicklableError(Exception):
    """An exception that holds a lock and cannot be pickled."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.lock = threading.Lock()


class BadReprError(Exception):
    """An exception whose text cannot be had."""

    def __str__(self) -> str:
        raise RuntimeError("no text either")

    __repr__ = __str__


def _spin(duration_s: float) -> None:
    end = time.monotonic() + duration_s
    while time.monotonic() < end:
        pass


def _native_sleep(duration_s: float) -> None:
    """Sleep in C, which returns as if it was over when a signal comes."""
    ctypes.CDLL(None).sleep(int(duration_s))


def _native_loop(duration_s: float) -> None:
    """Loop in C without letting go of the interpreter lock: no Python code of this process runs meanwhile.

    Lasts `duration_s` only roughly: looking at the clock would take Python code.
    """
    sum(itertools.repeat(0, int(duration_s * 5e7)))


def _native_crash() -> None:
    # The signal ends the process as a fault in native code does; faulthandler would print a report no test wants.
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
    "shape_that_spreads": (0, np.zeros(1)),  # numpy would copy the one number into all five places
    "wrong_dtype": (0, np.array(["not", "a", "number", "at", "all"])),
    "no_observation": (0, None),
    "wrong_key": (0, {"unheard_of": 1}),
    "too_few_values": (-1, None),
    "nan_reward": (1, float("nan")),
    "text_reward": (1, "much"),
    "unpicklable_info": (-1, {"lock": threading.Lock()}),
    "info_not_a_dict": (-1, ["not", "a", "dict"]),
}
"""By name the place of a value among those that `reset` or `step` returns, and what stands there instead."""

FAULTS: tuple[str, ...] = (*_ERRORS, *_ACTS, *_BAD_VALUES)
"""Every fault `FaultyEnv` knows. Those after `"native_sleep"` change what `reset` or `step` returns."""


def once_marker(folder: str | None = None) -> str:
    """Name a file that does not exist yet, for `FaultyEnv(once=…)`.

    Args:
        folder: Where; a new temporary folder by default.
    """
    return f"{tempfile.mkdtemp(dir=folder, prefix='envfleet-once-')}/fired"


class FaultyEnv(CountingEnv):
    """A `CountingEnv` that fails at a chosen moment, and otherwise is one to the bit.

    Args:
        fault: One of `FAULTS`, or `None` for none.
        when: The call that fails.
        nth: Fail in the n-th such call of this instance, counted from 1; 0 for every one. Of no use to `"constructor"`.
        once: Path of a file that does not exist. The fault happens only if it can create the file: the first instance
            to get there fails, and a rebuilt one does not.
        duration_s: How long the faults that take time (`"hang"`, `"slow"`, `"spin"`, …) take.
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
        self._act_up("constructor")

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

    def _act_up(self, verb: When) -> bool:
        """Fail if it is time to; return whether the result is to be spoilt instead."""
        if not self._is_due(verb):
            return False
        if self.fault in _ERRORS:
            error = _ERRORS[self.fault]()
            raise error
        if self.fault in _ACTS:
            _ACTS[self.fault](self.duration_s)
        return self.fault in _BAD_VALUES

    def _spoil(self, values: tuple[Any, ...]) -> Any:
        if self.fault == "too_few_values":
            return values[:-1]
        place, value = _BAD_VALUES[cast("str", self.fault)]
        spoilt = list(values)
        if place < len(values) - 1:  # a reset returns no reward
            spoilt[place] = value
        return tuple(spoilt)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Reset, or fail."""
        is_spoilt = self._act_up("reset")
        result: Any = super().reset(seed=seed, options=options)
        return self._spoil(result) if is_spoilt else result  # type: ignore[no-any-return]

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Step, or fail."""
        is_spoilt = self._act_up("step")
        result: Any = super().step(action)
        return self._spoil(result) if is_spoilt else result  # type: ignore[no-any-return]

    def render(self) -> Any:
        """Render, or fail."""
        self._act_up("render")
        return super().render()

    def close(self) -> None:
        """Close, or fail."""
        self._act_up("close")
        super().close()  # type: ignore[no-untyped-call]  # Gymnasium's
