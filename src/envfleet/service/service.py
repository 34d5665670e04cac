"""The parts of a running service, put together."""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
from collections.abc import Callable
from typing import TypeVar

import anyio
import anyio.to_thread

from envfleet.service.bodies import BodyRoom
from envfleet.service.database.journal import Journal
from envfleet.service.database.scores import Scores
from envfleet.service.database.store import Store
from envfleet.service.hosting.fleets import Fleets
from envfleet.service.metrics import Metrics
from envfleet.service.refusals import Unauthorized
from envfleet.service.settings import Settings
from envfleet.service.turns import Turns
from envfleet.service.users.accounts import Accounts
from envfleet.service.users.auth import Identity, Tokens
from envfleet.service.users.competitions import Competitions
from envfleet.service.users.quotas import Quotas
from envfleet.workers.transports.launch import server

_log = logging.getLogger("envfleet.service")
_T = TypeVar("_T")
_THREADS_FOR_OTHERS = 8
_BODIES = 4
"""Bodies of the largest size that are held at a time."""

_SWITCH_S = 0.0005
"""Time after which a thread that computes lets another one run, the event loop above all; Python's is ten times it."""

_MOST_TOKEN_CHARACTERS = 200


class Service:
    """Everything a request needs. Make it, `await start()`, and `await stop()` at the end.

    Args:
        settings: Settings of the service.

    Attributes:
        store: The database.
        tokens: Tokens of all users.
        accounts: Changes of users.
        quotas: Quotas of all users.
        fleets: Fleets of all users.
        scores: Scores of all users.
        competitions: All competitions.
        metrics: Metrics of this process.
        bodies: Memory for the bodies of requests.
        turns: Schedules calls, once the service has started.
        is_ready: True if the service accepts calls.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.store = Store(settings.database)
        self.store.migrate()
        self.tokens = Tokens(self.store)
        self.accounts = Accounts(self.store, self.tokens)
        self.quotas = Quotas(self.store, settings)
        self.scores = Scores(self.store)
        self.competitions = Competitions(self.store, self.scores.boards)
        self.metrics = Metrics()
        self.bodies = BodyRoom(_BODIES * settings.max_body_bytes, settings.max_body_bytes)
        self.is_ready = False
        self.fleets = Fleets(self.store, Journal(self.store), settings, self.metrics)
        self._stop_tending = threading.Event()
        self._tending: threading.Thread | None = None

    async def start(self) -> None:
        """Take calls."""
        sys.setswitchinterval(_SWITCH_S)
        if any(offer.count_processes(1) for offer in self.settings.offers):
            server.warm_up()
        self.turns = Turns(self.settings)
        self._limiter = anyio.CapacityLimiter(self.settings.max_running + _THREADS_FOR_OTHERS)
        self.metrics.watch("fleets", "Fleets in memory.", lambda: self.fleets.num_held)
        self.metrics.watch("live_envs", "Sub-environments in memory.", lambda: self.fleets.num_envs)
        self.metrics.watch("calls_waiting", "Calls that wait for a turn.", lambda: self.num_waiting)
        self._tending = threading.Thread(target=self._tend, name="envfleet-tend", daemon=True)
        self._tending.start()
        self.is_ready = True

    async def stop(self) -> None:
        """Release everything; what was answered is in the database."""
        self.is_ready = False
        self._stop_tending.set()
        await asyncio.to_thread(self._release)

    def _release(self) -> None:
        if self._tending is not None:
            self._tending.join(60.0)
        self.fleets.close()
        self.store.close()

    def _tend(self) -> None:
        while not self._stop_tending.wait(self.settings.tend_every_s):
            try:
                self.fleets.tend()
            except Exception:  # noqa: BLE001 - the database may be away for a while
                _log.exception("idle fleets could not be looked after; will try again")

    @property
    def num_waiting(self) -> int:
        """Calls that wait for a turn."""
        return self.turns.num_waiting

    # ------------------------------------------------------------------ for requests

    async def identify(self, token: str | None) -> Identity:
        """Return the identity of the caller.

        Raises:
            Unauthorized: The token is missing, unknown or revoked.
        """
        if not token or len(token) > _MOST_TOKEN_CHARACTERS:
            raise Unauthorized(
                "missing token: pass one in the header `Authorization: Bearer TOKEN` or, to /api/v1, `User-Token`"
            )
        known = self.tokens.remembered(token)
        return await self.in_thread(lambda: self.tokens.check(token)) if known is None else known

    async def in_thread(self, work: Callable[[], _T]) -> _T:
        """Run something that waits for the database, off the event loop."""
        return await anyio.to_thread.run_sync(work, limiter=self._limiter)

    async def run(self, identity: Identity, call: str, work: Callable[[], _T], *, computes: bool = True) -> _T:
        """Run a call of a user's in its turn, off the event loop.

        Args:
            identity: Identity of the user.
            call: Its name, for the figures.
            work: The call.
            computes: True if the call computes in this process; False if it mostly waits, as for worker processes.

        Raises:
            Busy: Its turn did not come in time.
        """
        async with self.turns.take(identity, computes=computes) as waited_s:
            self.metrics.wait_s.observe(waited_s)
            with self.metrics.call_s.labels(call).time():
                return await self.in_thread(work)
