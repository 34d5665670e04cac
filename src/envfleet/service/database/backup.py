"""Copies of a service's SQLite database, made while it runs, and put back."""

from __future__ import annotations

import contextlib
import os
import shutil
import sqlite3
from collections.abc import Iterator
from pathlib import Path

from envfleet.errors import InvalidArgument
from envfleet.service.database.store import Store

_OTHERS = ("", "-wal", "-shm", "-journal")
"""Suffixes of files that belong to a database."""


def back_up(store: Store, target: Path) -> int:
    """Copy a database that may be in use into a new file, readable by its owner only.

    The copy has everything that was committed when it began, and nothing later. Copying the file itself would lose what
    is in the write-ahead log, and tear what is written meanwhile.

    Args:
        store: The database, in a file of SQLite's.
        target: The new file; it appears once it is whole.

    Returns:
        Its size in bytes.

    Raises:
        InvalidArgument: The database is not SQLite's, or the file exists.
        OSError: The file cannot be written.
    """
    if store.file is None:
        url = store.engine.url.set(drivername="postgresql").render_as_string(hide_password=True)
        raise InvalidArgument(
            f"PostgreSQL makes backups itself: run `pg_dump --format=custom --file={target} '{url}'`, and "
            "`pg_restore --dbname=URL FILE` to restore one"
        )
    if target.exists():
        raise InvalidArgument(f"{target} exists: pass the name of a new file")
    with _new_file(target) as partial, contextlib.closing(sqlite3.connect(store.file)) as connection:
        # A transaction that reads sees one state of the database, and with a write-ahead log blocks no writer.
        connection.execute("VACUUM INTO ?", (str(partial),))
    return target.stat().st_size


def restore(source: Path, store: Store) -> None:
    """Copy a backup to where a service expects its database, which must not exist yet.

    Args:
        source: The backup.
        store: The database that it becomes.

    Raises:
        InvalidArgument: The file is not a whole backup, or the database exists.
        OSError: The file cannot be written.
    """
    if store.file is None:
        raise InvalidArgument("only SQLite's databases are restored: PostgreSQL has `pg_restore --dbname=URL FILE`")
    _check_backup(source)
    existing = [path for path in (Path(f"{store.file}{suffix}") for suffix in _OTHERS) if path.exists()]
    if existing:
        raise InvalidArgument(
            f"{existing[0]} exists: a running service may be using it. Stop the service and move all of "
            f"{store.file}* away, or pass another --database"
        )
    with _new_file(store.file) as partial:
        shutil.copyfile(source, partial)


@contextlib.contextmanager
def _new_file(target: Path) -> Iterator[Path]:
    """Lend an empty file that becomes `target`, flushed to the disk, unless that exists by then."""
    partial = target.with_name(f".{target.name}.partial")
    try:
        os.close(os.open(partial, os.O_CREAT | os.O_TRUNC | os.O_RDWR, 0o600))
        yield partial
        descriptor = os.open(partial, os.O_RDWR)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        os.link(partial, target)  # which replaces nothing
    except FileExistsError as error:
        raise InvalidArgument(f"{target} exists: pass the name of a new file") from error
    finally:
        partial.unlink(missing_ok=True)


def _check_backup(source: Path) -> None:
    """Check that a file is a whole database of a service.

    Raises:
        InvalidArgument: It is not.
    """
    if not source.is_file():
        raise InvalidArgument(f"{source} does not exist: pass a file that `envfleet serve backup` made")
    try:
        with contextlib.closing(sqlite3.connect(f"{source.absolute().as_uri()}?mode=ro&immutable=1", uri=True)) as copy:
            problem = copy.execute("PRAGMA integrity_check(1)").fetchone()[0]
            copy.execute("SELECT version_num FROM alembic_version").fetchone()
    except sqlite3.DatabaseError as error:
        raise InvalidArgument(f"{source} is not a backup of a service ({error})") from error
    if problem != "ok":
        raise InvalidArgument(f"{source} is damaged ({problem}): use another backup")
