"""Where the seconds of a run go, and how fast it is."""

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
        """Count `elapsed_s` from now on."""
        self._began_s = time.perf_counter()

    @property
    def elapsed_s(self) -> float:
        """Seconds since `begin`."""
        return time.perf_counter() - self._began_s

    def start(self) -> None:
        """Forget the time since the last lap."""
        self._last_s = time.perf_counter()

    def lap(self, name: Lap) -> None:
        """Say what the time since the last lap was spent on."""
        now_s = time.perf_counter()
        self._totals[name] += now_s - self._last_s
        self._last_s = now_s

    def speed(self, transitions: int) -> float:
        """Return transitions per second since the last call, evaluations left out; as it was then if there were none.

        Args:
            transitions: Made so far.
        """
        made, seconds = transitions - self._transitions, self.times.training - self._trained_s
        if made and seconds > 0:
            self._speed = made / seconds
        self._transitions, self._trained_s = transitions, self.times.training
        return self._speed

    @property
    def times(self) -> Times:
        """Return the totals, in seconds."""
        return Times(**self._totals)
