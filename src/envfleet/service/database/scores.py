"""Scores: the best ranked attempt of each user, what a page may show of attempts and episodes, and void attempts."""

from __future__ import annotations

import datetime as dt
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import sqlalchemy as sa

from envfleet.errors import InvalidArgument
from envfleet.registry import find_hosting
from envfleet.service.database.models import Attempt, Competition, Episode, Member, User
from envfleet.service.database.store import Store

_FRESH_S = 1.5
_MOST_REASON = 300
COUNTS = Attempt.score.is_not(None), Attempt.void_reason.is_(None)
"""Conditions on an attempt that counts for a score: all its episodes have ended, and it was not voided."""


class FreshBoards:
    """Scoreboards as of the last seconds: one thread reads one, and the others wait for that."""

    def __init__(self) -> None:
        self._boards: dict[str, tuple[float, list[dict[str, Any]]]] = {}
        self._reading = threading.Lock()

    def get(self, key: str, read: Callable[[], list[dict[str, Any]]]) -> list[dict[str, Any]]:
        """Return the scoreboard with this key, read again if it is old."""
        with self._reading:
            until, rows = self._boards.get(key, (0.0, []))
            if until < time.monotonic():
                rows = read()
                self._boards[key] = time.monotonic() + _FRESH_S, rows
            return rows

    def clear(self) -> None:
        """Forget all scoreboards."""
        with self._reading:
            self._boards.clear()


class Scores:
    """Reads scores, and voids attempts.

    Args:
        store: The database.

    Attributes:
        boards: Scoreboards that were read lately.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self.boards = FreshBoards()

    def fresh_board(self, env: str) -> list[dict[str, Any]]:
        """Return `board` as of the last seconds."""
        return self.boards.get(f"env {env}", lambda: self.board(env))

    def board(self, env: str) -> list[dict[str, Any]]:
        """Return all users with a complete attempt in an environment, the best first.

        Attempts that count for a competition are left out until that closes, as they would show its final scores.

        Args:
            env: Its id.

        Returns:
            `rank` (equal scores share one), `user`, `score` of the best attempt, `attempt` (its id), `ended_at`, and
            `attempts` (the number of complete ones), of each.
        """
        best = best_attempts(Attempt.score, Attempt.user_id, Attempt.env == env, ~_is_in_open_competition())
        query = sa.select(User.name.label("user"), best.c.score, best.c.id.label("attempt"), best.c.ended_at)
        query = query.add_columns(best.c.attempts).join(best, best.c.owner == User.id)
        return ranked(self._store.rows(query.order_by(best.c.score.desc(), User.name)))

    def metrics(self, env: str, user_id: int) -> dict[str, Any]:
        """Return the episode protocol's report of the episodes of a user's best attempt; empty without attempts."""
        best = best_attempts(Attempt.score, Attempt.user_id, Attempt.env == env, Attempt.user_id == user_id)
        query = sa.select(Episode.ended_at, Episode.length, Episode.details, Episode.counted)
        rows = self._store.rows(query.join(best, best.c.fleet_id == Episode.fleet_id).where(Episode.place.is_not(None)))
        if not rows:
            return {}
        total, newest = sum(row["counted"] for row in rows), max(row["ended_at"] for row in rows)
        return {
            "total_episodes": len(rows),
            "total_reward": total,
            "avg_reward": total / len(rows),
            "best_reward": max(row["counted"] for row in rows),
            "last_episode_date": dt.datetime.fromtimestamp(newest, dt.UTC).isoformat(timespec="seconds"),
            **find_hosting(env).metrics(rows),
        }

    def episodes(self, user_id: int, *, limit: int = 100, before_id: int | None = None) -> list[dict[str, Any]]:
        """Return a user's episodes, the last that ended first: all columns.

        Args:
            user_id: Id of the user.
            limit: Maximum number of rows.
            before_id: Only those with a smaller id, for the next page.
        """
        query = sa.select(Episode.__table__).where(Episode.user_id == user_id).order_by(Episode.id.desc()).limit(limit)
        if before_id is not None:
            query = query.where(Episode.id < before_id)
        return self._store.rows(query)

    def attempts(self, user_id: int, *, limit: int = 100) -> list[dict[str, Any]]:
        """Return a user's attempts, the newest first: all columns, and `ended`, the number of episodes that ended.

        Args:
            user_id: Id of the user.
            limit: Maximum number of rows.
        """
        query = sa.select(Attempt.__table__, _count_ended()).where(Attempt.user_id == user_id)
        return self._store.rows(query.order_by(Attempt.id.desc()).limit(limit))

    def all_attempts(self, env: str | None = None) -> list[dict[str, Any]]:
        """Return the attempts of all users, the oldest first: all columns, `user`, and `ended` as in `attempts`.

        Args:
            env: Only those in this environment.
        """
        query = sa.select(Attempt.__table__, User.name.label("user"), _count_ended())
        query = query.join(User, User.id == Attempt.user_id).order_by(Attempt.id)
        return self._store.rows(query if env is None else query.where(Attempt.env == env))

    def void(self, attempt_id: int, reason: str) -> None:
        """Exclude an attempt from the scores; it stays listed, with the reason.

        Args:
            attempt_id: Its id.
            reason: Shown to its user, at most 300 characters.

        Raises:
            InvalidArgument: The attempt does not exist, or the reason is empty or too long.
        """
        reason = reason.strip()
        if not 0 < len(reason) <= _MOST_REASON or "\x00" in reason:
            raise InvalidArgument(f"reason={reason[:50]!r}: pass 1 to {_MOST_REASON} characters; its user reads them")
        self._set_void(attempt_id, reason)

    def unvoid(self, attempt_id: int) -> None:
        """Count a void attempt again.

        Raises:
            InvalidArgument: The attempt does not exist.
        """
        self._set_void(attempt_id, None)

    def _set_void(self, attempt_id: int, reason: str | None) -> None:
        with self._store.engine.begin() as connection:
            changing = sa.update(Attempt).where(Attempt.id == attempt_id).values(void_reason=reason)
            if not connection.execute(changing).rowcount:
                raise InvalidArgument(
                    f"attempt {attempt_id} does not exist: `envfleet serve attempts list` shows all ids"
                )
        self.boards.clear()


def _is_in_open_competition() -> sa.ColumnElement[bool]:
    """Condition on an attempt that may count for a competition which has not closed."""
    running = sa.select(Member.user_id).join(Competition, Competition.id == Member.competition_id)
    running = running.where(Member.user_id == Attempt.user_id, Competition.env == Attempt.env)
    running = running.where(Competition.opens_at <= Attempt.started_at, Competition.closes_at > time.time())
    return running.correlate(Attempt).exists()


def _count_ended() -> sa.Label[Any]:
    """Return the number of an attempt's episodes that have ended, as `ended`."""
    count = sa.select(sa.func.count(Episode.id)).where(Episode.fleet_id == Attempt.fleet_id, Episode.place.is_not(None))
    return count.scalar_subquery().label("ended")


def best_attempts(score: Any, owner: Any, *where: sa.ColumnElement[bool], joined: Any = Attempt) -> sa.Subquery:
    """Return the query for the best attempt of each owner; of equal ones, the first.

    Args:
        score: Column to compare.
        owner: Column that attempts are grouped by.
        *where: Which attempts.
        joined: Attempts, with the tables that the conditions need.

    Returns:
        All columns of attempts, `owner`, and `attempts`, the number of the owner's.
    """
    place = sa.func.row_number().over(partition_by=owner, order_by=(score.desc(), Attempt.ended_at, Attempt.id))
    every = (
        sa.select(Attempt.__table__, owner.label("owner"), place.label("row"))
        .add_columns(sa.func.count().over(partition_by=owner).label("attempts"))
        .select_from(joined)
        .where(*COUNTS, *where)
        .subquery()
    )
    return sa.select(every).where(every.c.row == 1).subquery()


def ranked(rows: Sequence[dict[str, Any]], by: str = "score") -> list[dict[str, Any]]:
    """Return rows, sorted by a score in falling order, with their `rank`; equal scores share one.

    >>> [row["rank"] for row in ranked([{"score": 7.0}, {"score": 7.0}, {"score": 5.0}])]
    [1, 1, 3]
    """
    ranking: list[dict[str, Any]] = []
    for place, row in enumerate(rows, 1):
        is_tie = bool(ranking) and ranking[-1][by] == row[by]
        ranking.append({"rank": ranking[-1]["rank"] if is_tie else place, **row})
    return ranking


def fleets_that_count() -> sa.Select[Any]:
    """Return the query for the fleets of all users' best attempts; their episodes can be replayed forever."""
    key = sa.func.max(Attempt.score).over(partition_by=(Attempt.env, Attempt.user_id))
    every = sa.select(Attempt.fleet_id, Attempt.score, key.label("best")).where(*COUNTS).subquery()
    return sa.select(every.c.fleet_id).where(every.c.score == every.c.best)
