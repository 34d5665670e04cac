"""No index of the worst episodes: a score depends on nobody else's."""

from __future__ import annotations

from alembic import op

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    """Drop the index."""
    op.drop_index("episodes_finished", table_name="episodes")
