"""Users and their tokens. A token is shown once; only its digest is kept."""

from __future__ import annotations

import dataclasses
import hashlib
import hmac
import re
import secrets
import threading
import time
from collections.abc import Mapping
from typing import Any

import sqlalchemy as sa

from envfleet.errors import InvalidArgument
from envfleet.service.database.models import Token, User
from envfleet.service.database.store import Store
from envfleet.service.refusals import Disabled, Unauthorized

ROLES = ("participant", "admin")
_PREFIX = "ef_"
_NAME = re.compile(r"[^\x00-\x1f\x7f/\ud800-\udfff]{1,100}")
_REMEMBERED_S = 5.0
_MOST_REMEMBERED = 10_000


@dataclasses.dataclass(frozen=True)
class Identity:
    """Identity: the user of a token.

    Attributes:
        user_id: The user's.
        name: The user's.
        role: `"participant"` or `"admin"`.
        token_id: Id of the token.
        max_live_envs: The user's own limit, or `None`.
        max_steps_per_day: Maximum number of steps per day; `None` for the service's limit.
    """

    user_id: int
    name: str
    role: str
    token_id: int
    max_live_envs: int | None
    max_steps_per_day: int | None

    @property
    def is_admin(self) -> bool:
        """True for administrators."""
        return self.role == "admin"


class Tokens:
    """Makes, checks and revokes tokens; checks are remembered for seconds, so that a step does not wait for SQL.

    Args:
        store: The database.
    """

    def __init__(self, store: Store) -> None:
        self._store, self._engine = store, store.engine
        self._lock = threading.Lock()
        self._remembered: dict[str, tuple[float, Identity]] = {}

    def remembered(self, token: str) -> Identity | None:
        """Return the cached user of a token, if it was checked moments ago."""
        entry = self._remembered.get(digest_of(token))
        return entry[1] if entry is not None and entry[0] > time.monotonic() else None

    def check(self, token: str) -> Identity:
        """Return the user of a token.

        Raises:
            Unauthorized: The token is unknown or revoked; the error is the same.
            Disabled: Its user is disabled.
        """
        digest = digest_of(token)
        query = (
            sa.select(Token.id, Token.digest, User.id.label("user_id"), User.name, User.role)
            .add_columns(User.max_live_envs, User.max_steps_per_day, User.disabled_at)
            .join(User, User.id == Token.user_id)
            .where(Token.digest == digest, Token.revoked_at.is_(None))
        )
        with self._engine.connect() as connection:
            row = connection.execute(query).first()
        if row is None or not hmac.compare_digest(row.digest, digest):
            raise Unauthorized("the token is unknown or was revoked; pass it as it was shown, or ask for another")
        if row.disabled_at is not None:
            raise Disabled(f"user {row.name!r} is disabled: ask an administrator of the service")
        identity = Identity(row.user_id, row.name, row.role, row.id, row.max_live_envs, row.max_steps_per_day)
        with self._lock:
            if len(self._remembered) > _MOST_REMEMBERED:
                self._remembered.clear()
            self._remembered[digest] = time.monotonic() + _REMEMBERED_S, identity
        return identity

    def forget(self) -> None:
        """Clear the cache of checked tokens."""
        with self._lock:
            self._remembered.clear()

    def create(
        self,
        name: str,
        *,
        role: str | None = None,
        max_live_envs: int | None = None,
        max_steps_per_day: int | None = None,
    ) -> str:
        """Create a token, and the user if the name is new.

        Args:
            name: The user's.
            role: The user's; a new one is a participant if it is not given.
            max_live_envs: The user's limit, instead of the service's.
            max_steps_per_day: Maximum number of steps per day; `None` for the service's limit.

        Returns:
            The token, which cannot be shown again.

        Raises:
            InvalidArgument: A name or role that cannot be, or the user exists with another role or limit.
        """
        check_name(name)
        check_role(role)
        chosen = {"role": role, "max_live_envs": max_live_envs, "max_steps_per_day": max_steps_per_day}
        chosen = {field: value for field, value in chosen.items() if value is not None}
        now = time.time()
        with self._engine.begin() as connection:
            user = connection.execute(sa.select(User.__table__).where(User.name == name)).mappings().first()
            if user is None:
                values = {"role": ROLES[0], **chosen, "name": name, "created_at": now}
                user = connection.execute(sa.insert(User).values(**values).returning(User.__table__)).mappings().one()
            _check_user(user, chosen)
            return insert_token(connection, user["id"], now)

    def revoke(self, token_id: int) -> None:
        """Revoke a token; nothing happens if it was revoked before.

        Raises:
            InvalidArgument: The token does not exist, or it is the last one of any administrator.
        """
        with self._engine.begin() as connection:
            lock_admins(connection)
            revoked = _revoke(connection, token_id)
            if revoked and revoked[1] == "admin" and not has_admin(connection):
                raise InvalidArgument(
                    f"token {token_id} is the last of an administrator: create another, then revoke this one"
                )
        self.forget()

    def rotate(self, token_id: int) -> str:
        """Revoke a token and make another for the same user; returns it.

        Raises:
            InvalidArgument: The token does not exist or was revoked.
        """
        with self._engine.begin() as connection:
            revoked = _revoke(connection, token_id)
            if revoked is None:
                raise InvalidArgument(f"token {token_id} was revoked: create a new one for its user")
            token = insert_token(connection, revoked[0], time.time())
        self.forget()
        return token

    def list(self) -> list[dict[str, Any]]:
        """Return all tokens: `id`, `user`, `role`, `prefix`, `created_at`, `revoked_at`."""
        query = sa.select(
            Token.id, User.name.label("user"), User.role, Token.prefix, Token.created_at, Token.revoked_at
        )
        return self._store.rows(query.join(User, User.id == Token.user_id).order_by(Token.id))

    def count(self, name: str) -> int | None:
        """Return the number of a user's valid tokens, or `None` if the user does not exist."""
        users = self._store.rows(sa.select(User.id).where(User.name == name))
        if not users:
            return None
        valid = Token.user_id == users[0]["id"], Token.revoked_at.is_(None)
        return int(self._store.value(sa.select(sa.func.count(Token.id)).where(*valid)))

    def has_any(self) -> bool:
        """Return whether there is a token at all."""
        return self._store.value(sa.select(Token.id).limit(1)) is not None


def digest_of(token: str) -> str:
    """Return what the database keeps of a token, or of a session's id."""
    # It has 192 random bits: nothing slower than SHA-256 is needed against guessing.
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).hexdigest()


def check_name(name: str) -> None:
    """Check a user's name.

    Raises:
        InvalidArgument: It is empty, too long or has characters that pages and addresses cannot show, or that are not
            seen, so that one name could pass for another.
    """
    if not (_NAME.fullmatch(name) and name.isprintable() and name == name.strip()):
        raise InvalidArgument(f"name={name!r}: pass 1 to 100 characters that can be seen, without slashes")


def check_role(role: str | None) -> None:
    """Check a role, or `None` for no particular one.

    Raises:
        InvalidArgument: It is unknown.
    """
    if role not in (None, *ROLES):
        raise InvalidArgument(f"role={role!r}: pass one of {', '.join(ROLES)}")


def lock_admins(connection: sa.Connection) -> None:
    """Let one transaction at a time reduce the number of administrators; two could remove the last two."""
    connection.execute(sa.select(User.id).where(User.role == "admin").with_for_update())


def has_admin(connection: sa.Connection) -> bool:
    """Return whether an administrator is left that has a token and is not disabled."""
    admins = sa.select(User.id).where(User.role == "admin", User.disabled_at.is_(None))
    left = sa.select(Token.id).where(Token.user_id.in_(admins), Token.revoked_at.is_(None))
    return connection.execute(left).first() is not None


def insert_token(connection: sa.Connection, user_id: int, now: float) -> str:
    """Insert a new token of a user, and return it."""
    token = _PREFIX + secrets.token_urlsafe(24)
    values = {"user_id": user_id, "digest": digest_of(token), "prefix": token[:7], "created_at": now}
    connection.execute(sa.insert(Token).values(**values))
    return token


def _check_user(user: sa.RowMapping, chosen: Mapping[str, Any]) -> None:
    for field, value in chosen.items():
        if user[field] != value:
            raise InvalidArgument(
                f"{field}={value!r}: user {user['name']!r} has {field}={user[field]!r}, which a new token does not "
                "change: pass the same or none, or choose another name"
            )


def _revoke(connection: sa.Connection, token_id: int) -> tuple[int, str] | None:
    """Revoke a token; returns its user's id and role, or `None` if it had been revoked before."""
    owner = sa.select(Token.user_id, User.role).join(User, User.id == Token.user_id).where(Token.id == token_id)
    owner_row = connection.execute(owner).first()
    if owner_row is None:
        raise InvalidArgument(f"token id {token_id} does not exist: `envfleet token list` shows all ids")
    revoking = sa.update(Token).where(Token.id == token_id, Token.revoked_at.is_(None)).values(revoked_at=time.time())
    return (owner_row.user_id, owner_row.role) if connection.execute(revoking).rowcount else None
