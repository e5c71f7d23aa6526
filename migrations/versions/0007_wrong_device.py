"""Allow the ending of a run that used a device that it was not given."""

from __future__ import annotations

from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None

NAME = "ck_runs_ending_known"
ENDINGS = (
    "ending IN ('exited', 'signalled', 'out_of_memory', 'timed_out', 'cancelled', 'preempted', 'idle', 'wrong_device',"
    " 'refused', 'lost')"
)


def upgrade() -> None:
    """Replace the check of the endings. SQLite copies the table for that."""
    with op.batch_alter_table("runs") as runs:
        runs.drop_constraint(op.f(NAME), type_="check")
        runs.create_check_constraint(op.f(NAME), ENDINGS)
