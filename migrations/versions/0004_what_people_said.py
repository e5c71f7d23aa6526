"""What people said of a job: that it goes first."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the column."""
    op.add_column("jobs", sa.Column("front", sa.BigInteger, nullable=True))


def downgrade() -> None:
    """Drop it."""
    op.drop_column("jobs", "front")
