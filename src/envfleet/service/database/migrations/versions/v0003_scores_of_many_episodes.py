"""Indexes for scores, so that they take no longer the more episodes there are."""

from __future__ import annotations

from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    """Make the indexes."""
    op.create_index(
        "episodes_last_begun", "episodes", ["env", "is_ranked", "user_id", "started_at", "env_index"], unique=False
    )
    op.create_index("episodes_finished", "episodes", ["env", "is_ranked", "outcome", "total"], unique=False)
    op.drop_index("episodes_ranked", table_name="episodes")
