"""Leaderboards, read from the database once for all who look at the same moment."""

from __future__ import annotations

import threading
import time
from typing import Any

from envfleet.service.database.scores import COUNTED, Scores

_FRESH_S = 1.5


class Board:
    """Leaderboards by environment and number of episodes that count.

    Args:
        scores: To read from.
    """

    def __init__(self, scores: Scores) -> None:
        self._scores = scores
        self._known: dict[tuple[str, int], tuple[float, list[dict[str, Any]]]] = {}
        self._usual, self._other = threading.Lock(), threading.Lock()

    def rows(self, env: str, limit: int = COUNTED) -> list[dict[str, Any]]:
        """Return all users with ranked episodes, the best first, as of the last seconds.

        One thread reads and the others wait for it. Whoever asks for unusual limits waits for others who do so, and
        never holds up those who want the usual leaderboard.

        Args:
            env: Id of an environment that is offered.
            limit: How many episodes of each user count, the last ones.
        """
        with self._usual if limit == COUNTED else self._other:
            until, rows = self._known.get((env, limit), (0.0, []))
            if until < time.monotonic():
                rows = self._scores.board(env, limit)
                now = time.monotonic()
                fresh = {key: known for key, known in list(self._known.items()) if known[0] >= now}
                self._known = {**fresh, (env, limit): (now + _FRESH_S, rows)}
            return rows
