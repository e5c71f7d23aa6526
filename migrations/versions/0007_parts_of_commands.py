"""The index that finds a part of a command or of a note, if the database supports it.

The index is derived from the jobs alone, and recreated wherever it is missing. Therefore only
:mod:`gpuqueue.history.text_index` defines it, and this migration does not repeat the definition.
"""

from __future__ import annotations

from alembic import op

from gpuqueue.history import text_index

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create the index of all existing jobs.

    If the database does not support it, each ``gpuqueue db upgrade`` tries again.
    """
    text_index.make(op.get_bind())


def downgrade() -> None:
    """Drop the index."""
    text_index.drop(op.get_bind())
