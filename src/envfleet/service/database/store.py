"""The database: opening it, bringing its tables up to date, and what is read of fleets."""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Collection
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import make_url

from envfleet.errors import InvalidArgument
from envfleet.service.database.models import Attempt, Base, Episode, FleetEvent, FleetRow, Snapshot, Usage, WebSession

_BUSY_TIMEOUT_MS = 30_000
_FORGOTTEN_AT_ONCE = 20
_MOST_IDS = 500  # in a query; SQLite has a limit of parameters
DAY_S = 86_400
_PASSWORD = re.compile(r"(?<=://)\S+(?=@)")
"""User and password of a URL; the text need not be a URL otherwise."""


class Store:
    """The database of a service, for any thread.

    Args:
        url: SQLAlchemy's: `sqlite:///FILE` or `postgresql+psycopg://…`.

    Raises:
        InvalidArgument: The URL cannot be used.
    """

    def __init__(self, url: str) -> None:
        try:
            parsed = make_url(url)
            self.is_sqlite = parsed.get_backend_name() == "sqlite"
            options: dict[str, Any] = {} if self.is_sqlite else {"pool_size": 8, "pool_pre_ping": True}
            # Errors are logged: digests of tokens and bodies of events stay out of them.
            self.engine = sa.create_engine(parsed, hide_parameters=True, **options)
        except (sa.exc.ArgumentError, sa.exc.NoSuchModuleError, ImportError) as error:
            raise InvalidArgument(
                f"{_PASSWORD.sub('***', f'database={url!r}: {error}')}; pass sqlite:///FILE or "
                "postgresql+psycopg://USER:PASSWORD@HOST/NAME"
            ) from error
        if self.is_sqlite:
            sa.event.listen(self.engine, "connect", _configure_sqlite)

    def migrate(self) -> None:
        """Make the tables of a new database, or bring those of an older one up to date; at once in several processes.

        Raises:
            InvalidArgument: The database cannot be reached, or not with this name and password, or another version of
                the service made it.
        """
        from alembic.util import CommandError

        try:
            self._close_to_others()
            self._migrate()
        except CommandError as error:
            raise InvalidArgument(
                f"the database {self.engine.url.render_as_string(hide_password=True)} is of another version of the "
                f"service ({error}): run that version, or pass a new --database"
            ) from error
        except (sa.exc.OperationalError, OSError) as error:
            raise InvalidArgument(
                f"the database {self.engine.url.render_as_string(hide_password=True)} cannot be used: "
                f"{getattr(error, 'orig', error)}; {self._advice()}"
            ) from error

    @property
    def file(self) -> Path | None:
        """The file of SQLite's; `None` for other databases, and for those in memory."""
        name = self.engine.url.database
        return Path(name) if self.is_sqlite and name and not name.startswith((":memory:", "file:")) else None

    def require_file(self) -> None:
        """Check that SQLite's file is there, which opening it would make.

        Raises:
            InvalidArgument: It is not.
        """
        if self.file is not None and not self.file.is_file():
            raise InvalidArgument(
                f"database {self.file.absolute()} does not exist: pass the service's as --database; `envfleet serve` "
                "makes a new one"
            )

    def _advice(self) -> str:
        if self.file is None:
            return "check that it runs and that name and password are right"
        folder = self.file.absolute().parent
        if not folder.is_dir():
            return f"the folder {folder} does not exist: make it, or pass another --database"
        return f"check that {self.file.absolute()} is a file that may be read and written, and is yours alone"

    def _close_to_others(self) -> None:
        """Make SQLite's files readable by their owner only; SQLite gives its other files the same mode."""
        if self.file is None:
            return
        os.close(os.open(self.file, os.O_CREAT | os.O_RDWR, 0o600))
        for path in (Path(f"{self.file}{suffix}") for suffix in ("", "-wal", "-shm")):
            with contextlib.suppress(FileNotFoundError):  # the last connection that closes removes two of them
                if path.stat().st_mode & 0o077:
                    path.chmod(0o600)

    def _migrate(self) -> None:
        from alembic import command
        from alembic.config import Config

        with self.engine.connect() as connection:
            config = Config()
            config.set_main_option("script_location", "envfleet.service.database:migrations")
            config.attributes["connection"] = connection
            if self.is_sqlite:
                # The driver begins a transaction before a change of rows only. Without one, a killed process leaves
                # tables that are changed in part, and two processes change them at once.
                connection.exec_driver_sql("BEGIN IMMEDIATE")
            else:
                connection.execute(sa.text("SELECT pg_advisory_lock(728531)"))
            if sa.inspect(connection).has_table("alembic_version"):
                command.upgrade(config, "head")
            else:
                Base.metadata.create_all(connection)
                command.stamp(config, "head")
            connection.commit()  # a lock of PostgreSQL ends with the connection
            if not self.is_sqlite:
                connection.execute(sa.text("SELECT pg_advisory_unlock(728531)"))
                connection.commit()

    def rows(self, query: sa.Executable) -> list[dict[str, Any]]:
        """Return what a query finds, by column.

        Raises:
            sqlalchemy.exc.SQLAlchemyError: The database does not answer.
        """
        with self.engine.connect() as connection:
            return [dict(row) for row in connection.execute(query).mappings()]

    def value(self, query: sa.Executable) -> Any:
        """Return the first column of the first row that a query finds, or `None`; raises as `rows`."""
        with self.engine.connect() as connection:
            return connection.execute(query).scalar()

    def close(self) -> None:
        """Close all connections."""
        self.engine.dispose()

    # ------------------------------------------------------------------ fleets

    def load_fleet(self, fleet_id: str) -> dict[str, Any] | None:
        """Read a fleet's own row, all columns."""
        return next(iter(self.rows(sa.select(FleetRow.__table__).where(FleetRow.id == fleet_id))), None)

    def select_known(self, user_id: int, fleet_ids: Collection[str]) -> set[str]:
        """Return those of the ids that are fleets of the user, open or closed."""
        ids, known = list(fleet_ids), set[str]()
        with self.engine.connect() as connection:
            for first in range(0, len(ids), _MOST_IDS):
                chunk = ids[first : first + _MOST_IDS]
                query = sa.select(FleetRow.id).where(FleetRow.user_id == user_id, FleetRow.id.in_(chunk))
                known.update(connection.execute(query).scalars())
        return known

    def load_snapshot(self, fleet_id: str) -> tuple[int, bytes] | None:
        """Read `(seq, body)` of a fleet's last snapshot, if there is one."""
        query = sa.select(Snapshot.seq, Snapshot.body).where(Snapshot.fleet_id == fleet_id)
        with self.engine.connect() as connection:
            row = connection.execute(query).first()
        return None if row is None else (row.seq, row.body)

    def events(self, fleet_id: str, first: int, limit: int) -> list[tuple[int, bytes, bytes]]:
        """Read `(seq, key, body)` of a fleet's events in order.

        Args:
            fleet_id: Its id.
            first: Count of the first one.
            limit: Maximum number of rows.
        """
        query = (
            sa.select(FleetEvent.seq, FleetEvent.key, FleetEvent.body)
            .where(FleetEvent.fleet_id == fleet_id, FleetEvent.seq >= first)
            .order_by(FleetEvent.seq)
            .limit(limit)
        )
        with self.engine.connect() as connection:
            return [(event.seq, event.key, event.body) for event in connection.execute(query)]

    def count_events(self, fleet_id: str) -> int:
        """Return how many events a fleet has made."""
        query = sa.select(sa.func.coalesce(sa.func.max(FleetEvent.seq), -1)).where(FleetEvent.fleet_id == fleet_id)
        return int(self.value(query)) + 1

    def is_closed(self, fleet_id: str) -> bool:
        """Return whether a fleet was closed, or forgotten since."""
        query = sa.select(FleetRow.id).where(FleetRow.id == fleet_id, FleetRow.closed_at.is_(None))
        return self.value(query) is None

    def find_by_key(self, key: str) -> str | None:
        """Return the fleet that was made by the call with this key."""
        fleet_id: str | None = self.value(sa.select(FleetRow.id).where(FleetRow.key == key))
        return fleet_id

    def open_fleets(self, user_id: int | None = None, idle_since: float | None = None) -> list[dict[str, Any]]:
        """Rows of the fleets that are open, the longest untouched first.

        Args:
            user_id: Only this user's.
            idle_since: Only those untouched since then.
        """
        query = sa.select(FleetRow.__table__).where(FleetRow.closed_at.is_(None)).order_by(FleetRow.touched_at)
        if user_id is not None:
            query = query.where(FleetRow.user_id == user_id)
        if idle_since is not None:
            query = query.where(FleetRow.touched_at < idle_since)
        return self.rows(query)

    def check_writable(self) -> None:
        """Commit a change of nothing.

        Raises:
            sqlalchemy.exc.SQLAlchemyError: The database does not answer, or its disk is full.
        """
        with self.engine.begin() as connection:
            connection.execute(sa.text("UPDATE alembic_version SET version_num = version_num"))

    def count_live_envs(self, user_id: int) -> int:
        """Sub-environments of a user's open fleets."""
        return int(self.value(live_envs_of(user_id)))

    def touch_fleets(self, touched: dict[str, float]) -> None:
        """Note when fleets were used last, unless another process has used them later."""
        if not touched:
            return
        statement = (
            sa.update(FleetRow)
            .where(FleetRow.id == sa.bindparam("fleet"), FleetRow.touched_at < sa.bindparam("at"))
            .values(touched_at=sa.bindparam("at"))
        )
        with self.engine.begin() as connection:
            connection.execute(
                statement.execution_options(synchronize_session=False),
                # In one order in all processes, so that none waits for another that waits for it.
                [{"fleet": fleet, "at": at} for fleet, at in sorted(touched.items())],
            )

    def steps_today(self, user_id: int) -> int:
        """Steps of a user's sub-environments since midnight, UTC."""
        query = sa.select(Usage.steps).where(Usage.user_id == user_id, Usage.day == today())
        return int(self.value(query) or 0)

    def purge(self, before: float, kept: sa.Select[Any]) -> int:
        """Forget what is older: closed fleets with their events, episodes of training, sessions, and uses by day.

        Attempts, their episodes and their scores stay. The space in SQLite's file is used again.

        Args:
            before: Since 1970, seconds.
            kept: Selects the ids of fleets that stay whatever their age.

        Returns:
            How many fleets were forgotten.
        """
        closed = sa.select(FleetRow.id).where(FleetRow.closed_at < before, FleetRow.id.not_in(kept))
        old = [row["id"] for row in self.rows(closed)]
        for first in range(0, len(old), _FORGOTTEN_AT_ONCE):  # so that no call waits long for the database
            some = old[first : first + _FORGOTTEN_AT_ONCE]
            with self.engine.begin() as connection:
                for table in (FleetEvent, Snapshot):
                    connection.execute(sa.delete(table).where(table.fleet_id.in_(some)))
                connection.execute(sa.delete(FleetRow).where(FleetRow.id.in_(some)))
        oldest = sa.select(Episode.id).where(Episode.place.is_(None), Episode.ended_at < before).limit(_MOST_IDS)
        with self.engine.begin() as connection:
            connection.execute(sa.delete(WebSession).where(WebSession.expires_at < before))
            connection.execute(sa.delete(Usage).where(Usage.day < before // DAY_S))
        while True:
            with self.engine.begin() as connection:
                if connection.execute(sa.delete(Episode).where(Episode.id.in_(oldest))).rowcount < _MOST_IDS:
                    return len(old)


def live_envs_of(user_id: Any) -> sa.Select[Any]:
    """Return the query for the sub-environments of a user's open fleets."""
    total = sa.func.coalesce(sa.func.sum(FleetRow.num_envs), 0)
    return sa.select(total).where(FleetRow.user_id == user_id, FleetRow.closed_at.is_(None))


def today() -> int:
    """Return the day's number since 1970, UTC."""
    return int(time.time() // DAY_S)


def attempts_of_day(user_id: int, env: str, day: int) -> sa.Select[Any]:
    """Return the query for the number of attempts that a user started on a day since 1970, UTC; void ones are free."""
    of_user = Attempt.user_id == user_id, Attempt.env == env, Attempt.void_reason.is_(None)
    of_day = Attempt.started_at >= day * DAY_S, Attempt.started_at < (day + 1) * DAY_S
    return sa.select(sa.func.count()).select_from(Attempt).where(*of_user, *of_day)


def _configure_sqlite(connection: Any, _: Any) -> None:
    cursor = connection.cursor()
    # What is committed survives a killed process; after a loss of power the file is whole, if perhaps seconds older.
    for pragma in ("journal_mode=WAL", "synchronous=NORMAL", f"busy_timeout={_BUSY_TIMEOUT_MS}", "foreign_keys=ON"):
        cursor.execute(f"PRAGMA {pragma}")
    cursor.close()
