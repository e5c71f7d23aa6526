"""Jobs of a time are found with their ids, so that a page in the order of ids begins where that time does."""

from __future__ import annotations

from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

WITHOUT, WITH = "ix_jobs_submitted_at", "ix_jobs_submitted_at_id"


def upgrade() -> None:
    """Put the id into the index of the time of submission."""
    op.create_index(op.f(WITH), "jobs", ["submitted_at", "id"])
    op.drop_index(op.f(WITHOUT), "jobs")


def downgrade() -> None:
    """Take it out again."""
    op.create_index(op.f(WITHOUT), "jobs", ["submitted_at"])
    op.drop_index(op.f(WITH), "jobs")
