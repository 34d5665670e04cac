"""Scores: means over the last ranked episodes of each user, and what a page may show of them."""

from __future__ import annotations

import datetime as dt
import threading
import time
from collections.abc import Iterable
from typing import Any

import sqlalchemy as sa
from sqlalchemy.orm import aliased

from envfleet.registry import find_hosting
from envfleet.service.database.models import Episode, User
from envfleet.service.database.store import Store
from envfleet.service.offers import Offer

COUNTED = 100
"""Episodes of a user's of which a score is the mean, unless another number is asked for."""

_FRESH_S = 1.5

# Of those that began at once the number of the sub-environment decides: by their end, failures would go uncounted.
_LAST_BEGUN = (Episode.started_at.desc(), Episode.env_index.desc(), Episode.id.desc())


class Scores:
    """Reads scores.

    Args:
        store: The database.
        offers: What abandoned episodes cost; without an offer, nothing.
    """

    def __init__(self, store: Store, offers: Iterable[Offer]) -> None:
        self._store = store
        self._penalties = {offer.env: offer.abandon_penalty or 0.0 for offer in offers}
        self._boards: dict[str, tuple[float, list[dict[str, Any]]]] = {}
        self._reading = threading.Lock()

    def fresh_board(self, env: str) -> list[dict[str, Any]]:
        """Return `board` as of the last seconds: one thread reads it, and the others wait for that."""
        with self._reading:
            until, rows = self._boards.get(env, (0.0, []))
            if until < time.monotonic():
                rows = self.board(env)
                self._boards[env] = time.monotonic() + _FRESH_S, rows
            return rows

    def board(self, env: str, limit: int = COUNTED) -> list[dict[str, Any]]:
        """Return all users with ranked episodes of an environment, the best first.

        Args:
            env: Its id.
            limit: How many episodes of each count, the last ones by the time they were begun.

        Returns:
            `rank`, `user`, `score`, `best`, `episodes`, `last_episode_at`, of each.
        """
        rows = self._store.rows(_board(env, limit, self._penalties.get(env, 0.0)))
        return [{"rank": rank, **row} for rank, row in enumerate(rows, 1)]

    def metrics(self, env: str, user_id: int, limit: int = COUNTED) -> dict[str, Any]:
        """Return the episode protocol's report of a user's last ranked episodes; empty without episodes."""
        rows = self._last(env, limit, user_id)
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
            limit: How many.
            before_id: Only those with a smaller id, for the next page.
        """
        query = sa.select(Episode.__table__).where(Episode.user_id == user_id).order_by(Episode.id.desc()).limit(limit)
        if before_id is not None:
            query = query.where(Episode.id < before_id)
        return self._store.rows(query)

    def history(self, env: str, user_id: int, limit: int = 1000) -> list[float]:
        """Return what a user's last ranked episodes count, in the order in which they were begun."""
        return [row["counted"] for row in reversed(self._last(env, limit, user_id))]

    def _last(self, env: str, limit: int, user_id: int) -> list[dict[str, Any]]:
        """Return a user's last ranked episodes, the newest first, with what they count in the column `counted`."""
        counted = _counted(self._penalties.get(env, 0.0))
        query = sa.select(Episode.ended_at, Episode.length, Episode.details, counted)
        query = query.where(*_is_ranked(env), Episode.user_id == user_id).order_by(*_LAST_BEGUN).limit(limit)
        return self._store.rows(query)


def _board(env: str, limit: int, penalty: float) -> sa.Select[Any]:
    """Return the query for the leaderboard.

    An index tells since when the last `limit` episodes of each user were begun, so that those before them are not
    looked at, however many there are; among those begun at that very moment, the window chooses.
    """
    older = aliased(Episode)
    begun = (
        sa.select(older.started_at)
        .where(older.env == env, older.is_ranked, older.user_id == User.id)
        .order_by(older.started_at.desc())
        .offset(limit - 1)
        .limit(1)
        .scalar_subquery()
    )
    users = sa.select(User.id, User.name, sa.func.coalesce(begun, 0.0).label("since")).cte("since")
    users = users.prefix_with("MATERIALIZED", dialect="postgresql")  # else it is asked for every episode
    is_late = sa.and_(Episode.user_id == users.c.id, Episode.started_at >= users.c.since, *_is_ranked(env))
    place = sa.func.row_number().over(partition_by=users.c.id, order_by=_LAST_BEGUN)
    late = sa.select(users.c.name, Episode.ended_at, _counted(penalty), place.label("place"))
    # From the outside, so that SQLite begins with the users and not with all episodes.
    last = late.select_from(users).outerjoin(Episode, is_late).subquery()
    return (
        sa.select(
            last.c.name.label("user"),
            sa.func.avg(last.c.counted).label("score"),
            sa.func.max(last.c.counted).label("best"),
            sa.func.count().label("episodes"),
            sa.func.max(last.c.ended_at).label("last_episode_at"),
        )
        .where(last.c.place <= limit, last.c.ended_at.is_not(None))
        .group_by(last.c.name)
        .order_by(sa.desc("score"), last.c.name)
    )


def _is_ranked(env: str) -> tuple[sa.ColumnExpressionArgument[bool], ...]:
    return Episode.env == env, Episode.is_ranked


def _counted(penalty: float) -> sa.Label[float]:
    """Return what an episode counts: what it earned, less the penalty if it was abandoned."""
    return sa.case((Episode.outcome == "abandoned", Episode.total - penalty), else_=Episode.total).label("counted")


def fleets_that_count() -> sa.Select[Any]:
    """Return the query for the fleets of all episodes that count for a score: the last ranked ones of each user."""
    place = sa.func.row_number().over(partition_by=(Episode.env, Episode.user_id), order_by=_LAST_BEGUN)
    last = sa.select(Episode.fleet_id, place.label("place")).where(Episode.is_ranked).subquery()
    return sa.select(last.c.fleet_id).where(last.c.place <= COUNTED)
