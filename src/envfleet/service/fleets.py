"""All fleets of the service: making and finding them, calling them once and only once, and closing those left alone."""

from __future__ import annotations

import contextlib
import logging
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from envfleet.errors import EnvfleetError, InvalidArgument, ResetNeeded
from envfleet.service.hosted import FleetConfig, HostedFleet, Made, shrink_actions
from envfleet.service.journal import Conflict, Entry, Journal
from envfleet.service.legacy_fleet import LegacyFleet
from envfleet.service.offers import Offer, find_offer
from envfleet.service.refusals import Busy, Closed, EnvFailed, NotFound, OutOfStep
from envfleet.service.settings import Settings
from envfleet.service.store import Store, StoredFleet
from envfleet.transports.packing import pack, unpack

_log = logging.getLogger("envfleet.service")
_TRIES = 4


class Fleets:
    """The fleets of all users, in memory as long as they are used, and in the database.

    Several processes may share a database: each notices when another has gone ahead with a fleet, and catches up.

    Args:
        store: The database.
        journal: Commits to it.
        settings: Limits and offers.
    """

    def __init__(self, store: Store, journal: Journal, settings: Settings) -> None:
        self._store, self._journal, self._settings = store, journal, settings
        self._held: dict[str, HostedFleet] = {}
        self._lock = threading.Lock()
        self._building: dict[str, threading.Lock] = {}

    @property
    def num_held(self) -> int:
        """Fleets in memory."""
        return len(self._held)

    @property
    def num_envs(self) -> int:
        """Sub-environments in memory."""
        return sum(fleet.config.num_envs for fleet in tuple(self._held.values()))

    def held(self, fleet_id: str) -> HostedFleet | None:
        """A fleet, if it is in memory."""
        return self._held.get(fleet_id)

    # ------------------------------------------------------------------ making and finding

    def find_made(self, user_id: int, key: str) -> HostedFleet | None:
        """The fleet that a call of this user's with this key has made, if there was one.

        Raises:
            Closed: There was, but it was closed.
        """
        known = self._store.find_by_key(_stored_key(user_id, key))
        return None if known is None else self.find(user_id, known)

    def create(self, user_id: int, config: FleetConfig, key: str) -> HostedFleet:
        """Make a fleet, or find the one that the same call made meanwhile; look for an earlier one with `find_made`.

        Raises:
            InvalidArgument: It cannot be made.
        """
        hosted = self._build(secrets.token_hex(12), user_id, config)
        hosted.describe()  # spaces that cannot be sent are refused now
        hosted.touched_at = now = time.time()
        row = {
            "id": hosted.fleet_id,
            "user_id": user_id,
            "key": _stored_key(user_id, key),
            "env": config.env,
            "num_envs": config.num_envs,
            "config": config.model_dump(),
            "created_at": now,
            "touched_at": now,
            "closed_at": None,
        }
        try:
            self._journal.commit(Entry(fleets=[row]))
        except Conflict:
            hosted.close()
            made = self.find_made(user_id, key)
            if made is None:
                raise
            return made
        except BaseException:
            hosted.close()
            raise
        with self._lock:
            self._held[hosted.fleet_id] = hosted
        return hosted

    def find(self, user_id: int, fleet_id: str) -> HostedFleet:
        """A fleet of this user's, brought back from the database where it is not in memory.

        Raises:
            NotFound: There is none, or it is somebody else's.
            Closed: It was closed.
        """
        hosted = self._bring(user_id, fleet_id)
        if hosted.user_id != user_id:
            raise NotFound(f"there is no fleet {fleet_id!r}")
        hosted.touched_at = time.time()
        return hosted

    def _bring(self, user_id: int | None, fleet_id: str) -> HostedFleet:
        """A fleet in memory; threads that want the same one wait for the first to restore it."""
        hosted = self._held.get(fleet_id)
        if hosted is not None:
            return hosted
        with self._lock:
            building = self._building.setdefault(fleet_id, threading.Lock())
        try:
            with building:
                return self._held.get(fleet_id) or self._restore(user_id, fleet_id)
        finally:
            with self._lock:
                self._building.pop(fleet_id, None)

    def _build(self, fleet_id: str, user_id: int, config: FleetConfig) -> HostedFleet:
        offer: Offer = find_offer(self._settings.offers, config.env)
        kind = LegacyFleet if config.kind == "episodes" else HostedFleet
        return kind(fleet_id, user_id, offer, config)

    def _restore(self, user_id: int | None, fleet_id: str) -> HostedFleet:
        stored = self._store.load_fleet(fleet_id)
        if stored is None or user_id not in (None, stored.row["user_id"]):
            raise NotFound(f"there is no fleet {fleet_id!r}")
        if stored.row["closed_at"] is not None:
            raise Closed(f"fleet {fleet_id!r} was closed, or reaped after it lay idle: create a new one")
        hosted = self._rebuild(stored)
        with self._lock:
            self._held[fleet_id] = hosted
        return hosted

    def _rebuild(self, stored: StoredFleet) -> HostedFleet:
        config = FleetConfig.model_validate(stored.row["config"])
        offer = find_offer(self._settings.offers, config.env)
        if offer.version() != config.version:
            raise Closed(
                f"fleet {stored.row['id']!r} ran {config.version}, this service has {offer.version()}: create a new one"
            )
        hosted = self._build(stored.row["id"], stored.row["user_id"], config)
        hosted.touched_at = stored.row["touched_at"]
        try:
            if stored.snapshot is not None:
                hosted.load(stored.snapshot[1], stored.snapshot[0])
            _catch_up(hosted, stored.events)
        except BaseException:
            hosted.close()
            raise
        return hosted

    # ------------------------------------------------------------------ calling

    @contextlib.contextmanager
    def use(self, user_id: int, fleet_id: str, *, is_counted: bool = False) -> Iterator[HostedFleet]:
        """A fleet of this user's, for this thread alone.

        Args:
            user_id: The user.
            fleet_id: The fleet.
            is_counted: Whether the caller says which count it expects, so that an old view would be noticed; else the
                fleet catches up with other processes first.

        Raises:
            NotFound: There is none, or it is somebody else's.
            Closed: It was closed.
        """
        while True:
            hosted = self.find(user_id, fleet_id)
            with hosted.lock:
                if hosted.is_open:  # it may have left the memory, or been closed, while this thread waited
                    if not is_counted and not self._store.is_sqlite:
                        self._follow(hosted)
                    yield hosted
                    return

    def call(self, hosted: HostedFleet, event: Mapping[str, Any], *, seq: int, key: bytes) -> tuple[bytes, bool]:
        """Make an event of a fleet in use, and commit it; or find that it was made before.

        Args:
            hosted: The fleet.
            event: What to do.
            seq: The count that the caller expects.
            key: Of this call.

        Returns:
            The packed reply, and whether it was stored.

        Raises:
            OutOfStep: The fleet has another count.
            InvalidArgument: The event cannot be made; nothing was done.
            ResetNeeded: Likewise.
            EnvFailed: An environment raised; nothing was done.
        """
        for _ in range(_TRIES):
            if seq > hosted.seq:  # another process may have gone ahead
                self._follow(hosted)
            if seq == hosted.seq - 1 and hosted.last is not None and hosted.last[0] == key:
                return pack(hosted.last[1]), True
            if seq != hosted.seq:
                break
            try:
                return pack(self._make(hosted, event, key).reply), False
            except Conflict:
                self._follow(hosted)
        raise OutOfStep(hosted.seq, seq)

    def call_next(self, hosted: HostedFleet, make_event: Callable[[], Mapping[str, Any]]) -> Made:
        """Make an event of a fleet in use, for a caller that does not count.

        Args:
            hosted: The fleet.
            make_event: Returns the event, given the fleet's state of now.
        """
        for _ in range(_TRIES):
            try:
                return self._make(hosted, make_event(), secrets.token_bytes(8))
            except Conflict:
                self._follow(hosted)
        raise OutOfStep(hosted.seq, hosted.seq)

    def _make(self, hosted: HostedFleet, event: Mapping[str, Any], key: bytes) -> Made:
        """Make an event and commit it. Whatever fails, the fleet in memory is as the one in the database."""
        seq = hosted.seq
        event = hosted.complete(event, time.time())
        stored = {**event, "actions": shrink_actions(event["actions"])} if "actions" in event else event
        entry = Entry(events=[{"fleet_id": hosted.fleet_id, "seq": seq, "key": key, "body": pack(stored)}])
        if hosted.can_save and seq - hosted.snapshot_seq >= self._settings.snapshot_every:
            entry.snapshots.append({"fleet_id": hosted.fleet_id, "seq": seq, "body": hosted.save()})
        try:
            made = hosted.make(event)
        except (InvalidArgument, ResetNeeded):
            raise
        except Exception as error:
            self._reload(hosted)
            raise EnvFailed(f"the environment raised {type(error).__name__}: {error}") from error
        entry.episodes = [{**episode, **hosted.owner} for episode in made.episodes]
        entry.steps[hosted.user_id] = made.steps
        try:
            self._journal.commit(entry)
        except BaseException:
            self._reload(hosted)
            raise
        if entry.snapshots:
            hosted.snapshot_seq = seq
        hosted.last = key, made.reply
        return made

    def _follow(self, hosted: HostedFleet) -> None:
        """Make the events that other processes have made since."""
        stored = self._store.load_fleet(hosted.fleet_id, after=hosted.seq - 1)
        if stored is None or stored.row["closed_at"] is not None:
            self._drop(hosted)
            raise Closed(f"fleet {hosted.fleet_id!r} was closed: create a new one")
        _catch_up(hosted, stored.events)

    def _reload(self, hosted: HostedFleet) -> None:
        """Bring a fleet to what the database says of it, in place; if that fails, it leaves the memory."""
        try:
            stored = self._store.load_fleet(hosted.fleet_id)
            if stored is None or stored.row["closed_at"] is not None:
                raise Closed(f"fleet {hosted.fleet_id!r} was closed: create a new one")
            hosted.adopt(self._rebuild(stored))
        except BaseException:
            self._drop(hosted)
            raise

    def _drop(self, hosted: HostedFleet) -> None:
        """Put a fleet out of memory; hold its lock."""
        with self._lock:
            if self._held.get(hosted.fleet_id) is hosted:
                del self._held[hosted.fleet_id]
        hosted.close()

    # ------------------------------------------------------------------ closing

    def close_fleet(self, user_id: int | None, fleet_id: str, *, is_reaped: bool = False) -> None:
        """Close a fleet; its running episodes are abandoned. Nothing happens if it was closed before.

        Raises:
            NotFound: There is none, or it is somebody else's.
            Busy: Other processes went ahead with it again and again.
        """
        for _ in range(_TRIES):
            try:
                hosted = self._bring(user_id, fleet_id)
            except Closed:
                if is_reaped:  # of another version: its episodes cannot be told any more
                    self._journal.commit(Entry(closed={fleet_id: time.time()}))
                return
            if user_id not in (None, hosted.user_id):
                raise NotFound(f"there is no fleet {fleet_id!r}")
            with hosted.lock:
                if is_reaped and hosted.touched_at > time.time() - self._settings.idle_timeout_s:
                    return
                if hosted.is_open and self._close_held(hosted):
                    return
        raise Busy(f"fleet {fleet_id!r} is being used while it is to be closed: try again", retry_after_s=1.0)

    def _close_held(self, hosted: HostedFleet) -> bool:
        """Close a fleet, whose lock is held; False if another process went ahead with it. It leaves the memory."""
        now = time.time()
        try:
            if not self._store.is_sqlite:
                self._follow(hosted)
            episodes = [{**episode, **hosted.owner} for episode in hosted.abandon(now)]
            self._journal.commit(Entry(episodes=episodes, closed={hosted.fleet_id: now}))
        except Closed:
            return True
        except Conflict:
            return False
        finally:
            self._drop(hosted)
        return True

    def tend(self) -> None:
        """Note what was used, reap what lay idle, and put out of memory what was not used for a while."""
        now = time.time()
        held = dict(self._held)
        self._store.touch_fleets({fleet_id: hosted.touched_at for fleet_id, hosted in held.items()})
        for row in self._store.open_fleets(idle_since=now - self._settings.idle_timeout_s):
            try:
                self.close_fleet(None, row["id"], is_reaped=True)
            except EnvfleetError as error:
                _log.warning("fleet %s could not be reaped: %s", row["id"], error)
                self._journal.commit(Entry(closed={row["id"]: now}))
        for hosted in held.values():
            if hosted.touched_at < now - self._settings.evict_after_s:
                with hosted.lock:
                    self._drop(hosted)
        self._store.purge(now - self._settings.retention_days * 86_400)

    def close(self) -> None:
        """Release all fleets; they go on after the next start."""
        held = dict(self._held)
        self._store.touch_fleets({fleet_id: hosted.touched_at for fleet_id, hosted in held.items()})
        for hosted in held.values():
            with hosted.lock:
                hosted.close()
        self._held.clear()


def _stored_key(user_id: int, key: str) -> str:
    return f"{user_id}:{key}"


def _catch_up(hosted: HostedFleet, events: Sequence[tuple[int, bytes, bytes]]) -> None:
    """Make stored events again."""
    for seq, key, body in events:
        if seq == hosted.seq:
            hosted.last = key, hosted.make(unpack(body)).reply
