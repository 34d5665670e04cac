"""Commits of many fleets as one: whoever is first commits what the others have brought in the meantime."""

from __future__ import annotations

import collections
import dataclasses
import threading
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

from envfleet.errors import EnvfleetError
from envfleet.service.models import Episode, Event, FleetRow, Snapshot, Usage
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
    """

    fleets: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    events: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    episodes: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    snapshots: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    closed: dict[str, float] = dataclasses.field(default_factory=dict)
    steps: Counter[int] = dataclasses.field(default_factory=Counter)


class Journal:
    """Commits entries of many threads, as many at once as are waiting.

    Args:
        store: Where to.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._upsert: Any = sqlite.insert if store.is_sqlite else postgresql.insert
        self._waiting: collections.deque[tuple[Entry, Future[None]]] = collections.deque()
        self._turn = threading.Lock()

    def commit(self, entry: Entry) -> None:
        """Return when the entry is in the database.

        Raises:
            Conflict: Another process was first; nothing was written.
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
            except sa.exc.SQLAlchemyError:  # one of them: each by itself, so that the others are not refused with it
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
        for entry in entries:
            steps.update(entry.steps)
            closed.update(entry.closed)
        with self._store.engine.begin() as connection:
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
            for user_id, count in sorted(steps.items()):
                statement = self._upsert(Usage.__table__).values(user_id=user_id, day=today(), steps=count)
                connection.execute(
                    statement.on_conflict_do_update(
                        index_elements=["user_id", "day"], set_={"steps": Usage.__table__.c.steps + count}
                    )
                )
