"""Quotas of users."""

from __future__ import annotations

from envfleet.service.database.store import Store
from envfleet.service.settings import Settings
from envfleet.service.users.auth import Identity


class Quotas:
    """Open sub-environments and used steps of users.

    Args:
        store: The database.
        settings: Default limits of users.
    """

    def __init__(self, store: Store, settings: Settings) -> None:
        self._store, self._settings = store, settings

    def limits(self, identity: Identity) -> tuple[int, int | None]:
        """Live sub-environments, and steps a day."""
        live = self._settings.max_live_envs if identity.max_live_envs is None else identity.max_live_envs
        steps = self._settings.max_steps_per_day if identity.max_steps_per_day is None else identity.max_steps_per_day
        return live, steps

    def used(self, identity: Identity) -> dict[str, dict[str, int | None]]:
        """By name, what is used and what the limit is."""
        live, steps = self.limits(identity)
        return {
            "live_envs": {"used": self._store.count_live_envs(identity.user_id), "limit": live},
            "steps_today": {"used": self._store.steps_today(identity.user_id), "limit": steps},
        }
