"""How long a run may take."""

from __future__ import annotations

import time


class Budget:
    """Minutes and transitions that a run may spend.

    Args:
        max_minutes: Of this sitting; `None` for as many as it takes.
        max_transitions: Of the whole run; likewise.
    """

    def __init__(self, max_minutes: float | None, max_transitions: int | None) -> None:
        self._max_s = None if max_minutes is None else 60 * max_minutes
        self._max_transitions = max_transitions
        self._began_s = time.monotonic()

    def begin(self) -> None:
        """Time counts from now on."""
        self._began_s = time.monotonic()

    @property
    def elapsed_s(self) -> float:
        """Seconds since `begin`."""
        return time.monotonic() - self._began_s

    def spent(self, transitions: int) -> str | None:
        """Return which of the two is spent, `"max_transitions"` or `"max_minutes"`; `None` if none is."""
        if self._max_transitions is not None and transitions >= self._max_transitions:
            return "max_transitions"
        return "max_minutes" if self._max_s is not None and self.elapsed_s >= self._max_s else None

    def share(self, transitions: int) -> float:
        """Return how much of the one that is spent sooner is spent, from 0 to 1."""
        shares = [0.0]
        if self._max_transitions is not None:
            shares.append(transitions / self._max_transitions)
        if self._max_s is not None:
            shares.append(self.elapsed_s / self._max_s)
        return min(max(shares), 1.0)
