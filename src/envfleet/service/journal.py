"""Commits of many fleets as one: whoever is first commits what the others have brought in the meantime."""

from __future__ import annotations

import collections
import dataclasses
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

from envfleet.errors import EnvfleetError
from envfleet.service.models import Episode, Event, FleetRow, Snapshot, Usage, User
from envfleet.service.refusals import QuotaSpent
from envfleet.service.store import Store, today

_MOST_ENTRIES = 256


class Conflict(EnvfleetError):
    """Another process has written what this one was about to write: its view of the fleet is old."""

    code = "conflict"


@dataclasses.dataclass
class Entry:
    """What one call did, to be committed as a whole.

    Attributes:
        fleets: Rows of new fleets.
        events: Rows of events.
        episodes: Rows of episodes that are over.
        snapshots: Rows of snapshots, which replace older ones.
        closed: Ids of fleets that were closed, and when.
        steps: Steps of sub-environments by user.
        most_steps: By user, how many may be made in a day; nothing is written of an entry that goes beyond.
        most_live_envs: By user, how many sub-environments may be open once the new fleets are; likewise.
    """

    fleets: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    events: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    episodes: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    snapshots: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    closed: dict[str, float] = dataclasses.field(default_factory=dict)
    steps: Counter[int] = dataclasses.field(default_factory=Counter)
    most_steps: dict[int, int] = dataclasses.field(default_factory=dict)
    most_live_envs: dict[int, int] = dataclasses.field(default_factory=dict)


class Journal:
    """Commits entries of many threads, as many at once as are waiting, and keeps users within their limits.

    Args:
        store: Where to.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._upsert: Any = sqlite.insert if store.is_sqlite else postgresql.insert
        self._waiting: collections.deque[tuple[Entry, Future[None]]] = collections.deque()
        self._turn = threading.Lock()
        self._used: dict[int, tuple[int, int]] = {}  # user to day and steps, as of the last commit of this process

    def check_steps(self, user_id: int, steps: int, most: int) -> None:
        """Refuse steps before they are made; what is refused here would be when it is committed.

        Raises:
            QuotaSpent: They are too many, as far as this process knows.
        """
        day, used = self._used.get(user_id, (-1, 0))
        if day != today():
            used = self._store.steps_today(user_id)
        if used + steps > most:
            raise steps_spent(used, steps, most)

    def commit(self, entry: Entry) -> None:
        """Return when the entry is in the database.

        Raises:
            Conflict: Another process was first; nothing was written.
            QuotaSpent: It goes beyond a limit; likewise.
            sqlalchemy.exc.SQLAlchemyError: The database refuses.
        """
        result: Future[None] = Future()
        self._waiting.append((entry, result))
        with self._turn:  # whoever had it before may have committed this entry with its own
            while not result.done():
                count = min(len(self._waiting), _MOST_ENTRIES)
                self._commit_all([self._waiting.popleft() for _ in range(count)])
        result.result()

    def _commit_all(self, waiting: Sequence[tuple[Entry, Future[None]]]) -> None:
        if len(waiting) > 1:
            try:
                self._write([entry for entry, _ in waiting])
            except (
                sa.exc.SQLAlchemyError,
                QuotaSpent,
            ):  # one of them: each by itself, so that the others are not refused with it
                pass
            else:
                for _, result in waiting:
                    result.set_result(None)
                return
        for entry, result in waiting:
            try:
                self._write([entry])
            except sa.exc.IntegrityError as error:
                result.set_exception(Conflict(f"another process was first: {error.orig}"))
            except Exception as error:  # noqa: BLE001 - whoever waits gets it
                result.set_exception(error)
            else:
                result.set_result(None)

    def _write(self, entries: Sequence[Entry]) -> None:
        steps: Counter[int] = Counter()
        closed: dict[str, float] = {}
        most_steps: dict[int, int] = {}
        most_live_envs: dict[int, int] = {}
        for entry in entries:
            steps.update(entry.steps)
            closed.update(entry.closed)
            most_steps.update(entry.most_steps)
            most_live_envs.update(entry.most_live_envs)
        with self._store.engine.begin() as connection:
            if most_live_envs and not self._store.is_sqlite:  # SQLite lets one process write at a time
                locked = sa.select(User.id).where(User.id.in_(most_live_envs)).order_by(User.id)
                connection.execute(locked.with_for_update(key_share=True))
            for table, name in ((FleetRow, "fleets"), (Event, "events"), (Episode, "episodes")):
                rows = [row for entry in entries for row in getattr(entry, name)]
                if rows:
                    connection.execute(sa.insert(table), rows)
            for row in (row for entry in entries for row in entry.snapshots):
                statement = self._upsert(Snapshot.__table__).values(row)
                changed = {"seq": row["seq"], "body": row["body"]}
                connection.execute(statement.on_conflict_do_update(index_elements=["fleet_id"], set_=changed))
            for fleet_id, at in closed.items():
                connection.execute(
                    sa.update(FleetRow)
                    .where(FleetRow.id == fleet_id, FleetRow.closed_at.is_(None))
                    .values(closed_at=at)
                )
            for user_id, most in most_live_envs.items():
                live = self._store.count_live_envs(user_id, connection)
                if live > most:
                    raise live_envs_spent(live, most)
            used = {
                user_id: self._count(connection, user_id, count, most_steps) for user_id, count in sorted(steps.items())
            }
        self._used.update(used)

    def _count(self, connection: sa.Connection, user_id: int, count: int, most: Mapping[int, int]) -> tuple[int, int]:
        """Count a user's steps: the day, and all that were made in it by any process."""
        day = today()
        statement = self._upsert(Usage.__table__).values(user_id=user_id, day=day, steps=count)
        statement = statement.on_conflict_do_update(
            index_elements=["user_id", "day"], set_={"steps": Usage.__table__.c.steps + statement.excluded.steps}
        )
        used = int(connection.execute(statement.returning(Usage.__table__.c.steps)).scalar_one())
        if used > most.get(user_id, used):
            raise steps_spent(used - count, count, most[user_id])
        return day, used


def steps_spent(used: int, asked: int, most: int) -> QuotaSpent:
    """The refusal of steps that are too many."""
    return QuotaSpent(
        f"steps_per_day: {used} of {most} steps were made today, {asked} more were asked: go on tomorrow",
        retry_after_s=(today() + 1) * 86_400 - time.time(),
    )


def live_envs_spent(live: int, most: int) -> QuotaSpent:
    """The refusal of a fleet that is too large; `live` is what would be open with it."""
    return QuotaSpent(
        f"live_envs: {live} sub-environments would be open with these, {most} are allowed: close fleets that you do "
        "not use"
    )
