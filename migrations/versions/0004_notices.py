"""Notifications about the ends of jobs, and their outcomes."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

UNSENT = "ix_notices_job_id"


def upgrade() -> None:
    """Create the table, and the index that finds unsent notifications."""
    op.create_table(
        "notices",
        sa.Column("job_id", sa.BigInteger, autoincrement=False, nullable=False),
        sa.Column("number", sa.Integer, autoincrement=False, nullable=False),
        sa.Column("tries", sa.Integer, nullable=False),
        sa.Column("next_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("outcome", sa.Text, nullable=True),
        sa.Column("at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("trouble", sa.Text, nullable=True),
        sa.PrimaryKeyConstraint("job_id", "number", name=op.f("pk_notices")),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=op.f("fk_notices_jobs"), ondelete="CASCADE"),
        sa.CheckConstraint("outcome IN ('sent', 'given_up', 'not_needed')", name=op.f("ck_notices_outcome_known")),
        sa.CheckConstraint("(outcome IS NULL) = (at IS NULL)", name=op.f("ck_notices_outcome_has_time")),
    )
    unsent = sa.text("outcome IS NULL")
    op.create_index(op.f(UNSENT), "notices", ["job_id"], sqlite_where=unsent, postgresql_where=unsent)


def downgrade() -> None:
    """Drop the table."""
    op.drop_table("notices")
