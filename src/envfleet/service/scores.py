"""Scores: means over the last ranked episodes of each user, and what a page may show of them."""

from __future__ import annotations

import datetime as dt
from typing import Any

import sqlalchemy as sa

from envfleet.service.models import Episode, User
from envfleet.service.store import Store

ABANDONED = "abandoned"
COUNTED = 100
"""Episodes of a user's of which a score is the mean, unless another number is asked for."""

# Of those that began at once the number of the sub-environment decides: by their end, failures would go uncounted.
_LAST_BEGUN = (Episode.started_at.desc(), Episode.env_index.desc(), Episode.id.desc())


class Scores:
    """Reads scores.

    Args:
        store: The database.
    """

    def __init__(self, store: Store) -> None:
        self._engine = store.engine

    def board(self, env: str, limit: int = COUNTED) -> list[dict[str, Any]]:
        """All users with ranked episodes of an environment, the best first.

        Args:
            env: Its id.
            limit: How many episodes of each count, the last ones by the time they were begun.

        Returns:
            `rank`, `user`, `score`, `best`, `episodes`, `last_episode_at`, of each.
        """
        last = self._last(env, limit)
        query = (
            sa.select(
                User.name.label("user"),
                sa.func.avg(last.c.counted).label("score"),
                sa.func.max(last.c.counted).label("best"),
                sa.func.count().label("episodes"),
                sa.func.max(last.c.ended_at).label("last_episode_at"),
            )
            .join(User, User.id == last.c.user_id)
            .group_by(User.name)
            .order_by(sa.desc("score"), User.name)
        )
        with self._engine.connect() as connection:
            rows = connection.execute(query).mappings().all()
        return [{"rank": rank, **row} for rank, row in enumerate(rows, 1)]

    def metrics(self, env: str, user_id: int, limit: int = COUNTED) -> dict[str, Any]:
        """What the JSON protocol tells of one user's last ranked turbofan episodes; empty if there are none."""
        last = self._last(env, limit, user_id)
        with self._engine.connect() as connection:
            rows = connection.execute(sa.select(last)).mappings().all()
        if not rows:
            return {}
        details, count = [row["details"] for row in rows], len(rows)
        newest = dt.datetime.fromtimestamp(max(row["ended_at"] for row in rows), dt.UTC)
        return {
            "total_episodes": count,
            "total_reward": sum(row["counted"] for row in rows),
            "avg_reward": sum(row["counted"] for row in rows) / count,
            "best_reward": max(row["counted"] for row in rows),
            "total_maintenance": sum(each.get("repairs", 0) for each in details),
            "avg_steps": sum(each.get("flights", row["length"]) for each, row in zip(details, rows, strict=True))
            / count,
            "failure_rate": sum(bool(each.get("is_failure")) for each in details) / count,
            "last_episode_date": newest.isoformat(timespec="seconds"),
        }

    def episodes(self, user_id: int, *, limit: int = 100, before_id: int | None = None) -> list[dict[str, Any]]:
        """A user's episodes, the last that ended first: all columns.

        Args:
            user_id: Whose.
            limit: How many.
            before_id: Only those with a smaller id, for the next page.
        """
        query = sa.select(Episode.__table__).where(Episode.user_id == user_id).order_by(Episode.id.desc()).limit(limit)
        if before_id is not None:
            query = query.where(Episode.id < before_id)
        with self._engine.connect() as connection:
            return [dict(row) for row in connection.execute(query).mappings()]

    def history(self, env: str, user_id: int, limit: int = 1000) -> list[float]:
        """What a user's last ranked episodes count, in the order in which they were begun."""
        last = self._last(env, limit, user_id)
        with self._engine.connect() as connection:
            return list(connection.execute(sa.select(last.c.counted).order_by(last.c.place.desc())).scalars())

    def _last(self, env: str, limit: int, user_id: int | None = None) -> sa.Subquery:
        """The last ranked episodes of each user, with what they count in the column `counted`."""
        worst = (
            sa.select(sa.func.min(Episode.total))
            .where(Episode.env == env, Episode.is_ranked, Episode.outcome != ABANDONED)
            .scalar_subquery()
        )
        lower = sa.case((Episode.total < worst, Episode.total), else_=sa.func.coalesce(worst, Episode.total))
        place = sa.func.row_number().over(partition_by=Episode.user_id, order_by=_LAST_BEGUN)
        query = sa.select(
            Episode.user_id,
            Episode.ended_at,
            Episode.length,
            Episode.details,
            sa.case((Episode.outcome == ABANDONED, lower), else_=Episode.total).label("counted"),
            place.label("place"),
        ).where(Episode.env == env, Episode.is_ranked)
        if user_id is not None:
            query = query.where(Episode.user_id == user_id)
        numbered = query.subquery()
        return sa.select(numbered).where(numbered.c.place <= limit).subquery()


def fleets_that_count() -> sa.Select[Any]:
    """The query for the fleets of all episodes that count for a score: the last ranked ones of each user."""
    place = sa.func.row_number().over(partition_by=(Episode.env, Episode.user_id), order_by=_LAST_BEGUN)
    last = sa.select(Episode.fleet_id, place.label("place")).where(Episode.is_ranked).subquery()
    return sa.select(last.c.fleet_id).where(last.c.place <= COUNTED)
