"""Group commit: one thread commits the entries of all fleets that have arrived in the meantime."""

from __future__ import annotations

import collections
import dataclasses
import operator
import sqlite3
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

from envfleet.service.database.models import Attempt, Base, Episode, FleetEvent, FleetRow, Snapshot, Usage, User
from envfleet.service.database.store import DAY_S, Store, attempts_of_day, live_envs_of, today
from envfleet.service.refusals import Busy, QuotaSpent

_MOST_ENTRIES = 256
_CLOSE = (
    sa.update(FleetRow)
    .where(FleetRow.id == sa.bindparam("fleet"), FleetRow.closed_at.is_(None))
    .values(closed_at=sa.bindparam("at"))
)
_IN_ATTEMPT = Episode.fleet_id == Attempt.fleet_id, Episode.place.is_not(None)


def _mean(*where: sa.ColumnElement[bool]) -> sa.Case[Any]:
    """Return the mean of what an attempt's episodes count, NULL unless all of them have ended."""
    total = sa.select(sa.func.count(Episode.id)).where(*_IN_ATTEMPT).correlate(Attempt).scalar_subquery()
    mean = sa.select(sa.func.avg(Episode.counted)).where(*_IN_ATTEMPT, *where).correlate(Attempt).scalar_subquery()
    return sa.case((total == Attempt.episodes, mean))


_END_ATTEMPT = (
    sa.update(Attempt)
    .where(Attempt.fleet_id == sa.bindparam("fleet"), Attempt.ended_at.is_(None))
    .values(
        ended_at=sa.bindparam("at"),
        score=_mean(),
        public_score=_mean(Episode.place % 2 == 0),
        final_score=_mean(Episode.place % 2 == 1),
    )
    .execution_options(synchronize_session=False)
)


class Conflict(Busy):
    """Another process has written what this one was about to write: its view of the fleet is old."""


@dataclasses.dataclass
class JournalEntry:
    """Changes of one call, committed as a whole.

    Attributes:
        fleets: Rows of new fleets, JSON as text, as in all rows.
        events: Rows of events.
        episodes: Rows of episodes that are over.
        snapshots: Rows of snapshots, which replace older ones.
        attempts: Rows of new attempts.
        ended_attempts: Times of the ends of ranked attempts, by the ids of their fleets.
        closed: Ids of fleets that were closed, and when; their attempts end, too.
        steps: Steps of sub-environments by user.
        most_steps: Maximum number of steps in a day, by user; an entry that exceeds it is not written.
        most_live_envs: Maximum number of open sub-environments including the new fleets, by user.
        most_attempts: Maximum number of attempts per day including the new ones, by user, environment and day.
    """

    fleets: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    events: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    episodes: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    snapshots: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    attempts: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    ended_attempts: dict[str, float] = dataclasses.field(default_factory=dict)
    closed: dict[str, float] = dataclasses.field(default_factory=dict)
    steps: Counter[int] = dataclasses.field(default_factory=Counter)
    most_steps: dict[int, int] = dataclasses.field(default_factory=dict)
    most_live_envs: dict[int, int] = dataclasses.field(default_factory=dict)
    most_attempts: dict[tuple[int, str, int], int] = dataclasses.field(default_factory=dict)


class Journal:
    """Commits entries of many threads, as many at once as are waiting, and keeps users within their limits.

    Args:
        store: Store to write to.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._connection: sa.Connection | None = None  # stays open, as a reply waits for its commit
        self._waiting: collections.deque[tuple[JournalEntry, Future[None]]] = collections.deque()
        self._turn = threading.Lock()
        self._used: dict[int, tuple[int, int]] = {}  # user to day and steps, as of the last commit of this process
        upsert: Any = sqlite.insert if store.is_sqlite else postgresql.insert
        snapshot, usage = upsert(Snapshot), upsert(Usage)
        columns = {name: snapshot.excluded[name] for name in ("seq", "body")}
        total = {"steps": Usage.steps + usage.excluded.steps}
        replacing = snapshot.on_conflict_do_update(index_elements=["fleet_id"], set_=columns)
        counting = usage.on_conflict_do_update(index_elements=["user_id", "day"], set_=total)
        dialect = store.engine.dialect
        self._inserts = {
            "fleets": _Prepared(sa.insert(FleetRow), FleetRow, dialect),
            "events": _Prepared(sa.insert(FleetEvent), FleetEvent, dialect),
            "episodes": _Prepared(sa.insert(Episode), Episode, dialect),
            "snapshots": _Prepared(replacing, Snapshot, dialect),
            "attempts": _Prepared(sa.insert(Attempt), Attempt, dialect),
        }
        self._count_steps = _Prepared(counting.returning(Usage.steps), Usage, dialect, returns=True)

    def check_steps(self, user_id: int, steps: int, most: int) -> None:
        """Refuse steps before they are made, if their commit would be refused.

        Raises:
            QuotaSpent: They are too many, as far as this process knows.
        """
        day, used = self._used.get(user_id, (-1, 0))
        if day != today():
            used = self._store.steps_today(user_id)
        if used + steps > most:
            raise steps_spent(used, steps, most)

    def commit(self, entry: JournalEntry) -> None:
        """Return when the entry is in the database.

        Raises:
            Conflict: Another process was first; nothing was written.
            QuotaSpent: A limit would be exceeded; the entry is not committed.
            sqlalchemy.exc.SQLAlchemyError: The database refuses.
        """
        result: Future[None] = Future()
        self._waiting.append((entry, result))
        with self._turn:  # the previous holder may have committed this entry with its own
            while not result.done():
                count = min(len(self._waiting), _MOST_ENTRIES)
                self._commit_all([self._waiting.popleft() for _ in range(count)])
        result.result()

    def _commit_all(self, waiting: Sequence[tuple[JournalEntry, Future[None]]]) -> None:
        errors = self._write_each([entry for entry, _ in waiting])
        for (_, result), error in zip(waiting, errors, strict=True):
            if error is None:
                result.set_result(None)
            else:
                result.set_exception(error)

    def commit_all(self, entries: Sequence[JournalEntry], *, waits: bool = True) -> list[Exception | None] | None:
        """Commit several entries, together if possible.

        Args:
            entries: The entries.
            waits: True to wait for a commit in another thread.

        Returns:
            The error of each entry, as `commit` raises it; `None` if another thread commits and `waits` is False.
        """
        if not self._turn.acquire(blocking=waits):
            return None
        try:
            return self._write_each(entries)
        finally:
            self._turn.release()

    def knows_steps(self, user_id: int) -> bool:
        """Return whether `check_steps` can answer without the database."""
        return self._used.get(user_id, (-1, 0))[0] == today()

    def _write_each(self, entries: Sequence[JournalEntry]) -> list[Exception | None]:
        if len(entries) > 1:
            try:
                self._write(entries)
            except Exception:  # noqa: BLE001, S110 - one entry failed: commit each alone, so that each waiting call gets its own error
                pass
            else:
                return [None] * len(entries)
        return [self._write_alone(entry) for entry in entries]

    def _write_alone(self, entry: JournalEntry) -> Exception | None:
        try:
            self._write([entry])
        except sa.exc.IntegrityError:
            return Conflict("another call or process uses the fleet: try again", retry_after_s=1.0)
        except Exception as error:  # noqa: BLE001 - passed to the waiting call
            return error
        return None

    def _write(self, entries: Sequence[JournalEntry]) -> None:
        """Write all of it or nothing; once more if the connection was lost, as nothing can be written twice."""
        try:
            self._write_once(entries)
        except sa.exc.DBAPIError as error:
            if not error.connection_invalidated:
                raise
            self._write_once(entries)

    def _write_once(self, entries: Sequence[JournalEntry]) -> None:
        entry = _merge(entries)
        if self._connection is None:
            self._connection = self._store.engine.connect()
        connection = self._connection
        with connection.begin():
            if not self._store.is_sqlite:  # SQLite lets one process write at a time
                for user_id in sorted({*entry.most_live_envs, *(user_id for user_id, *_ in entry.most_attempts)}):
                    connection.execute(sa.select(User.id).where(User.id == user_id).with_for_update(key_share=True))
            for name, statement in self._inserts.items():
                rows = getattr(entry, name)
                if rows:
                    statement.execute(connection, rows)
            for ending, ended in ((_CLOSE, entry.closed), (_END_ATTEMPT, entry.ended_attempts | entry.closed)):
                if ended:
                    connection.execute(ending, [{"fleet": fleet, "at": at} for fleet, at in ended.items()])
            _check_limits(connection, entry)
            used = {
                user_id: self._count(connection, user_id, count, entry.most_steps.get(user_id))
                for user_id, count in sorted(entry.steps.items())
            }
        self._used.update(used)

    def _count(self, connection: sa.Connection, user_id: int, steps: int, most: int | None) -> tuple[int, int]:
        """Count a user's steps; returns the day and all that were made in it by any process."""
        day = today()
        used: int = self._count_steps.execute(connection, [{"user_id": user_id, "day": day, "steps": steps}])
        if most is not None and used > most:
            raise steps_spent(used - steps, steps, most)
        return day, used

    def close(self) -> None:
        """Release the connection."""
        with self._turn:
            if self._connection is not None:
                self._connection.close()


class _Prepared:
    """A statement compiled once for the driver: replies wait for commits, and compiling it for each takes longer.

    Args:
        statement: An insert of whole rows; columns of JSON are given as text.
        model: Model of the table.
        dialect: Dialect of the database.
        returns: True if it returns a value.
    """

    def __init__(self, statement: Any, model: type[Base], dialect: sa.Dialect, *, returns: bool = False) -> None:
        names = list(model.__table__.columns.keys())
        if model in (Episode, Attempt):
            names.remove("id")
        compiled = statement.compile(dialect=dialect, column_keys=names)
        self._text, self._returns, order = str(compiled), returns, compiled.positiontup
        self._values = None if order is None else operator.itemgetter(*order)

    def execute(self, connection: sa.Connection, rows: Sequence[Mapping[str, Any]]) -> Any:
        """Execute it for rows, or for one if it returns a value; returns that value.

        Raises:
            sqlalchemy.exc.SQLAlchemyError: The database refuses.
        """
        if self._values is None:
            result = connection.exec_driver_sql(self._text, rows[0] if self._returns else list(rows))
            return result.scalar_one() if self._returns else None
        values = [self._values(row) for row in rows]
        # Straight on SQLite's driver: what SQLAlchemy does around a statement takes longer than SQLite.
        driver: Any = connection.connection.driver_connection
        try:
            if self._returns:
                return driver.execute(self._text, values[0]).fetchall()[0][0]
            driver.executemany(self._text, values)
        except sqlite3.Error as error:
            raise sa.exc.DBAPIError.instance(self._text, None, error, sqlite3.Error, hide_parameters=True) from error


def _merge(entries: Sequence[JournalEntry]) -> JournalEntry:
    """Return an entry with all changes of several."""
    if len(entries) == 1:
        return entries[0]
    merged = JournalEntry()
    for entry in entries:
        for field in dataclasses.fields(JournalEntry):
            whole, part = getattr(merged, field.name), getattr(entry, field.name)
            whole.extend(part) if isinstance(whole, list) else whole.update(part)
    return merged


def _check_limits(connection: sa.Connection, entry: JournalEntry) -> None:
    """Refuse fleets and attempts beyond the limits of their users."""
    for user_id, most in entry.most_live_envs.items():
        live = connection.execute(live_envs_of(user_id)).scalar_one()
        if live > most:
            raise live_envs_spent(live, most)
    for (user_id, env, day), most in entry.most_attempts.items():
        if connection.execute(attempts_of_day(user_id, env, day)).scalar_one() > most:
            raise attempts_spent(env, most)


def steps_spent(used: int, num_requested: int, most: int) -> QuotaSpent:
    """Return the refusal of steps that are too many."""
    return QuotaSpent(
        f"steps_per_day: {used} of {most} steps were used today, {num_requested} more were requested: continue "
        "tomorrow",
        retry_after_s=(today() + 1) * DAY_S - time.time(),
    )


def attempts_spent(env: str, most: int) -> QuotaSpent:
    """Return the refusal of another attempt today."""
    return QuotaSpent(
        f"attempts_per_day: all {most} attempts of today in {env} were started, and an attempt counts from its "
        "start: continue tomorrow (UTC), or practice with mode='training'",
        retry_after_s=(today() + 1) * DAY_S - time.time(),
    )


def live_envs_spent(live: int, most: int) -> QuotaSpent:
    """Return the refusal of a fleet that is too large; `live` is what would be open with it."""
    return QuotaSpent(
        f"live_envs: {live} sub-environments would be open with these, {most} are allowed: close fleets that you do "
        "not use, which `envfleet status` shows"
    )
