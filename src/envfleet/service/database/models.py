"""The tables. Times are seconds since 1970, UTC."""

from __future__ import annotations

from typing import Any

from sqlalchemy import JSON, BigInteger, Float, ForeignKey, Index, LargeBinary, String, UniqueConstraint, text
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column


class Base(DeclarativeBase):
    """Declarative base."""


def _partial_index(name: str, *columns: str, where: str, unique: bool = False) -> Index:
    return Index(name, *columns, unique=unique, sqlite_where=text(where), postgresql_where=text(where))


class User(Base):
    """User with any number of tokens. A limit of `None` means the service's; disabled users cannot do anything."""

    __tablename__ = "users"

    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(String(100), unique=True)
    role: Mapped[str] = mapped_column(String(20))
    created_at: Mapped[float] = mapped_column(Float)
    max_live_envs: Mapped[int | None]
    max_steps_per_day: Mapped[int | None] = mapped_column(BigInteger)
    disabled_at: Mapped[float | None] = mapped_column(Float)


class Token(Base):
    """A token, of which only a digest is kept, and its first characters to identify it."""

    __tablename__ = "tokens"

    id: Mapped[int] = mapped_column(primary_key=True)
    user_id: Mapped[int] = mapped_column(ForeignKey("users.id"), index=True)
    digest: Mapped[str] = mapped_column(String(64), unique=True)
    prefix: Mapped[str] = mapped_column(String(16))
    created_at: Mapped[float] = mapped_column(Float)
    revoked_at: Mapped[float | None] = mapped_column(Float)


class WebSession(Base):
    """A user's session in a browser; it ends with its token."""

    __tablename__ = "web_sessions"

    digest: Mapped[str] = mapped_column(String(64), primary_key=True)
    token_id: Mapped[int] = mapped_column(ForeignKey("tokens.id", ondelete="CASCADE"))
    expires_at: Mapped[float] = mapped_column(Float)


class FleetRow(Base):
    """A fleet: what it takes to build it again. `config` is that of `hosted.FleetConfig`."""

    __tablename__ = "fleets"
    __table_args__ = (Index("fleets_by_user", "user_id", "closed_at"), Index("fleets_open", "closed_at", "touched_at"))

    id: Mapped[str] = mapped_column(String(40), primary_key=True)
    user_id: Mapped[int] = mapped_column(ForeignKey("users.id"))
    key: Mapped[str] = mapped_column(String(200), unique=True)
    env: Mapped[str] = mapped_column(String(200))
    num_envs: Mapped[int]
    config: Mapped[dict[str, Any]] = mapped_column(JSON)
    created_at: Mapped[float] = mapped_column(Float)
    touched_at: Mapped[float] = mapped_column(Float)
    closed_at: Mapped[float | None] = mapped_column(Float)


class FleetEvent(Base):
    """A reset or a step of a fleet, with all that repeats it; `(fleet_id, seq)` is written once and never changed."""

    __tablename__ = "events"

    fleet_id: Mapped[str] = mapped_column(ForeignKey("fleets.id", ondelete="CASCADE"), primary_key=True)
    seq: Mapped[int] = mapped_column(BigInteger, primary_key=True, autoincrement=False)
    key: Mapped[bytes] = mapped_column(LargeBinary)
    body: Mapped[bytes] = mapped_column(LargeBinary)


class Snapshot(Base):
    """The state of a fleet before event `seq`, so that only later events must be repeated."""

    __tablename__ = "snapshots"

    fleet_id: Mapped[str] = mapped_column(ForeignKey("fleets.id", ondelete="CASCADE"), primary_key=True)
    seq: Mapped[int] = mapped_column(BigInteger)
    body: Mapped[bytes] = mapped_column(LargeBinary)


class Attempt(Base):
    """A ranked attempt: the first `episodes` episodes of a ranked fleet, divided evenly among its sub-environments.

    `score` is the mean of what exactly these episodes count, once the attempt has ended; `None` if it has fewer.
    `public_score` and `final_score` are the means over even and odd places, for competitions with two scoreboards.
    """

    __tablename__ = "attempts"
    __table_args__ = (Index("attempts_of_env", "env", "user_id", "started_at"),)

    id: Mapped[int] = mapped_column(primary_key=True)
    fleet_id: Mapped[str] = mapped_column(String(40), unique=True)
    user_id: Mapped[int] = mapped_column(ForeignKey("users.id"), index=True)
    env: Mapped[str] = mapped_column(String(200))
    episodes: Mapped[int]
    started_at: Mapped[float] = mapped_column(Float)
    ended_at: Mapped[float | None] = mapped_column(Float)
    score: Mapped[float | None] = mapped_column(Float)
    public_score: Mapped[float | None] = mapped_column(Float)
    final_score: Mapped[float | None] = mapped_column(Float)
    void_reason: Mapped[str | None] = mapped_column(String(300))


class Episode(Base):
    """An episode that is over. `outcome` is terminated, truncated or abandoned.

    `place` is its number in the attempt of its fleet, `None` in training; `counted` is its return, less the penalty if
    it was abandoned.
    """

    __tablename__ = "episodes"
    __table_args__ = (
        Index("episodes_of_user", "user_id", "id"),
        _partial_index("episodes_by_age", "ended_at", where="place IS NULL"),
        _partial_index("episodes_of_attempt", "fleet_id", "place", where="place IS NOT NULL", unique=True),
        # So that two processes cannot both report one. In this order, episodes that end together lie together.
        UniqueConstraint("fleet_id", "first_seq", "env_index"),
    )

    id: Mapped[int] = mapped_column(primary_key=True)
    fleet_id: Mapped[str] = mapped_column(String(40))
    env_index: Mapped[int]
    user_id: Mapped[int] = mapped_column(ForeignKey("users.id"))
    env: Mapped[str] = mapped_column(String(200))
    place: Mapped[int | None]
    started_at: Mapped[float] = mapped_column(Float)
    ended_at: Mapped[float] = mapped_column(Float)
    first_seq: Mapped[int] = mapped_column(BigInteger)
    last_seq: Mapped[int] = mapped_column(BigInteger)
    total: Mapped[float] = mapped_column(Float)
    counted: Mapped[float] = mapped_column(Float)
    length: Mapped[int] = mapped_column(BigInteger)
    outcome: Mapped[str] = mapped_column(String(20))
    details: Mapped[dict[str, Any]] = mapped_column(JSON)


class Usage(Base):
    """Steps of sub-environments by user and day (since 1970)."""

    __tablename__ = "usage"

    user_id: Mapped[int] = mapped_column(ForeignKey("users.id"), primary_key=True)
    day: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    steps: Mapped[int] = mapped_column(BigInteger)


class Competition(Base):
    """A competition in one environment. Attempts that begin and end between its times count for it.

    `code_digest` is that of the invitation code; `None` lets everybody with a token take part.
    """

    __tablename__ = "competitions"

    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(String(100), unique=True)
    text: Mapped[str] = mapped_column(String(20_000))
    env: Mapped[str] = mapped_column(String(200))
    opens_at: Mapped[float] = mapped_column(Float)
    closes_at: Mapped[float] = mapped_column(Float)
    baseline_name: Mapped[str | None] = mapped_column(String(100))
    baseline_score: Mapped[float | None] = mapped_column(Float)
    max_team_size: Mapped[int]
    code_digest: Mapped[str | None] = mapped_column(String(64))
    created_at: Mapped[float] = mapped_column(Float)


class Team(Base):
    """A row of a competition's scoreboards. `name` is `None` for a single user, shown under the user's name."""

    __tablename__ = "teams"
    __table_args__ = (UniqueConstraint("competition_id", "name"),)

    id: Mapped[int] = mapped_column(primary_key=True)
    competition_id: Mapped[int] = mapped_column(ForeignKey("competitions.id", ondelete="CASCADE"))
    name: Mapped[str | None] = mapped_column(String(100))
    code_digest: Mapped[str | None] = mapped_column(String(64))


class Member(Base):
    """Member of a competition."""

    __tablename__ = "members"

    competition_id: Mapped[int] = mapped_column(ForeignKey("competitions.id", ondelete="CASCADE"), primary_key=True)
    user_id: Mapped[int] = mapped_column(ForeignKey("users.id"), primary_key=True, index=True)
    team_id: Mapped[int] = mapped_column(ForeignKey("teams.id", ondelete="CASCADE"), index=True)
    joined_at: Mapped[float] = mapped_column(Float)
