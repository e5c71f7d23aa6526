"""Count the runs of each job that followed a lack of device memory."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the column."""
    op.add_column("jobs", sa.Column("mem_retries", sa.Integer, nullable=False, server_default="0"))
