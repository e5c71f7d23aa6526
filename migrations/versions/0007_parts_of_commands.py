"""A part of a command or of a note is found by an index, where the database can have one.

The index is made of nothing but the jobs, and made anew wherever it is missing: so it is described in one place, with
those who ask it and those who mend it, and not once more here.
"""

from __future__ import annotations

from alembic import op

from gpuqueue.history import text_index

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Make it, of all jobs that are there. Where it cannot be had, ``gpuqueue db upgrade`` tries again each time."""
    text_index.make(op.get_bind())


def downgrade() -> None:
    """Take it away."""
    text_index.drop(op.get_bind())
