"""Old episodes of training are found without reading all."""

from __future__ import annotations

from alembic import op

revision = "0008"
down_revision = "0007"


def upgrade() -> None:
    """Create the index."""
    op.create_index("episodes_by_age", "episodes", ["place", "ended_at"])
