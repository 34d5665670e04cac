"""How much a user may do, and calls that wait for their turn rather than being refused."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator

from envfleet.service.auth import Identity
from envfleet.service.refusals import Busy, QuotaSpent
from envfleet.service.settings import Settings
from envfleet.service.store import Store, today

_BURST_S = 2.0


class Turns:
    """Lets so many calls run at a time, and so many a second of each token; the others wait, up to a deadline.

    Args:
        settings: The limits.
    """

    def __init__(self, settings: Settings) -> None:
        self._timeout_s, self._rate = settings.queue_timeout_s, settings.requests_per_s
        self._slots = asyncio.Semaphore(settings.max_running)
        self._due: dict[int, float] = {}
        self.num_waiting = 0

    @contextlib.asynccontextmanager
    async def take(self, identity: Identity) -> AsyncIterator[float]:
        """Wait for a turn; yields how many seconds that took.

        Raises:
            Busy: It did not come in time.
        """
        begun = time.monotonic()
        self.num_waiting += 1
        try:
            await self._pace(identity.token_id, begun)
            left = begun + self._timeout_s - time.monotonic()
            try:
                async with asyncio.timeout(max(left, 0.001)):
                    await self._slots.acquire()
            except TimeoutError:
                raise Busy(f"no turn came within {self._timeout_s:g} s: try again", retry_after_s=1.0) from None
        finally:
            self.num_waiting -= 1
        try:
            yield time.monotonic() - begun
        finally:
            self._slots.release()

    async def _pace(self, token_id: int, now: float) -> None:
        """Wait until a token's calls come no faster than they may, after a burst."""
        due = max(self._due.get(token_id, 0.0), now - _BURST_S) + 1.0 / self._rate
        if due - now > self._timeout_s:
            raise Busy(f"more than {self._rate:g} calls a second: slow down", retry_after_s=due - now)
        self._due[token_id] = due
        if due > now:
            await asyncio.sleep(due - now)


class Quotas:
    """What users hold and have used.

    Args:
        store: The database.
        settings: The limits of users that have none of their own.
    """

    def __init__(self, store: Store, settings: Settings) -> None:
        self._store, self._settings = store, settings
        self._lock = threading.Lock()
        self._being_made: Counter[int] = Counter()  # sub-environments by user
        self._steps: dict[int, tuple[int, int]] = {}  # user to day and steps

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

    @contextlib.contextmanager
    def room(self, identity: Identity, num_envs: int) -> Iterator[None]:
        """Keep room for a user's fleet while it is made, so that calls of the same moment do not all find it free.

        Raises:
            QuotaSpent: There is none.
        """
        user_id, most = identity.user_id, self.limits(identity)[0]
        with self._lock:
            used = self._store.count_live_envs(user_id) + self._being_made[user_id]
            if used + num_envs > most:
                raise QuotaSpent(
                    f"live_envs: {used} sub-environments are open and {num_envs} more were asked for, {most} are "
                    "allowed: close fleets that you do not use"
                )
            self._being_made[user_id] += num_envs
        try:
            yield
        finally:
            with self._lock:
                self._being_made[user_id] -= num_envs

    def spend(self, identity: Identity, steps: int) -> None:
        """Count steps before they are made.

        Raises:
            QuotaSpent: They would be too many today.
        """
        most = self.limits(identity)[1]
        if most is None:
            return
        with self._lock:
            day, used = self._steps.get(identity.user_id, (0, 0))
            if day != today():
                used = self._store.steps_today(identity.user_id)
            if used + steps > most:
                raise QuotaSpent(
                    f"steps_per_day: {used} of {most} steps were made today, {steps} more were asked: go on tomorrow",
                    retry_after_s=(today() + 1) * 86_400 - time.time(),
                )
            self._steps[identity.user_id] = today(), used + steps
