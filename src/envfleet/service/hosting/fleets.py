"""All fleets of the service: making and finding them, calling them once and only once, and closing those left alone."""

from __future__ import annotations

import contextlib
import logging
import secrets
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from envfleet.errors import EnvfleetError, InvalidArgument, ResetNeeded
from envfleet.remote.codec import pack, unpack
from envfleet.service.database.journal import Conflict, Journal, JournalEntry, attempts_spent, live_envs_spent
from envfleet.service.database.scores import fleets_that_count
from envfleet.service.database.store import DAY_S, Store, attempts_of_day, today
from envfleet.service.hosting.hosted import CLOSE, FleetConfig, HostedFleet, Outcome, pack_reply
from envfleet.service.hosting.memory import Memory
from envfleet.service.metrics import Metrics
from envfleet.service.refusals import Busy, Closed, Diverged, EnvFailed, OutOfStep
from envfleet.service.settings import Settings

_log = logging.getLogger("envfleet.service")
_CLOSE_S = 10.0


class BegunCall(NamedTuple):
    """A call that was made and is not committed yet.

    Attributes:
        hosted: The fleet, locked.
        key: Key of the call.
        entry: Entry to commit.
        outcome: Result, with the packed reply.
    """

    hosted: HostedFleet
    key: bytes
    entry: JournalEntry
    outcome: Outcome


class Fleets:
    """The fleets of all users, in memory as long as they are used, and in the database.

    A fleet in memory is as the one in the database, or behind it. After a failure in which that is not certain it
    leaves the memory, and is built again for its next call. Several processes may share a database.

    Args:
        store: The database.
        journal: Commits to it.
        settings: Limits and offers.
        metrics: Metrics that count the steps.
    """

    def __init__(self, store: Store, journal: Journal, settings: Settings, metrics: Metrics) -> None:
        self._store, self._journal, self._settings, self._metrics = store, journal, settings, metrics
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

    def bring(self, user_id: int, fleet_id: str) -> HostedFleet:
        """Return a user's fleet; one that is not in memory is built again, and catches up when it is used.

        Raises:
            EnvfleetError: See `use`.
        """
        return self._memory.bring(user_id, fleet_id)

    def select_known(self, user_id: int, fleet_ids: Collection[str]) -> set[str]:
        """Return those of the ids that are fleets of the user, in a few queries for any number of ids."""
        held = {fleet_id for fleet_id in fleet_ids if self._memory.get(fleet_id) is not None}
        return held | self._store.select_known(user_id, set(fleet_ids) - held)

    # ------------------------------------------------------------------ making and finding

    def create(self, user_id: int, config: FleetConfig, key: str, *, most_live_envs: int | None = None) -> str:
        """Make a fleet, or find the one that the same call has made before.

        Args:
            user_id: Id of the owner.
            config: Configuration of the fleet.
            key: Key of the call.
            most_live_envs: Sub-environments that the user may have in all, if not any number.

        Returns:
            Its id.

        Raises:
            InvalidArgument: It cannot be made.
            EnvFailed: The environment raises.
            QuotaSpent: The user would have too many.
        """
        key = f"{user_id}:{key}"
        existing_id = self._store.find_by_key(key)
        if existing_id is not None:
            return existing_id
        if most_live_envs is not None:  # the commit checks it again, as other calls make fleets meanwhile
            live = self._store.count_live_envs(user_id) + config.num_envs
            if live > most_live_envs:
                raise live_envs_spent(live, most_live_envs)
        is_ranked, most_attempts = config.mode == "ranked", self._settings.attempts_per_day
        if is_ranked and self._store.value(attempts_of_day(user_id, config.env, today())) >= most_attempts:
            raise attempts_spent(config.env, most_attempts)
        hosted = self._memory.build(secrets.token_hex(12), user_id, config)
        hosted.touched_at = now = time.time()
        row = {
            "id": hosted.fleet_id,
            "user_id": user_id,
            "key": key,
            "env": config.env,
            "num_envs": config.num_envs,
            "config": config.model_dump_json(),
            "created_at": now,
            "touched_at": now,
            "closed_at": None,
        }
        try:
            hosted.describe()  # spaces that cannot be sent are refused now
            most = {} if most_live_envs is None else {user_id: most_live_envs}
            entry = JournalEntry(fleets=[row], most_live_envs=most)
            if is_ranked:
                entry.attempts = [new_attempt(row, config.ranked_episodes)]
                entry.most_attempts = {(user_id, config.env, int(now // DAY_S)): most_attempts}
            self._journal.commit(entry)
        except BaseException as error:
            hosted.close()
            existing_id = self._store.find_by_key(key) if isinstance(error, Conflict) else None
            if existing_id is None:
                raise
            return existing_id
        return self._memory.put(hosted).fleet_id

    def build_single(self, fleet_id: str) -> tuple[HostedFleet, int]:
        """Return a fleet of one like a stored one, which only the caller knows and closes; and how many that one has.

        Raises:
            Closed: The other episode was deleted, or ran another version of its environment.
            InvalidArgument: Its environment is not hosted any more, or cannot be made.
            EnvFailed: The environment raises.
        """
        row = self._store.load_fleet(fleet_id)
        if row is None:
            raise Closed("the events of this episode are no longer kept")
        config = self._memory.read_config(row, "its episodes cannot be replayed")
        single = config.model_copy(update={"num_envs": 1})
        return self._memory.build(fleet_id, row["user_id"], single), config.num_envs

    def describe_last(self, user_id: int, fleet_id: str) -> dict[str, Any]:
        """Return a fleet's description with its last call, for a client that continues for another one.

        Raises:
            EnvfleetError: See `use`.
        """
        with self.use(user_id, fleet_id) as hosted:
            described = {**hosted.describe(), "last": None}
            if hosted.last is not None:
                [(_, _, body)] = self._store.events(fleet_id, hosted.seq - 1, 1)
                event = unpack(body)
                last = {"verb": event["do"], "rows": event.get("rows"), "reply": hosted.last[1]}
                described["last"] = {**last, "observations": hosted.fleet.engine.observe()}
            return described

    # ------------------------------------------------------------------ calling

    @contextlib.contextmanager
    def use(self, user_id: int | None, fleet_id: str, *, is_counted: bool = False) -> Iterator[HostedFleet]:
        """Lock a fleet for this thread; a fleet that is not in memory is first restored from the database.

        Args:
            user_id: Id of the required owner; `None` accepts any owner and does not count as a use.
            fleet_id: The fleet.
            is_counted: True if the caller passes the count that it expects, so that an old view would be noticed;
                else the fleet catches up with other processes first.

        Raises:
            NotFound: The fleet does not exist or has another owner.
            Closed: It was closed.
            Diverged: Its restored results differ from the recorded ones; it was closed.
            Busy: Another call or the restoration took too long; the next call continues the restoration.
        """
        while True:
            hosted = self._memory.bring(user_id, fleet_id)
            if user_id is not None:
                hosted.touched_at = time.time()
            if not hosted.lock.acquire(timeout=self._settings.queue_timeout_s):
                raise Busy(f"fleet {fleet_id!r} is busy with another call: try again", retry_after_s=1.0)
            try:
                if hosted.is_open:  # it may have left the memory, or been closed, while this thread waited
                    if hosted.is_behind or not (is_counted or self._store.is_sqlite):
                        self._memory.follow(hosted)
                    yield hosted
                    return
            except Diverged as error:
                _log.warning("fleet %s of %s is closed: %s", fleet_id, hosted.config.env, error)
                with contextlib.suppress(Conflict):  # another process may have closed it, too
                    self._commit_closing(fleet_id, self._store.count_events(fleet_id), [])
                raise
            finally:
                hosted.lock.release()

    def call(
        self,
        user_id: int,
        fleet_id: str,
        event: Mapping[str, Any],
        *,
        seq: int,
        key: bytes,
        most_steps: int | None = None,
    ) -> tuple[bytes, bool]:
        """Make an event of a fleet, and commit it; or find that it was made before.

        Args:
            user_id: The user.
            fleet_id: The fleet.
            event: Event to make.
            seq: The count that the caller expects.
            key: Key of this call.
            most_steps: That the user may make in a day, if not any number.

        Returns:
            The packed reply, and whether it was stored.

        Raises:
            OutOfStep: The fleet has another count.
            InvalidArgument: The event is invalid; nothing was done.
            ResetNeeded: A reset is needed first; nothing was done.
            QuotaSpent: The user has no steps left for today; nothing was done.
            EnvFailed: An environment raised; nothing was done.
        """
        with contextlib.suppress(Conflict):  # the other process may have made this very call
            return self._call_once(user_id, fleet_id, event, seq=seq, key=key, most_steps=most_steps)
        return self._call_once(user_id, fleet_id, event, seq=seq, key=key, most_steps=most_steps)

    def _call_once(
        self, user_id: int, fleet_id: str, event: Mapping[str, Any], *, seq: int, key: bytes, most_steps: int | None
    ) -> tuple[bytes, bool]:
        with self.use(user_id, fleet_id, is_counted=True) as hosted:
            if hosted.config.kind != "fleet":
                raise InvalidArgument(
                    f"fleet {fleet_id!r} belongs to the episode protocol: reset and step its episodes by that"
                )
            if seq > hosted.seq:  # another process may have made later events
                self._memory.follow(hosted)
            if seq == hosted.seq - 1 and hosted.last is not None and hosted.last[0] == key:
                return hosted.last[1], True
            if seq != hosted.seq:
                raise OutOfStep(hosted.seq, seq)
            return self.make(hosted, event, key, most_steps=most_steps).packed, False

    def make(
        self, hosted: HostedFleet, event: Mapping[str, Any], key: bytes = b"", *, most_steps: int | None = None
    ) -> Outcome:
        """Make an event of a fleet in use, and commit it.

        Args:
            hosted: The fleet.
            event: Event to make.
            key: Key of the call, if the caller counts.
            most_steps: That the user may make in a day, if not any number.

        Raises:
            Conflict: Another process was first; the fleet must not be used any more, as after any other failure of
                environments or the database.
        """
        call = self._begin(hosted, event, key, most_steps=most_steps)
        try:
            self._journal.commit(call.entry)
        except BaseException:
            self.drop(hosted)
            raise
        return self._finish(call)

    def _begin(self, hosted: HostedFleet, event: Mapping[str, Any], key: bytes, *, most_steps: int | None) -> BegunCall:
        """Make an event of a fleet in use; it counts once its entry has been committed."""
        seq, user_id = hosted.seq, hosted.user_id
        if most_steps is not None and event["do"] == "step":
            self._journal.check_steps(user_id, hosted.count_running(event.get("rows")), most_steps)
        event = hosted.complete(event, time.time())
        entry = JournalEntry()
        if hosted.can_save and seq - hosted.snapshot_seq >= self._settings.snapshot_every:
            entry.snapshots.append({"fleet_id": hosted.fleet_id, "seq": seq, "body": hosted.save()})
        try:
            outcome = hosted.make(event)
            packed = pack_reply(outcome.reply)  # what cannot be sent must not have happened
            body = pack({**event, "checksum": outcome.checksum})
            entry.events = [{"fleet_id": hosted.fleet_id, "seq": seq, "key": key, "body": body}]
            entry.episodes = [{**episode, **hosted.owner} for episode in outcome.episodes]
            if hosted.config.mode == "ranked" and outcome.episodes and not hosted.meter.num_left:
                entry.ended_attempts[hosted.fleet_id] = event["at"]
            if outcome.steps:
                entry.steps[user_id] = outcome.steps
                entry.most_steps = {} if most_steps is None else {user_id: most_steps}
        except (InvalidArgument, ResetNeeded):
            raise
        except BaseException:
            self.drop(hosted)
            raise
        return BegunCall(hosted, key, entry, outcome._replace(packed=packed))

    def _finish(self, call: BegunCall) -> Outcome:
        """Update the fleet and the metrics after the commit of a call."""
        hosted, outcome = call.hosted, call.outcome
        if call.entry.snapshots:
            hosted.snapshot_seq = hosted.seq - 1
        hosted.last = call.key, outcome.packed
        self._metrics.env_steps.labels(hosted.config.env).inc(outcome.steps)
        return outcome

    # ------------------------------------------------------------------ calling without waiting

    def begin_at_once(
        self,
        user_id: int,
        fleet_id: str,
        event: Mapping[str, Any],
        *,
        seq: int,
        key: bytes,
        most_steps: int | None = None,
    ) -> BegunCall | bytes | None:
        """Begin a call that need not wait for anything but its commit; arguments and errors are those of `call`.

        Returns:
            The call, with its fleet locked until `end_all`; the packed reply if the call was made before; or `None`
            if it must be made by `call`.
        """
        hosted = self._memory.get(fleet_id)
        if hosted is None or hosted.user_id != user_id or not hosted.is_quick:
            return None
        if most_steps is not None and not self._journal.knows_steps(user_id):
            return None
        if not hosted.lock.acquire(blocking=False):
            return None
        call: BegunCall | bytes | None = None
        try:
            hosted.touched_at = time.time()
            if not hosted.is_open or hosted.is_behind or hosted.config.kind != "fleet":
                return None
            if seq == hosted.seq - 1 and hosted.last is not None and hosted.last[0] == key:
                call = hosted.last[1]
            elif seq == hosted.seq:
                call = self._begin(hosted, event, key, most_steps=most_steps)
            return call
        finally:
            if not isinstance(call, BegunCall):
                hosted.lock.release()

    def end_all(self, calls: Sequence[BegunCall], *, waits: bool) -> list[Exception | bytes] | None:
        """Commit calls together and unlock their fleets.

        Args:
            calls: Calls from `begin_at_once`.
            waits: True if this thread may wait for the database.

        Returns:
            The packed reply to each call, or its error; `None` if another thread is committing and `waits` is False.
        """
        errors = self._journal.commit_all([call.entry for call in calls], waits=waits)
        if errors is None:
            return None
        results: list[Exception | bytes] = []
        for call, error in zip(calls, errors, strict=True):
            if error is None:
                results.append(self._finish(call).packed)
            else:
                self.drop(call.hosted)
                results.append(error)
            call.hosted.lock.release()
        return results

    def drop(self, hosted: HostedFleet) -> None:
        """Put a fleet in use out of memory, after a failure in which nothing was done; it is built again when used."""
        self._memory.drop(hosted)

    # ------------------------------------------------------------------ closing

    def close_fleet(self, user_id: int | None, fleet_id: str, *, unused_since: float | None = None) -> None:
        """Close a fleet; its running episodes are abandoned. Nothing happens if it was closed before.

        Args:
            user_id: Id of the required owner; `None` accepts any owner.
            fleet_id: Its id.
            unused_since: Only if it was not used since.

        Raises:
            NotFound: The fleet does not exist or has another owner.
            Busy: Another call or process is using it, or its restoration takes too long.
        """
        now = time.time()
        try:
            with self.use(user_id, fleet_id) as hosted:
                if unused_since is not None and hosted.touched_at > unused_since:
                    return
                self._memory.follow(hosted)  # on SQLite, too, where `use` does not catch up
                episodes = [{**episode, **hosted.owner} for episode in hosted.abandon(now)]
                seq = hosted.seq
                self._memory.drop(hosted)
        except (Closed, EnvFailed, InvalidArgument) as error:
            if self._store.is_closed(fleet_id):
                return
            # Its environment has another version, fails or is no longer hosted: it cannot continue.
            _log.warning("fleet %s is closed without its running episodes: %s", fleet_id, error, exc_info=True)
            seq, episodes = self._store.count_events(fleet_id), []
        self._commit_closing(fleet_id, seq, episodes)

    def _commit_closing(self, fleet_id: str, seq: int, episodes: list[dict[str, Any]]) -> None:
        """Commit that a fleet is closed: this takes the place of a call, so that no process can make one later."""
        now = time.time()
        event = {"fleet_id": fleet_id, "seq": seq, "key": b"", "body": pack({"do": CLOSE, "at": now})}
        self._journal.commit(JournalEntry(events=[event], episodes=episodes, closed={fleet_id: now}))

    def tend(self) -> None:
        """Record uses of fleets, close those that were idle for too long, and drop unused ones from memory."""
        now, held = time.time(), self._memory.all()
        self._note_uses(held)
        self._noted_at = now
        unused_since = now - self._settings.idle_timeout_s
        for row in self._store.open_fleets(idle_since=unused_since):
            try:
                self.close_fleet(None, row["id"], unused_since=unused_since)
            except EnvfleetError as error:
                _log.info("fleet %s is not reaped yet: %s", row["id"], error)
        for hosted in held:
            if hosted.touched_at < now - self._settings.evict_after_s and not hosted.is_behind:
                self._memory.drop_unused(hosted)
        self._store.purge(now - self._settings.retention_days * DAY_S, fleets_that_count())

    def _note_uses(self, held: list[HostedFleet]) -> None:
        """Write when fleets were used, those alone that were used since the last time."""
        self._store.touch_fleets(
            {hosted.fleet_id: hosted.touched_at for hosted in held if hosted.touched_at >= self._noted_at}
        )

    def close(self) -> None:
        """Release all fleets except those with an environment that hangs; they continue after the next start."""
        held = self._memory.all()
        self._note_uses(held)
        deadline = time.monotonic() + _CLOSE_S
        for hosted in held:
            if hosted.lock.acquire(timeout=max(deadline - time.monotonic(), 0.0)):
                self._memory.drop(hosted)
                hosted.lock.release()
            else:
                _log.warning("fleet %s does not end", hosted.fleet_id)
        self._journal.close()


def new_attempt(fleet: Mapping[str, Any], episodes: int) -> dict[str, Any]:
    """Return the row of the attempt that begins with a ranked fleet's row."""
    values = {"fleet_id": fleet["id"], "user_id": fleet["user_id"], "env": fleet["env"], "episodes": episodes}
    unknown = ("ended_at", "score", "public_score", "final_score", "void_reason")
    return {**values, "started_at": fleet["created_at"], **dict.fromkeys(unknown)}
