"""What pages show of users, besides their scores."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from envfleet.service.database.models import Episode, FleetRow, Usage, User
from envfleet.service.database.scores import Scores
from envfleet.service.database.store import Store, today
from envfleet.service.refusals import NotFound


class Reading:
    """Reads the database.

    Args:
        store: The database.
        scores: To read episodes.
    """

    def __init__(self, store: Store, scores: Scores) -> None:
        self._store, self._engine, self._scores = store, store.engine, scores

    def user(self, user_id: int) -> dict[str, Any]:
        """Return a user, all columns.

        Raises:
            NotFound: There is none.
        """
        with self._engine.connect() as connection:
            row = connection.execute(sa.select(User.__table__).where(User.id == user_id)).mappings().first()
        if row is None:
            raise NotFound("there is no such page")
        return dict(row)

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
                Episode.user_id,
                sa.func.count().label("episodes"),
                sa.func.max(Episode.ended_at).label("last_at"),
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
        with self._engine.connect() as connection:
            return [dict(row) for row in connection.execute(query).mappings()]

    def episode(self, user_id: int | None, episode_id: int) -> dict[str, Any]:
        """Return an episode that is over, all columns.

        Args:
            user_id: Whose it must be; `None` for anybody's.
            episode_id: Its id.

        Raises:
            NotFound: There is none, or it is somebody else's.
        """
        query = sa.select(Episode.__table__).where(Episode.id == episode_id)
        if user_id is not None:
            query = query.where(Episode.user_id == user_id)
        with self._engine.connect() as connection:
            row = connection.execute(query).mappings().first()
        if row is None:
            raise NotFound("there is no such page")
        return dict(row)

    def envs(self) -> dict[str, dict[str, int]]:
        """By environment: `fleets` and `live_envs` that are open, and `episodes` that ended."""
        open_now = (
            sa.select(FleetRow.env, sa.func.count().label("fleets"), sa.func.sum(FleetRow.num_envs).label("live_envs"))
            .where(FleetRow.closed_at.is_(None))
            .group_by(FleetRow.env)
        )
        ended = sa.select(Episode.env, sa.func.count().label("episodes")).group_by(Episode.env)
        found: dict[str, dict[str, int]] = {}
        with self._engine.connect() as connection:
            for query in (open_now, ended):
                for row in connection.execute(query).mappings():
                    entry = found.setdefault(row["env"], {"fleets": 0, "live_envs": 0, "episodes": 0})
                    entry.update({name: int(value) for name, value in row.items() if name != "env"})
        return found

    def ranked_envs(self, user_id: int) -> list[str]:
        """Environments of which a user has ranked episodes."""
        query = sa.select(Episode.env).where(Episode.user_id == user_id, Episode.is_ranked).distinct()
        with self._engine.connect() as connection:
            return sorted(connection.execute(query).scalars())

    def account(self, user_id: int, before_id: int | None, page: int) -> dict[str, Any]:
        """Read a user's `episodes` (`page` + 1 if there are others), open `fleets`, and `histories` of scores."""
        return {
            "episodes": self._scores.episodes(user_id, limit=page + 1, before_id=before_id),
            "fleets": self._store.open_fleets(user_id),
            "histories": {env: self._scores.history(env, user_id) for env in self.ranked_envs(user_id)},
        }
