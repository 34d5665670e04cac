"""Quotas of users, and the queue of calls that exceed a rate."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator

from envfleet.service.database.store import Store
from envfleet.service.refusals import Busy
from envfleet.service.settings import Settings
from envfleet.service.users.auth import Identity

_BURST_S = 2.0


class Turns:
    """Lets so many calls run at a time, and so many a second of each token; the others wait, up to a deadline.

    No user gets more than half of the slots, so that one user's slow calls do not stop all others.

    Args:
        settings: The limits.
    """

    def __init__(self, settings: Settings) -> None:
        self._timeout_s, self._rate = settings.queue_timeout_s, settings.requests_per_s
        self._slots = asyncio.Semaphore(settings.max_running)
        self._most_of_one = max(1, settings.max_running // 2)
        self._of_users: dict[int, asyncio.Semaphore] = {}
        self._due: dict[int, float] = {}
        self.num_waiting = 0

    @contextlib.asynccontextmanager
    async def take(self, identity: Identity) -> AsyncIterator[float]:
        """Wait for a turn; yields how many seconds that took.

        Raises:
            Busy: It did not come in time.
        """
        begun = time.monotonic()
        own = self._of_users.setdefault(identity.user_id, asyncio.Semaphore(self._most_of_one))
        async with contextlib.AsyncExitStack() as stack:
            self.num_waiting += 1
            try:
                await self._pace(identity.token_id, begun)
                for slots in (own, self._slots):
                    await self._acquire(slots, begun + self._timeout_s)
                    stack.callback(slots.release)
            finally:
                self.num_waiting -= 1
            yield time.monotonic() - begun

    async def _acquire(self, slots: asyncio.Semaphore, deadline: float) -> None:
        if not slots.locked():
            await slots.acquire()  # at once
            return
        try:
            async with asyncio.timeout(max(deadline - time.monotonic(), 0.001)):
                await slots.acquire()
        except TimeoutError:
            raise Busy(f"no turn came within {self._timeout_s:g} s: try again", retry_after_s=1.0) from None

    async def _pace(self, token_id: int, now: float) -> None:
        """Wait until a token's calls come no faster than they may, after a burst."""
        due = max(self._due.get(token_id, 0.0), now - _BURST_S) + 1.0 / self._rate
        if due - now > self._timeout_s:
            raise Busy(f"more than {self._rate:g} calls a second: slow down", retry_after_s=due - now)
        self._due[token_id] = due
        if due > now:
            await asyncio.sleep(due - now)


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
