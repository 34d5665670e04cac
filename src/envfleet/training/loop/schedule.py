"""How many gradient updates are due."""

from __future__ import annotations

import math

_ROUNDING = 1e-9  # so that ten times 0.1 is one update


class UpdateSchedule:
    """Counts transitions and tells how many updates they are worth.

    Per transition, what is learned from a transition does not depend on `num_envs`; fractions add up. Per round, a
    round of many sub-environments is worth no more than a round of one, which is faster and learns less from each
    transition.

    Args:
        per_transition: Updates for one transition.
        per_round: Updates for one step of the whole fleet, instead.
        warmup: Transitions before the first that counts.

    Examples:
        >>> schedule = UpdateSchedule(per_transition=0.5, warmup=4)
        >>> due = []
        >>> for _ in range(4):
        ...     schedule.count(3)
        ...     due.append(schedule.take())
        >>> due
        [0, 1, 1, 2]
    """

    def __init__(self, *, per_transition: float | None = None, per_round: float | None = None, warmup: int = 0) -> None:
        self._rate = (per_transition or 0.0) if per_round is None else per_round
        self._is_by_round, self._warmup = per_round is not None, warmup
        self._seen = self._worth = self._made = 0

    def restart(self) -> None:
        """Begin the warm-up anew, because what was remembered is forgotten; updates that are due stay due."""
        self._worth, self._made = 0, self._made - self._total()
        self._seen = 0

    def count(self, transitions: int) -> None:
        """Count one round."""
        self._seen += transitions
        counted = min(transitions, max(0, self._seen - self._warmup))
        self._worth += min(counted, 1) if self._is_by_round else counted

    def take(self) -> int:
        """Return how many updates are due; they are taken to be made."""
        due = self._total() - self._made
        self._made += due
        return due

    def _total(self) -> int:
        return math.floor(self._worth * self._rate + _ROUNDING)
