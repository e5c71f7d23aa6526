"""Add repeating jobs."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None

TABLE = "repeating_jobs"
MOMENT = sa.DateTime(timezone=True)


def upgrade() -> None:
    """Create the table."""
    op.create_table(
        TABLE,
        sa.Column("id", sa.Text, nullable=False),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("account", sa.Text, nullable=False),
        sa.Column("uid", sa.BigInteger, nullable=False),
        sa.Column("host", sa.Text, nullable=False),
        sa.Column("token_id", sa.Text),
        sa.Column("times", sa.Text, nullable=False),
        sa.Column("zone", sa.Text, nullable=False),
        sa.Column("overlap", sa.Boolean, nullable=False),
        sa.Column("catch_up", sa.Boolean, nullable=False),
        sa.Column("request", sa.Text, nullable=False),
        sa.Column("seal", sa.Text),
        sa.Column("made_at", MOMENT, nullable=False),
        sa.Column("next_at", MOMENT),
        sa.Column("stopped", sa.Text),
        sa.Column("begun_at", MOMENT),
        sa.Column("begun_job_id", sa.BigInteger),
        sa.Column("last_at", MOMENT),
        sa.Column("last_job_id", sa.BigInteger),
        sa.Column("missed", sa.Integer, nullable=False),
        sa.Column("missed_at", MOMENT),
        sa.Column("missed_why", sa.Text),
        sa.PrimaryKeyConstraint("id", name=op.f(f"pk_{TABLE}")),
        sa.UniqueConstraint("account", "uid", "name", name=op.f(f"uq_{TABLE}_account_uid_name")),
        sa.CheckConstraint("(begun_at IS NULL) = (begun_job_id IS NULL)", name=op.f(f"ck_{TABLE}_begun_has_id")),
        sa.CheckConstraint("(next_at IS NULL) = (stopped IS NOT NULL)", name=op.f(f"ck_{TABLE}_stopped_has_reason")),
    )
