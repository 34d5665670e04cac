"""Scheduling of calls: how many run at a time, in which order, and how fast one token may send them."""

from __future__ import annotations

import asyncio
import collections
import contextlib
import os
import time
from collections import Counter
from collections.abc import AsyncIterator

from envfleet.service.refusals import Busy
from envfleet.service.settings import Settings
from envfleet.service.users.auth import Identity

_BURST_S = 2.0


class Turns:
    """Schedules the calls of all users, and limits the rate of each token.

    Calls that compute in this process share the interpreter, so few run at a time and one per user: a user with many
    slow calls delays the call of another user by one of them. Calls that wait for worker processes or the database
    run in parallel, up to half of the slots per user. In both pools, the user that has been served least goes first.

    Args:
        settings: The limits.

    Attributes:
        num_waiting: Calls that wait for a turn.
    """

    def __init__(self, settings: Settings) -> None:
        self._timeout_s, self._rate = settings.queue_timeout_s, settings.requests_per_s
        computing = min(max(2, os.cpu_count() or 1), settings.max_running)
        self._pools = {
            True: _Pool(computing, 1),
            False: _Pool(settings.max_running, max(1, settings.max_running // 2)),
        }
        self._due: dict[int, float] = {}
        self.num_waiting = 0

    @contextlib.asynccontextmanager
    async def take(self, identity: Identity, *, computes: bool = False) -> AsyncIterator[float]:
        """Wait for a turn; yield the seconds that the call waited.

        Args:
            identity: Identity of the user.
            computes: True if the call computes in this process, as kernels do.

        Raises:
            Busy: The turn did not come in time.
        """
        begun, pool = time.monotonic(), self._pools[computes]
        self.num_waiting += 1
        try:
            await self.pace(identity.token_id)
            left_s = begun + self._timeout_s - time.monotonic()
            await pool.acquire(identity.user_id, max(left_s, 0.001))
        except TimeoutError:
            raise Busy(f"no turn came within {self._timeout_s:g} s: try again", retry_after_s=1.0) from None
        finally:
            self.num_waiting -= 1
        started = time.monotonic()
        try:
            yield started - begun
        finally:
            pool.release(identity.user_id, time.monotonic() - started)

    async def pace(self, token_id: int) -> None:
        """Wait until a token's calls come no faster than they may, after a burst.

        Raises:
            Busy: That would take too long.
        """
        now = time.monotonic()
        due = max(self._due.get(token_id, 0.0), now - _BURST_S) + 1.0 / self._rate
        if due - now > self._timeout_s:
            raise Busy(f"more than {self._rate:g} calls a second: slow down", retry_after_s=due - now)
        self._due[token_id] = due
        if due > now:
            await asyncio.sleep(due - now)


class _Pool:
    """Slots that users share fairly: a free slot goes to the waiting user that was served for the least time.

    A user that was away starts level with the least served of those present; time not used is not saved.
    """

    def __init__(self, size: int, most_of_one: int) -> None:
        self._free, self._most_of_one = size, most_of_one
        self._running: Counter[int] = Counter()
        self._waiting: dict[int, collections.deque[asyncio.Future[None]]] = {}
        self._served_s: dict[int, float] = {}
        self._level_s = 0.0  # service time of the user that got the last slot

    async def acquire(self, user_id: int, timeout_s: float) -> None:
        if user_id not in self._waiting and not self._running[user_id]:
            self._served_s[user_id] = max(self._served_s.get(user_id, 0.0), self._level_s)
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(user_id, collections.deque()).append(turn)
        self._grant()
        if turn.done():
            return
        try:
            async with asyncio.timeout(timeout_s):
                await turn
        except BaseException:
            if turn.done() and not turn.cancelled():  # granted at the last moment
                self.release(user_id, 0.0)
            elif user_id in self._waiting:
                self._forget(user_id, turn)
            raise

    def release(self, user_id: int, seconds: float) -> None:
        self._free += 1
        self._running[user_id] -= 1
        self._served_s[user_id] += seconds
        if not self._running[user_id]:
            del self._running[user_id]
        self._grant()

    def _grant(self) -> None:
        while self._free:
            able = [user for user in self._waiting if self._running[user] < self._most_of_one]
            if not able:
                return
            user_id = min(able, key=self._served_s.__getitem__)
            turn = self._waiting[user_id][0]
            self._forget(user_id, turn)
            if not turn.cancelled():
                self._free -= 1
                self._running[user_id] += 1
                self._level_s = self._served_s[user_id]
                turn.set_result(None)

    def _forget(self, user_id: int, turn: asyncio.Future[None]) -> None:
        with contextlib.suppress(ValueError):
            self._waiting[user_id].remove(turn)
        if not self._waiting[user_id]:
            del self._waiting[user_id]
