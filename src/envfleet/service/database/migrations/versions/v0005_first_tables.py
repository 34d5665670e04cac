"""The tables of the first release: a new database gets them from the models, so there is nothing to change."""

from __future__ import annotations

revision = "0005"
down_revision = None


def upgrade() -> None:
    """Change nothing."""
