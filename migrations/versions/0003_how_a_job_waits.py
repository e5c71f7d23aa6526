"""How a job waits: its retries and requeues, when it may start, and why it was cancelled where nobody did."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

COUNTS = ("retries", "requeues")


def upgrade() -> None:
    """Add the columns."""
    for name in COUNTS:
        op.add_column("jobs", sa.Column(name, sa.Integer, nullable=False, server_default="0"))
    op.add_column("jobs", sa.Column("begins_at", sa.DateTime(timezone=True), nullable=True))
    op.add_column("jobs", sa.Column("because", sa.Text, nullable=True))


def downgrade() -> None:
    """Drop them."""
    for name in ("because", "begins_at", *reversed(COUNTS)):
        op.drop_column("jobs", name)
