"""Leaderboards, read from the database once for all who look at the same moment."""

from __future__ import annotations

import time
from typing import Any

from envfleet.service.scores import Scores

_FRESH_S = 1.5


class Board:
    """Leaderboards by environment.

    Args:
        scores: To read from.
    """

    def __init__(self, scores: Scores) -> None:
        self._scores = scores
        self._known: dict[str, tuple[float, list[dict[str, Any]]]] = {}

    def rows(self, env: str) -> list[dict[str, Any]]:
        """All users with ranked episodes, the best first, as of the last seconds.

        Args:
            env: Id of an environment that is offered.
        """
        until, rows = self._known.get(env, (0.0, []))
        if until < time.monotonic():
            rows = self._scores.board(env)
            self._known[env] = time.monotonic() + _FRESH_S, rows
        return rows
