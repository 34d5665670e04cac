"""Queries of the pages about users, except their scores."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from envfleet.service.database.models import Episode, FleetRow, Usage, User
from envfleet.service.database.store import Store, today
from envfleet.service.refusals import NotFound


class Reading:
    """Reads the database.

    Args:
        store: The database.
    """

    def __init__(self, store: Store) -> None:
        self._store = store

    def user(self, user_id: int) -> dict[str, Any]:
        """Return a user, all columns.

        Raises:
            NotFound: The user does not exist.
        """
        return self._one(sa.select(User.__table__).where(User.id == user_id))

    def _one(self, query: sa.Select[Any]) -> dict[str, Any]:
        rows = self._store.rows(query)
        if not rows:
            raise NotFound("this page does not exist")
        return rows[0]

    def users(self) -> list[dict[str, Any]]:
        """Read users by name: `id`, `name`, `role`, `live_envs`, `steps_today`, `episodes`, `last_at`, and limits."""
        live = (
            sa.select(FleetRow.user_id, sa.func.sum(FleetRow.num_envs).label("live_envs"))
            .where(FleetRow.closed_at.is_(None))
            .group_by(FleetRow.user_id)
            .subquery()
        )
        used = sa.select(Usage.user_id, Usage.steps).where(Usage.day == today()).subquery()
        ended = (
            sa.select(
                Episode.user_id, sa.func.count().label("episodes"), sa.func.max(Episode.ended_at).label("last_at")
            )
            .group_by(Episode.user_id)
            .subquery()
        )
        query = (
            sa.select(User.__table__, ended.c.last_at)
            .add_columns(sa.func.coalesce(live.c.live_envs, 0).label("live_envs"))
            .add_columns(sa.func.coalesce(used.c.steps, 0).label("steps_today"))
            .add_columns(sa.func.coalesce(ended.c.episodes, 0).label("episodes"))
            .outerjoin(live, live.c.user_id == User.id)
            .outerjoin(used, used.c.user_id == User.id)
            .outerjoin(ended, ended.c.user_id == User.id)
            .order_by(User.name)
        )
        return self._store.rows(query)

    def episode(self, user_id: int | None, episode_id: int) -> dict[str, Any]:
        """Return an episode that is over, all columns.

        Args:
            user_id: Id of the required owner; `None` accepts any owner.
            episode_id: Its id.

        Raises:
            NotFound: The episode does not exist or belongs to another user.
        """
        query = sa.select(Episode.__table__).where(Episode.id == episode_id)
        if user_id is not None:
            query = query.where(Episode.user_id == user_id)
        return self._one(query)

    def envs(self) -> dict[str, dict[str, int]]:
        """By environment: `fleets` and `live_envs` that are open, and `episodes` that ended."""
        open_now = (
            sa.select(FleetRow.env, sa.func.count().label("fleets"), sa.func.sum(FleetRow.num_envs).label("live_envs"))
            .where(FleetRow.closed_at.is_(None))
            .group_by(FleetRow.env)
        )
        ended = sa.select(Episode.env, sa.func.count().label("episodes")).group_by(Episode.env)
        counts: dict[str, dict[str, int]] = {}
        for row in self._store.rows(open_now) + self._store.rows(ended):
            entry = counts.setdefault(row.pop("env"), {"fleets": 0, "live_envs": 0, "episodes": 0})
            entry.update({name: int(value) for name, value in row.items()})
        return counts
