"""What users add to a job: a place at the front, tags, a note."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the columns, and the table of tags."""
    op.add_column("jobs", sa.Column("front", sa.BigInteger, nullable=True))
    op.add_column("jobs", sa.Column("note", sa.Text, nullable=True))
    op.create_table(
        "job_tags",
        sa.Column("job_id", sa.BigInteger, autoincrement=False, nullable=False),
        sa.Column("tag", sa.Text, autoincrement=False, nullable=False),
        sa.PrimaryKeyConstraint("job_id", "tag", name=op.f("pk_job_tags")),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=op.f("fk_job_tags_jobs"), ondelete="CASCADE"),
    )
    op.create_index(op.f("ix_job_tags_tag_job_id"), "job_tags", ["tag", "job_id"])


def downgrade() -> None:
    """Drop the table and the columns."""
    op.drop_table("job_tags")
    op.drop_column("jobs", "note")
    op.drop_column("jobs", "front")
