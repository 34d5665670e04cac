"""Time spent by a run, and its speed."""

from __future__ import annotations

import time
from typing import Literal

from envfleet.training.events import Times

Lap = Literal["act", "env", "wait", "update", "evaluation"]


class Stopwatch:
    """Adds the time since the last lap to a named total."""

    def __init__(self) -> None:
        self._totals: dict[Lap, float] = {"act": 0.0, "env": 0.0, "wait": 0.0, "update": 0.0, "evaluation": 0.0}
        self._began_s = self._last_s = time.perf_counter()
        self._transitions, self._trained_s, self._speed = 0, 0.0, 0.0

    def begin(self) -> None:
        """Start counting `elapsed_s`."""
        self._began_s = time.perf_counter()

    @property
    def elapsed_s(self) -> float:
        """Seconds since `begin`."""
        return time.perf_counter() - self._began_s

    def start(self) -> None:
        """Discard the time since the last lap."""
        self._last_s = time.perf_counter()

    def lap(self, name: Lap) -> None:
        """Add the time since the last lap to an activity."""
        now_s = time.perf_counter()
        self._totals[name] += now_s - self._last_s
        self._last_s = now_s

    def speed(self, transitions: int) -> float:
        """Return transitions per second since the last call, without evaluations; without transitions, the last value.

        Args:
            transitions: Transitions of the run so far.
        """
        num_transitions, seconds = transitions - self._transitions, self.times.training - self._trained_s
        if num_transitions and seconds > 0:
            self._speed = num_transitions / seconds
        self._transitions, self._trained_s = transitions, self.times.training
        return self._speed

    @property
    def times(self) -> Times:
        """Return the totals, in seconds."""
        return Times(**self._totals)
