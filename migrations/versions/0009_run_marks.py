"""Add the marks of runs that looked wrong, and allow the endings of runs that were ended for that."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None

NAME = "ck_runs_ending_known"
ENDINGS = (
    "ending IN ('exited', 'signalled', 'out_of_memory', 'timed_out', 'cancelled', 'preempted', 'idle', 'wrong_device',"
    " 'nan', 'stalled', 'refused', 'lost')"
)


def upgrade() -> None:
    """Add the column, and replace the check of the endings. SQLite copies the table for that."""
    with op.batch_alter_table("runs") as runs:
        runs.add_column(sa.Column("marks", sa.Text))
        runs.drop_constraint(op.f(NAME), type_="check")
        runs.create_check_constraint(op.f(NAME), ENDINGS)
