"""Competitions, their teams and members."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"


def upgrade() -> None:
    """Create the tables."""
    op.create_table(
        "competitions",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("name", sa.String(100), nullable=False, unique=True),
        sa.Column("text", sa.String(20_000), nullable=False),
        sa.Column("env", sa.String(200), nullable=False),
        sa.Column("opens_at", sa.Float, nullable=False),
        sa.Column("closes_at", sa.Float, nullable=False),
        sa.Column("baseline_name", sa.String(100)),
        sa.Column("baseline_score", sa.Float),
        sa.Column("max_team_size", sa.Integer, nullable=False),
        sa.Column("code_digest", sa.String(64)),
        sa.Column("created_at", sa.Float, nullable=False),
    )
    op.create_table(
        "teams",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("competition_id", sa.Integer, sa.ForeignKey("competitions.id", ondelete="CASCADE"), nullable=False),
        sa.Column("name", sa.String(100)),
        sa.Column("code_digest", sa.String(64)),
        sa.UniqueConstraint("competition_id", "name"),
    )
    op.create_table(
        "members",
        sa.Column("competition_id", sa.Integer, sa.ForeignKey("competitions.id", ondelete="CASCADE"), primary_key=True),
        sa.Column("user_id", sa.Integer, sa.ForeignKey("users.id"), primary_key=True),
        sa.Column("team_id", sa.Integer, sa.ForeignKey("teams.id", ondelete="CASCADE"), nullable=False),
        sa.Column("joined_at", sa.Float, nullable=False),
    )
    op.create_index("ix_members_user_id", "members", ["user_id"])
    op.create_index("ix_members_team_id", "members", ["team_id"])
