"""Writing rows quickly: statements are compiled once, and go to the driver on a connection that stays open.

A step's reply waits for its commit. SQLAlchemy's way from a statement to the driver costs a millisecond and more, the
driver and the database themselves a tenth of that.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.pool import PoolProxiedConnection


class Prepared:
    """A statement as the driver takes it.

    Args:
        statement: SQLAlchemy's.
        dialect: Of the database.
        names: Its parameters; of an insert, the columns.
    """

    def __init__(self, statement: Any, dialect: sa.Dialect, names: Sequence[str] | None = None) -> None:
        compiled = statement.compile(dialect=dialect, column_keys=names)
        self.text = str(compiled)
        self._order: Sequence[str] | None = compiled.positiontup if compiled.positional else None
        self._constants = {name: value for name, value in compiled.params.items() if value is not None}
        table = getattr(statement, "table", None)
        columns = () if table is None else table.columns
        self._json = [each.name for each in columns if isinstance(each.type, sa.JSON) and each.name in compiled.params]

    def bind(self, values: Mapping[str, Any]) -> Any:
        """Values as the driver takes them."""
        if self._json:
            values = {**values, **{name: json.dumps(values[name]) for name in self._json}}
        if self._constants:
            values = {**self._constants, **values}
        return values if self._order is None else [values[name] for name in self._order]


class Transaction:
    """What is written in one transaction.

    Args:
        cursor: The driver's.
    """

    def __init__(self, cursor: Any) -> None:
        self._cursor = cursor

    def write(self, statement: Prepared, rows: Sequence[Mapping[str, Any]]) -> None:
        """Execute a statement for each of some rows."""
        self._cursor.executemany(statement.text, [statement.bind(row) for row in rows])

    def ask(self, statement: Prepared, **values: Any) -> int:
        """Execute a statement that returns one number."""
        self._cursor.execute(statement.text, statement.bind(values))
        return int(self._cursor.fetchone()[0])


class Writer:
    """Begins transactions, one at a time.

    Args:
        engine: Of the database.
    """

    def __init__(self, engine: sa.Engine) -> None:
        self._engine, self.dialect = engine, engine.dialect
        self._connection: PoolProxiedConnection | None = None

    @contextlib.contextmanager
    def begin(self) -> Iterator[Transaction]:
        """Open a transaction, which is committed at the end and undone by any exception.

        Raises:
            sqlalchemy.exc.SQLAlchemyError: The database refuses, or is gone (`connection_invalidated`): then it may
                have committed all the same.
        """
        connection = self._connect()
        cursor = connection.cursor()
        try:
            yield Transaction(cursor)
            connection.commit()
        except BaseException as error:
            is_gone = not self._undo(connection)
            if isinstance(error, self._errors()):
                raise self._as_sqlalchemys(error, is_gone=is_gone) from error
            raise
        finally:
            with contextlib.suppress(Exception):  # of a connection that is gone
                cursor.close()

    def _connect(self) -> PoolProxiedConnection:
        if self._connection is None:
            try:
                self._connection = self._engine.raw_connection()
            except self._errors() as error:
                raise self._as_sqlalchemys(error, is_gone=False) from error
        return self._connection

    def _errors(self) -> Any:
        """Return what the driver raises; it is loaded by now."""
        return self._engine.dialect.loaded_dbapi.Error

    def _as_sqlalchemys(self, error: Any, *, is_gone: bool) -> sa.exc.DBAPIError:
        """Return an error of the driver as SQLAlchemy's, without what was to be written."""
        known: sa.exc.DBAPIError = sa.exc.DBAPIError.instance(
            None,
            None,
            error,
            self._errors(),
            hide_parameters=True,
            connection_invalidated=is_gone,
            dialect=self.dialect,
        )
        return known

    def _undo(self, connection: PoolProxiedConnection) -> bool:
        """Return whether the connection still stands."""
        try:
            connection.rollback()
        except Exception:  # noqa: BLE001 - it is gone, and the transaction with it
            connection.invalidate()
            self._connection = None
            return False
        return True

    def close(self) -> None:
        """Give the connection back."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None
