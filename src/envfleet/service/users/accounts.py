"""Changes of users: many at once from CSV, edited, renamed, disabled and deleted."""

from __future__ import annotations

import csv
import io
import time
from typing import Any

import sqlalchemy as sa

from envfleet.errors import InvalidArgument
from envfleet.service.database.models import (
    Attempt,
    Episode,
    FleetEvent,
    FleetRow,
    Member,
    Snapshot,
    Team,
    Token,
    Usage,
    User,
    WebSession,
)
from envfleet.service.database.store import Store
from envfleet.service.users.auth import ROLES, Tokens, check_name, check_role, has_admin, insert_token, lock_admins

_COLUMNS = ("name", "role", "max_live_envs", "max_steps_per_day")
_MOST_SHOWN = 5
UNCHANGED = -1
"""A limit that `edit` leaves as it is."""


class Accounts:
    """Users of a service.

    Args:
        store: The database.
        tokens: Their tokens; those of a changed user are checked again at once in this process.
    """

    def __init__(self, store: Store, tokens: Tokens) -> None:
        self._store, self._tokens = store, tokens

    def rows(self) -> list[dict[str, Any]]:
        """Return all users by name: all columns."""
        return self._store.rows(sa.select(User.__table__).order_by(User.name))

    def create_many(self, text: str) -> list[tuple[str, str]]:
        """Create users with a token each, all of them or none.

        Args:
            text: CSV with a header: `name`, and if wanted `role`, `max_live_envs` and `max_steps_per_day`. Empty cells
                mean a participant and the service's limits.

        Returns:
            Names and tokens, in the order of the rows; the tokens cannot be shown again.

        Raises:
            InvalidArgument: The text is not such a table, or a name exists or occurs twice.
        """
        rows, now = read_users(text), time.time()
        names = [row["name"] for row in rows]
        with self._store.engine.begin() as connection:
            known = [row.name for row in connection.execute(sa.select(User.name)) if row.name in set(names)]
            if known:
                raise InvalidArgument(f"{_some(known)} exist already: leave these rows out; no user was created")
            created = []
            for row in rows:
                values = {**row, "created_at": now}
                user_id = connection.execute(sa.insert(User).values(**values).returning(User.id)).scalar_one()
                created.append((row["name"], insert_token(connection, user_id, now)))
        return created

    def edit(
        self,
        name: str,
        *,
        new_name: str | None = None,
        role: str | None = None,
        max_live_envs: int | None = UNCHANGED,
        max_steps_per_day: int | None = UNCHANGED,
    ) -> None:
        """Change a user; attempts, fleets and tokens stay.

        Args:
            name: The user's.
            new_name: Name from now on, also on scoreboards.
            role: The new role.
            max_live_envs: The new limit; `None` for the service's.
            max_steps_per_day: The new limit; `None` for the service's.

        Raises:
            InvalidArgument: The user does not exist, a value is invalid, the new name is taken, or no administrator
                would be left.
        """
        check_role(role)
        if new_name is not None:
            check_name(new_name)
        limits = {"max_live_envs": max_live_envs, "max_steps_per_day": max_steps_per_day}
        changes: dict[str, Any] = {field: limit for field, limit in limits.items() if limit != UNCHANGED}
        if bad := [f"{field}={limit}" for field, limit in changes.items() if limit is not None and limit < 0]:
            raise InvalidArgument(f"{bad[0]}: pass a number from 0, or none for the service's limit")
        changes |= {"name": new_name} if new_name is not None else {}
        changes |= {"role": role} if role is not None else {}
        if not changes:
            raise InvalidArgument(f"nothing to change of user {name!r}: pass a new name, role or limit")
        self._change(name, changes)

    def disable(self, name: str) -> None:
        """Refuse all tokens of a user from now on; attempts stay, and count. Nothing happens if they were.

        Raises:
            InvalidArgument: The user does not exist, or is the last administrator.
        """
        self._change(name, {"disabled_at": time.time()})

    def enable(self, name: str) -> None:
        """Accept the tokens of a disabled user again.

        Raises:
            InvalidArgument: The user does not exist.
        """
        self._change(name, {"disabled_at": None})

    def delete(self, name: str) -> None:
        """Delete a disabled user with everything that belongs to it: tokens, fleets, episodes, attempts and scores.

        Raises:
            InvalidArgument: The user does not exist or is not disabled.
        """
        with self._store.engine.begin() as connection:
            user = _find(connection, name)
            if user["disabled_at"] is None:
                raise InvalidArgument(
                    f"user {name!r} is not disabled: disable it first. Deleting a user also deletes its attempts, so "
                    "that scoreboards change; a disabled user keeps them"
                )
            user_id = user["id"]
            tokens = sa.select(Token.id).where(Token.user_id == user_id)
            fleets = sa.select(FleetRow.id).where(FleetRow.user_id == user_id)
            connection.execute(sa.delete(WebSession).where(WebSession.token_id.in_(tokens)))
            for part in (FleetEvent, Snapshot):
                connection.execute(sa.delete(part).where(part.fleet_id.in_(fleets)))
            for owned in (Token, FleetRow, Episode, Attempt, Usage, Member):
                connection.execute(sa.delete(owned).where(owned.user_id == user_id))
            connection.execute(sa.delete(Team).where(Team.id.not_in(sa.select(Member.team_id))))
            connection.execute(sa.delete(User).where(User.id == user_id))
        self._tokens.forget()

    def _change(self, name: str, changes: dict[str, Any]) -> None:
        try:
            with self._store.engine.begin() as connection:
                lock_admins(connection)
                user = _find(connection, name)
                connection.execute(sa.update(User).where(User.id == user["id"]).values(**changes))
                if user["role"] == "admin" and not has_admin(connection):
                    raise InvalidArgument(
                        f"user {name!r} is the last administrator with a token: create another one first"
                    )
        except sa.exc.IntegrityError as error:
            raise InvalidArgument(f"name={changes['name']!r} is another user's: choose another name") from error
        self._tokens.forget()


def read_users(text: str) -> list[dict[str, Any]]:
    r"""Return the rows of a CSV of users, checked.

    Raises:
        InvalidArgument: The header or a row is invalid, or a name occurs twice.

    >>> read_users("name,max_live_envs\nann,64\nbob,\n")[0]
    {'role': 'participant', 'name': 'ann', 'max_live_envs': 64}
    """
    reader = csv.DictReader(io.StringIO(text.removeprefix("\ufeff"), newline=""), skipinitialspace=True, strict=True)
    try:
        header = [column.strip() for column in reader.fieldnames or ()]
        if "name" not in header or not set(header) <= set(_COLUMNS):
            raise InvalidArgument(
                f"the first line is {','.join(header)[:100]!r}: pass a header with name and, if wanted, "
                f"{', '.join(_COLUMNS[1:])}"
            )
        reader.fieldnames = header
        rows = [_read_row(row, reader.line_num) for row in reader]
    except csv.Error as error:
        raise InvalidArgument(f"line {reader.line_num} is not CSV ({error}): separate values by commas") from error
    names = [row["name"] for row in rows]
    if not rows:
        raise InvalidArgument("no users below the header: write one name per line")
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise InvalidArgument(f"{_some(twice)} occur twice: names of users are unique")
    return rows


def _read_row(row: dict[Any, Any], line: int) -> dict[str, Any]:
    if None in row or None in row.values():
        raise InvalidArgument(f"line {line} has more or fewer values than the header")
    values: dict[str, Any] = {column: text.strip() for column, text in row.items() if text.strip()}
    try:
        check_name(values.get("name", ""))
        check_role(values.get("role"))
    except InvalidArgument as error:
        raise InvalidArgument(f"line {line}: {error}") from error
    for column in _COLUMNS[2:]:
        text = values.get(column, "0")
        if not (text.isascii() and text.isdigit() and int(text) < 2**31):
            raise InvalidArgument(f"line {line}: {column}={text!r} is not a whole number below {2**31:,}")
        if column in values:
            values[column] = int(text)
    return {"role": ROLES[0], **values}


def _some(names: list[str]) -> str:
    more = len(names) - _MOST_SHOWN
    return ", ".join(map(repr, names[:_MOST_SHOWN])) + (f" and {more} more" if more > 0 else "")


def _find(connection: sa.Connection, name: str) -> sa.RowMapping:
    user = connection.execute(sa.select(User.__table__).where(User.name == name)).mappings().first()
    if user is None:
        raise InvalidArgument(f"user {name!r} does not exist: `envfleet serve users list` shows all names")
    return user
