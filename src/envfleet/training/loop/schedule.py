"""How many gradient updates are due."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from envfleet.errors import InvalidArgument

_ROUNDING = 1e-9  # so that ten times 0.1 is one update


class UpdateSchedule:
    """Counts transitions and tells how many updates they are worth.

    Per transition, what is learned from a transition does not depend on `num_envs`; fractions add up. Per round, a
    round of many sub-environments is worth no more than a round of one, which is faster and learns less from each
    transition.

    Args:
        per_transition: Updates for one transition; `None` if they are counted by rounds.
        per_round: Updates for one step of the whole fleet; `None` if they are counted by transitions.
        warmup: Transitions before the first that counts.

    Raises:
        InvalidArgument: Both or none of the two are given, or one is below 0.

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
        given = [value for value in (per_transition, per_round) if value is not None]
        if len(given) != 1 or given[0] < 0:
            raise InvalidArgument(
                f"updates per_transition={per_transition}, per_round={per_round}: pass one of the two, 0 or above"
            )
        self._rate, self._is_by_round, self._warmup = given[0], per_round is not None, warmup
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

    @property
    def due(self) -> int:
        """Return how many updates are due."""
        return self._total() - self._made

    def take(self) -> int:
        """Return how many updates are due; they are taken to be made."""
        due = self.due
        self._made += due
        return due

    def _total(self) -> int:
        return math.floor(self._worth * self._rate + _ROUNDING)

    def state_dict(self) -> dict[str, Any]:
        """Return what `load_state_dict` takes."""
        return {"seen": self._seen, "worth": self._worth, "made": self._made}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where another was."""
        self._seen, self._worth, self._made = state["seen"], state["worth"], state["made"]
