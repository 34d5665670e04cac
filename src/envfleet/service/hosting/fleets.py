"""All fleets of the service: making and finding them, calling them once and only once, and closing those left alone."""

from __future__ import annotations

import contextlib
import logging
import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from envfleet.errors import EnvfleetError, InvalidArgument, ResetNeeded
from envfleet.remote.codec import pack
from envfleet.service.database.journal import Conflict, Journal, JournalEntry
from envfleet.service.database.scores import fleets_that_count
from envfleet.service.database.store import Store
from envfleet.service.hosting.hosted import CLOSE, FleetConfig, HostedFleet, Made, shrink_actions
from envfleet.service.hosting.memory import Memory, unknown
from envfleet.service.refusals import Busy, Closed, EnvFailed, OutOfStep, failed
from envfleet.service.settings import Settings

_log = logging.getLogger("envfleet.service")
_TRIES = 4
_CLOSE_S = 10.0


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
        self._memory = Memory(store, settings)
        self._noted_at = 0.0

    @property
    def num_held(self) -> int:
        """Fleets in memory."""
        return len(self._memory)

    @property
    def num_envs(self) -> int:
        """Sub-environments in memory."""
        return sum(fleet.config.num_envs for fleet in self._memory.all())

    def held(self, fleet_id: str) -> HostedFleet | None:
        """Return a fleet, if it is in memory."""
        return self._memory.get(fleet_id)

    # ------------------------------------------------------------------ making and finding

    def find_made(self, user_id: int, key: str) -> str | None:
        """Return the id of the fleet that a call of this user's with this key has made, if there was one."""
        return self._store.find_by_key(_stored_key(user_id, key))

    def create(self, user_id: int, config: FleetConfig, key: str, *, most_live_envs: int | None = None) -> str:
        """Make a fleet, or find the one that the same call made meanwhile; look for an earlier one with `find_made`.

        Args:
            user_id: Whose it will be.
            config: What to make.
            key: Of the call.
            most_live_envs: Sub-environments that the user may have in all, if not any number.

        Returns:
            Its id.

        Raises:
            InvalidArgument: It cannot be made.
            EnvFailed: Likewise, as its environment raises.
            QuotaSpent: The user would have too many.
        """
        hosted = self._memory.build(secrets.token_hex(12), user_id, config)
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
            hosted.describe()  # spaces that cannot be sent are refused now
            most = {} if most_live_envs is None else {user_id: most_live_envs}
            self._journal.commit(JournalEntry(fleets=[row], most_live_envs=most))
        except Conflict:
            hosted.close()
            made = self.find_made(user_id, key)
            if made is None:
                raise
            return made
        except BaseException:
            hosted.close()
            raise
        return self._memory.put(hosted).fleet_id

    def find(self, user_id: int, fleet_id: str) -> HostedFleet:
        """Return a fleet of this user's, brought back from the database where it is not in memory.

        Raises:
            NotFound: There is none, or it is somebody else's.
            Closed: It was closed.
        """
        hosted = self._memory.bring(user_id, fleet_id)
        if hosted.user_id != user_id:
            raise unknown(fleet_id)
        hosted.touched_at = time.time()
        return hosted

    def build_copy(self, fleet_id: str, user_id: int, config: FleetConfig) -> HostedFleet:
        """Return a fleet that only the caller knows and closes, and that is never stored.

        Args:
            fleet_id: Of which it is a copy.
            user_id: Whose that is.
            config: What to make.

        Raises:
            InvalidArgument: It cannot be made.
            EnvFailed: Likewise, as its environment raises.
        """
        return self._memory.build(fleet_id, user_id, config)

    # ------------------------------------------------------------------ calling

    @contextlib.contextmanager
    def use(self, user_id: int, fleet_id: str, *, is_counted: bool = False) -> Iterator[HostedFleet]:
        """Lend this thread alone one of this user's fleets.

        Args:
            user_id: The user.
            fleet_id: The fleet.
            is_counted: Whether the caller says which count it expects, so that an old view would be noticed; else the
                fleet catches up with other processes first.

        Raises:
            NotFound: There is none, or it is somebody else's.
            Closed: It was closed.
            Busy: Another call took too long, or it has more to make again than can be done while a call waits: the
                next call goes on with it.
        """
        while True:
            hosted = self.find(user_id, fleet_id)
            with self._memory.hold(hosted.lock, fleet_id):
                if hosted.is_open:  # it may have left the memory, or been closed, while this thread waited
                    if hosted.is_behind or not (is_counted or self._store.is_sqlite):
                        self._memory.follow(hosted)
                    yield hosted
                    return

    def call(
        self, hosted: HostedFleet, event: Mapping[str, Any], *, seq: int, key: bytes, most_steps: int | None = None
    ) -> tuple[bytes, bool]:
        """Make an event of a fleet in use, and commit it; or find that it was made before.

        Args:
            hosted: The fleet.
            event: What to do.
            seq: The count that the caller expects.
            key: Of this call.
            most_steps: That the user may make in a day, if not any number.

        Returns:
            The packed reply, and whether it was stored.

        Raises:
            OutOfStep: The fleet has another count.
            InvalidArgument: The event cannot be made; nothing was done.
            ResetNeeded: Likewise.
            QuotaSpent: Likewise.
            EnvFailed: An environment raised; nothing was done.
        """
        if hosted.config.kind != "fleet":
            raise InvalidArgument(
                f"fleet {hosted.fleet_id!r} belongs to the episode protocol: reset and step its episodes by that"
            )
        for _ in range(_TRIES):
            if seq > hosted.seq:  # another process may have gone ahead
                self._memory.follow(hosted)
            if seq == hosted.seq - 1 and hosted.last is not None and hosted.last[0] == key:
                return pack(hosted.last[1]), True
            if seq != hosted.seq:
                break
            try:
                return pack(self._make(hosted, event, key, most_steps).reply), False
            except Conflict:
                self._memory.follow(hosted)
        raise OutOfStep(hosted.seq, seq)

    def call_next(
        self, hosted: HostedFleet, make_event: Callable[[], Mapping[str, Any]], *, most_steps: int | None = None
    ) -> Made:
        """Make an event of a fleet in use, for a caller that does not count.

        Args:
            hosted: The fleet.
            make_event: Returns the event, given the fleet's state of now.
            most_steps: That the user may make in a day, if not any number.
        """
        for _ in range(_TRIES):
            try:
                return self._make(hosted, make_event(), secrets.token_bytes(8), most_steps)
            except Conflict:
                self._memory.follow(hosted)
        raise OutOfStep(hosted.seq, hosted.seq)

    def _make(self, hosted: HostedFleet, event: Mapping[str, Any], key: bytes, most_steps: int | None) -> Made:
        """Make an event and commit it. Whatever fails, the fleet in memory is as the one in the database."""
        seq, user_id = hosted.seq, hosted.user_id
        if most_steps is not None and event["do"] == "step":
            self._journal.check_steps(user_id, hosted.count_running(event.get("rows")), most_steps)
        event = hosted.complete(event, time.time())
        stored = {**event, "actions": shrink_actions(event["actions"])} if "actions" in event else event
        entry = JournalEntry(events=[{"fleet_id": hosted.fleet_id, "seq": seq, "key": key, "body": pack(stored)}])
        if hosted.can_save and seq - hosted.snapshot_seq >= self._settings.snapshot_every:
            entry.snapshots.append({"fleet_id": hosted.fleet_id, "seq": seq, "body": hosted.save()})
        try:
            made = hosted.make(event)
        except (InvalidArgument, ResetNeeded):
            raise
        except EnvFailed:
            self._memory.reload(hosted)
            raise
        except Exception as error:
            self._memory.reload(hosted)
            raise failed(error) from error
        entry.episodes = [{**episode, **hosted.owner} for episode in made.episodes]
        if made.steps:
            entry.steps[user_id] = made.steps
            entry.most_steps = {} if most_steps is None else {user_id: most_steps}
        try:
            self._journal.commit(entry)
        except BaseException:
            self._memory.reload(hosted)
            raise
        if entry.snapshots:
            hosted.snapshot_seq = seq
        hosted.last = key, made.reply
        return made

    def mend(self, hosted: HostedFleet) -> None:
        """Make a fleet in use again, after a failure in which nothing was done."""
        self._memory.reload(hosted)

    # ------------------------------------------------------------------ closing

    def close_fleet(self, user_id: int | None, fleet_id: str, *, is_reaped: bool = False) -> None:
        """Close a fleet; its running episodes are abandoned. Nothing happens if it was closed before.

        Raises:
            NotFound: There is none, or it is somebody else's.
            Busy: Other processes went ahead with it again and again, or it takes too long to be brought back.
        """
        for _ in range(_TRIES):
            try:
                hosted = self._memory.bring(user_id, fleet_id)
            except (Closed, EnvFailed, InvalidArgument) as error:
                # Unless it is closed, its environment is of another version, fails to be made or is not hosted any
                # more: its episodes cannot be told.
                if self._store.is_closed(fleet_id) or self._close_untold(fleet_id, error):
                    return
                continue
            if user_id not in (None, hosted.user_id):
                raise unknown(fleet_id)
            with self._memory.hold(hosted.lock, fleet_id):
                if is_reaped and hosted.touched_at > time.time() - self._settings.idle_timeout_s:
                    return
                if hosted.is_open and self._close_held(hosted):
                    return
        raise Busy(f"fleet {fleet_id!r} is being used while it is to be closed: try again", retry_after_s=1.0)

    def _close_held(self, hosted: HostedFleet) -> bool:
        """Close a fleet, whose lock is held; False if another process went ahead with it. It leaves the memory."""
        now = time.time()
        try:
            if hosted.is_behind or not self._store.is_sqlite:
                self._memory.follow(hosted)
            episodes = [{**episode, **hosted.owner} for episode in hosted.abandon(now)]
            self._journal.commit(_closing(hosted.fleet_id, hosted.seq, now, episodes))
        except Busy:
            raise  # it stays in memory, so that the next try goes on
        except Closed:
            return True
        except EnvFailed as error:  # its log cannot be made again, and nobody can go on with it
            return self._close_untold(hosted.fleet_id, error)
        except Conflict:
            self._memory.drop(hosted)
            return False
        except BaseException:
            self._memory.drop(hosted)
            raise
        self._memory.drop(hosted)
        return True

    def _close_untold(self, fleet_id: str, why: EnvfleetError) -> bool:
        """Close a fleet that cannot be brought back; False if another process went ahead with it just now."""
        try:
            self._journal.commit(_closing(fleet_id, self._store.count_events(fleet_id), time.time(), []))
        except Conflict:
            return False
        _log.warning("fleet %s is closed without its running episodes: %s", fleet_id, why, exc_info=why.__cause__)
        return True

    def tend(self) -> None:
        """Note what was used, reap what lay idle, and put out of memory what was not used for a while."""
        now, held = time.time(), self._memory.all()
        self._note_uses(held)
        self._noted_at = now
        for row in self._store.open_fleets(idle_since=now - self._settings.idle_timeout_s):
            try:
                self.close_fleet(None, row["id"], is_reaped=True)
            except Busy as error:
                _log.info("fleet %s is not reaped yet: %s", row["id"], error)
            except EnvfleetError as error:
                self._close_untold(row["id"], error)
        for hosted in held:
            self._evict(hosted)
        self._store.purge(now - self._settings.retention_days * 86_400, fleets_that_count())

    def _note_uses(self, held: Sequence[HostedFleet]) -> None:
        """Write when fleets were used, those alone that were used since the last time."""
        self._store.touch_fleets(
            {hosted.fleet_id: hosted.touched_at for hosted in held if hosted.touched_at >= self._noted_at}
        )

    def _evict(self, hosted: HostedFleet) -> None:
        """Put a fleet out of memory if nobody used it for a while, nor uses it now."""
        if hosted.lock.acquire(blocking=False):
            try:
                if hosted.touched_at < time.time() - self._settings.evict_after_s:
                    self._memory.drop(hosted)
            finally:
                hosted.lock.release()

    def close(self) -> None:
        """Release all fleets; they go on after the next start. One whose environment hangs is left as it is."""
        held = self._memory.all()
        self._note_uses(held)
        deadline = time.monotonic() + _CLOSE_S
        for hosted in held:
            if not hosted.lock.acquire(timeout=max(deadline - time.monotonic(), 0.0)):
                _log.warning("fleet %s does not come to an end", hosted.fleet_id)
                continue
            try:
                self._memory.drop(hosted)
            finally:
                hosted.lock.release()
        self._journal.close()


def _stored_key(user_id: int, key: str) -> str:
    return f"{user_id}:{key}"


def _closing(fleet_id: str, seq: int, at: float, episodes: list[dict[str, Any]]) -> JournalEntry:
    """Return the event that closes a fleet: it takes the place of a call, so that no process can make one later."""
    event = {"fleet_id": fleet_id, "seq": seq, "key": b"", "body": pack({"do": CLOSE, "at": at})}
    return JournalEntry(events=[event], episodes=episodes, closed={fleet_id: at})
