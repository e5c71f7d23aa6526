"""Add what the ending of a run does not say."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the column. Earlier runs have no notes."""
    op.add_column("runs", sa.Column("notes", sa.Text))
