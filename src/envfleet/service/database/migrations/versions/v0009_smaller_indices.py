"""Indices of episodes that a step changes in few places."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"

_COLUMNS = (
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("fleet_id", sa.String(40), nullable=False),
    sa.Column("env_index", sa.Integer, nullable=False),
    sa.Column("user_id", sa.Integer, sa.ForeignKey("users.id"), nullable=False),
    sa.Column("env", sa.String(200), nullable=False),
    sa.Column("place", sa.Integer),
    sa.Column("started_at", sa.Float, nullable=False),
    sa.Column("ended_at", sa.Float, nullable=False),
    sa.Column("first_seq", sa.BigInteger, nullable=False),
    sa.Column("last_seq", sa.BigInteger, nullable=False),
    sa.Column("total", sa.Float, nullable=False),
    sa.Column("counted", sa.Float, nullable=False),
    sa.Column("length", sa.BigInteger, nullable=False),
    sa.Column("outcome", sa.String(20), nullable=False),
    sa.Column("details", sa.JSON, nullable=False),
)


def upgrade() -> None:
    """Replace the indices; SQLite cannot change the constraints of a table, so its rows are copied into a new one."""
    if op.get_context().dialect.name == "sqlite":
        op.drop_index("episodes_of_user", "episodes")
        op.drop_index("episodes_by_age", "episodes")
        op.rename_table("episodes", "episodes_before")
        op.create_table("episodes", *_COLUMNS, sa.UniqueConstraint("fleet_id", "first_seq", "env_index"))
        names = ", ".join(column.name for column in _COLUMNS)
        op.execute(f"INSERT INTO episodes ({names}) SELECT {names} FROM episodes_before")
        op.drop_table("episodes_before")
        op.create_index("episodes_of_user", "episodes", ["user_id", "id"])
    else:
        op.drop_index("episodes_by_age", "episodes")
        op.drop_constraint("episodes_fleet_id_place_key", "episodes")
        op.drop_constraint("episodes_fleet_id_env_index_first_seq_key", "episodes")
        name = "episodes_fleet_id_first_seq_env_index_key"
        op.create_unique_constraint(name, "episodes", ["fleet_id", "first_seq", "env_index"])
    _create_partial_index("episodes_by_age", ["ended_at"], "place IS NULL")
    _create_partial_index("episodes_of_attempt", ["fleet_id", "place"], "place IS NOT NULL", unique=True)


def _create_partial_index(name: str, columns: list[str], where: str, *, unique: bool = False) -> None:
    condition = sa.text(where)
    op.create_index(name, "episodes", columns, unique=unique, sqlite_where=condition, postgresql_where=condition)
