"""How a job waits and runs again; the members of arrays, and the progress of arrays."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

COUNTS = ("retries", "requeues")
#: For a member: its array and index. For an array: the indexes that no device has taken yet, and the held ones.
OF_ARRAYS = {"array_id": sa.BigInteger, "array_index": sa.Integer, "array_left": sa.Text, "array_held": sa.Text}
MEMBERS = "ix_jobs_array_id_array_index"


def upgrade() -> None:
    """Add the columns, and the index that finds the members of an array."""
    for name in COUNTS:
        op.add_column("jobs", sa.Column(name, sa.Integer, nullable=False, server_default="0"))
    op.add_column("jobs", sa.Column("begins_at", sa.DateTime(timezone=True), nullable=True))
    op.add_column("jobs", sa.Column("because", sa.Text, nullable=True))
    for name, kind in OF_ARRAYS.items():
        op.add_column("jobs", sa.Column(name, kind, nullable=True))
    members = sa.text("array_id IS NOT NULL")
    op.create_index(op.f(MEMBERS), "jobs", ["array_id", "array_index"], sqlite_where=members, postgresql_where=members)


def downgrade() -> None:
    """Drop the index and the columns."""
    op.drop_index(op.f(MEMBERS), "jobs")
    for name in (*reversed(OF_ARRAYS), "because", "begins_at", *reversed(COUNTS)):
        op.drop_column("jobs", name)
