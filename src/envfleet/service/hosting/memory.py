"""Fleets in memory, and how they come back to it: built again from the database, and caught up with it."""

from __future__ import annotations

import contextlib
import re
import threading
import time
from collections.abc import Mapping
from typing import Any

from envfleet.errors import InvalidArgument
from envfleet.remote.codec import unpack
from envfleet.service.database.store import Store
from envfleet.service.hosting.hosted import CLOSE, FleetConfig, HostedFleet, pack_reply
from envfleet.service.hosting.process_room import ProcessRoom
from envfleet.service.offers import find_offer
from envfleet.service.refusals import Busy, Closed, Diverged, EnvFailed, NotFound, cause_of
from envfleet.service.settings import Settings

_FLEET_ID = re.compile(r"[0-9a-f]{24}")
_CHUNK = 500  # events that are read at a time


class Memory:
    """The fleets that a process holds.

    Several processes may share a database: each notices when another has made events of a fleet, and catches up.

    Args:
        store: The database.
        settings: Offers, and how long calls wait.
    """

    def __init__(self, store: Store, settings: Settings) -> None:
        self._store, self._settings = store, settings
        self._fleets: dict[str, HostedFleet] = {}
        self._lock = threading.Lock()
        self._room = ProcessRoom(settings, self.all, self.drop_unused)

    def __len__(self) -> int:
        """Return how many."""
        return len(self._fleets)

    def get(self, fleet_id: str) -> HostedFleet | None:
        """Return a fleet, if it is in memory."""
        return self._fleets.get(fleet_id)

    def all(self) -> list[HostedFleet]:
        """Return those of this moment."""
        with self._lock:
            return list(self._fleets.values())

    def put(self, hosted: HostedFleet) -> HostedFleet:
        """Add a fleet, and return it; an earlier fleet with its id is kept and returned instead."""
        with self._lock:
            present = self._fleets.setdefault(hosted.fleet_id, hosted)
        if present is not hosted:
            hosted.close()
        return present

    def bring(self, user_id: int | None, fleet_id: str) -> HostedFleet:
        """Return a fleet; one that is not in memory is built again, as of its last snapshot or its beginning.

        Args:
            user_id: Id of the required owner; `None` accepts any owner.
            fleet_id: Its id.

        Raises:
            NotFound: The fleet does not exist or has another owner.
            Closed: It was closed, or ran another version of its environment.
            Busy: No worker processes are free.
            InvalidArgument: Its environment is not hosted any more, or cannot be made.
            EnvFailed: Its environment raises.
        """
        hosted = self._fleets.get(fleet_id)
        if hosted is None:
            if _FLEET_ID.fullmatch(fleet_id) is None:  # a database may not even take it as text
                raise _unknown(fleet_id)
            hosted = self._restore(user_id, fleet_id)
        if user_id not in (None, hosted.user_id):
            raise _unknown(fleet_id)
        return hosted

    def _restore(self, user_id: int | None, fleet_id: str) -> HostedFleet:
        row = self._store.load_fleet(fleet_id)
        if row is None or user_id not in (None, row["user_id"]):
            raise _unknown(fleet_id)
        if row["closed_at"] is not None:
            raise _closed(fleet_id)
        config = self.read_config(row)
        hosted = self.build(fleet_id, row["user_id"], config, snapshot=self._store.load_snapshot(fleet_id))
        hosted.is_behind, hosted.touched_at = True, row["touched_at"]
        return self.put(hosted)

    def read_config(self, row: Mapping[str, Any], advice: str = "close it and create a new one") -> FleetConfig:
        """Return what it takes to build a stored fleet again.

        Args:
            row: The stored fleet.
            advice: End of the message if the fleet ran another version.

        Raises:
            Closed: It ran another version of its environment.
            InvalidArgument: Its environment is not hosted any more.
        """
        config = FleetConfig.model_validate(row["config"])
        version = find_offer(self._settings.offers, config.env).version()
        if version != config.version:
            raise Closed(f"fleet {row['id']!r} ran {config.version}, this service has {version}: {advice}")
        return config

    def build(
        self, fleet_id: str, user_id: int, config: FleetConfig, snapshot: tuple[int, bytes] | None = None
    ) -> HostedFleet:
        """Return a new fleet, which is not in memory yet.

        Args:
            fleet_id: Its id.
            user_id: Id of the owner.
            config: Configuration of the fleet.
            snapshot: `(seq, body)` of the state in which it begins, if there is one.

        Raises:
            InvalidArgument: It cannot be made.
            EnvFailed: The environment raises.
            Busy: No worker processes are free.
        """
        offer = find_offer(self._settings.offers, config.env)

        def make() -> HostedFleet:
            with contextlib.ExitStack() as undoing:
                try:
                    hosted = HostedFleet(fleet_id, user_id, offer, config)
                    undoing.callback(hosted.close)
                    if snapshot is not None:
                        hosted.load(*snapshot)
                except InvalidArgument:
                    raise
                except Exception as error:
                    raise EnvFailed(
                        f"{config.env} cannot be made ({cause_of(error)}; the service's log says more)"
                    ) from error
                undoing.pop_all()
            return hosted

        return self._room.build(user_id, offer.count_processes(config.num_envs), make)

    def follow(self, hosted: HostedFleet) -> None:
        """Make the events that are in the database and not in memory, for as long as a call may wait.

        Raises:
            Closed: It was closed.
            Diverged: An event has other results than the first time.
            Busy: More events remain; the next call continues.
            EnvFailed: One of them cannot be repeated.
        """
        deadline, hosted.is_behind = time.monotonic() + self._settings.queue_timeout_s, True
        if self._store.is_closed(hosted.fleet_id):
            self.drop(hosted)
            raise _closed(hosted.fleet_id)
        while events := self._store.events(hosted.fleet_id, hosted.seq, _CHUNK):
            for _, key, body in events:
                reply = self._make_again(hosted, unpack(body))
                if time.monotonic() > deadline:
                    hosted.last = key, pack_reply(reply)
                    done, of = hosted.seq, self._store.count_events(hosted.fleet_id)
                    raise Busy(
                        f"fleet {hosted.fleet_id!r} is being restored, {done} of {of} calls are repeated: try again, "
                        "and it continues",
                        retry_after_s=1.0,
                    )
            hosted.last = key, pack_reply(reply)
            if len(events) < _CHUNK:
                break
        hosted.is_behind = False

    def _make_again(self, hosted: HostedFleet, event: Mapping[str, Any]) -> dict[str, Any]:
        if event["do"] == CLOSE:
            self.drop(hosted)
            raise _closed(hosted.fleet_id)
        try:
            outcome = hosted.make(event)
        except Exception as error:
            self.drop(hosted)
            raise EnvFailed(
                f"call {hosted.seq} of fleet {hosted.fleet_id!r} could not be made again ({type(error).__name__}; the "
                "service's log says more): close it, so that it counts no more against your quota, and create a new one"
            ) from error
        if outcome.checksum != event.get("checksum", outcome.checksum):
            self.drop(hosted)
            raise Diverged(
                f"call {hosted.seq - 1} of fleet {hosted.fleet_id!r} had other results when it was made again, so its "
                "episodes cannot continue: its environment's code or data changed, or it draws global random numbers "
                "instead of those of np_random; the fleet was closed: create a new one"
            )
        return outcome.reply

    def drop(self, hosted: HostedFleet) -> None:
        """Evict a fleet from memory while its lock is held. The next use restores it from the database."""
        with self._lock:
            if self._fleets.get(hosted.fleet_id) is hosted:
                del self._fleets[hosted.fleet_id]
        hosted.close()

    def drop_unused(self, hosted: HostedFleet) -> bool:
        """Put a fleet out of memory, unless it is in use; returns whether it was done."""
        if not hosted.lock.acquire(blocking=False):
            return False
        try:
            if self._fleets.get(hosted.fleet_id) is not hosted:
                return False
            self._store.touch_fleets({hosted.fleet_id: hosted.touched_at})  # or its use would be forgotten
            self.drop(hosted)
        finally:
            hosted.lock.release()
        return True


def _unknown(fleet_id: str) -> NotFound:
    return NotFound(f"fleet {fleet_id[:80]!r} does not exist")


def _closed(fleet_id: str) -> Closed:
    return Closed(f"fleet {fleet_id!r} was closed, or reaped after it lay idle: create a new one")
