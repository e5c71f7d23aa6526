"""Adds the id to the index on submission times, so that a page in the order of ids can begin at a time."""

from __future__ import annotations

from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

WITHOUT, WITH = "ix_jobs_submitted_at", "ix_jobs_submitted_at_id"


def upgrade() -> None:
    """Replace the index on submission times by one that includes the id."""
    op.create_index(op.f(WITH), "jobs", ["submitted_at", "id"])
    op.drop_index(op.f(WITHOUT), "jobs")


def downgrade() -> None:
    """Restore the index without the id."""
    op.create_index(op.f(WITHOUT), "jobs", ["submitted_at"])
    op.drop_index(op.f(WITH), "jobs")
