"""Where the seconds of a run go."""

from __future__ import annotations

import time
from typing import Literal

from envfleet.training.events import Times

Lap = Literal["act", "env", "wait", "update", "evaluation"]


class Stopwatch:
    """Adds the time since the last lap to a named total."""

    def __init__(self) -> None:
        self._totals: dict[str, float] = {"act": 0.0, "env": 0.0, "wait": 0.0, "update": 0.0, "evaluation": 0.0}
        self._last_s = time.perf_counter()

    def start(self) -> None:
        """Forget the time since the last lap."""
        self._last_s = time.perf_counter()

    def lap(self, name: Lap) -> None:
        """Say what the time since the last lap was spent on."""
        now_s = time.perf_counter()
        self._totals[name] += now_s - self._last_s
        self._last_s = now_s

    @property
    def times(self) -> Times:
        """Return the totals, in seconds."""
        return Times(**self._totals)
