"""Browser sessions: a random id in a cookie; the database stores its digest."""

from __future__ import annotations

import secrets
import time

import sqlalchemy as sa

from envfleet.service.database.models import Token, User, WebSession
from envfleet.service.database.store import Store
from envfleet.service.users.auth import Identity, digest_of

LIFETIME_S = 12 * 3600.0
_MOST_CHARACTERS = 100


class Sessions:
    """Begins, finds and ends sessions.

    Args:
        store: The database.
    """

    def __init__(self, store: Store) -> None:
        self._engine = store.engine

    def begin(self, identity: Identity) -> str:
        """Start a session for the user of a token; return its id, which only the browser keeps."""
        session_id, now = secrets.token_urlsafe(32), time.time()
        values = {"digest": digest_of(session_id), "token_id": identity.token_id, "expires_at": now + LIFETIME_S}
        with self._engine.begin() as connection:
            connection.execute(sa.delete(WebSession).where(WebSession.expires_at < now))
            connection.execute(sa.insert(WebSession).values(**values))
        return session_id

    def find(self, session_id: str) -> Identity | None:
        """Return the user of a session; `None` if it ended, its token was revoked or the user disabled."""
        if not session_id or len(session_id) > _MOST_CHARACTERS:
            return None
        query = (
            sa.select(User.id, User.name, User.role, Token.id.label("token_id"))
            .add_columns(User.max_live_envs, User.max_steps_per_day)
            .select_from(WebSession)
            .join(Token, Token.id == WebSession.token_id)
            .join(User, User.id == Token.user_id)
            .where(WebSession.digest == digest_of(session_id), WebSession.expires_at > time.time())
            .where(Token.revoked_at.is_(None), User.disabled_at.is_(None))
        )
        with self._engine.connect() as connection:
            row = connection.execute(query).first()
        return None if row is None else Identity(*row)

    def end(self, session_id: str) -> None:
        """End a session, if it exists."""
        with self._engine.begin() as connection:
            connection.execute(sa.delete(WebSession).where(WebSession.digest == digest_of(session_id)))
