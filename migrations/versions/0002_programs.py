"""Add the program of each job, by which the runs of one script are found, and its index."""

from __future__ import annotations

import shlex
from typing import Any

import sqlalchemy as sa
from alembic import op

from gpuqueue.learning.signature import program_of

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

#: Jobs that are read and written at a time.
PAGE = 5000
#: The jobs whose last run shows how much memory the program needs.
TELLING = "exit_code = 0 OR ending IN ('timed_out', 'out_of_memory')"

jobs = sa.table(
    "jobs",
    *(sa.column(name) for name in ("id", "command", "script", "interpreter", "cwd", "program")),
)


def upgrade() -> None:
    """Add the column, fill it, and make the index. The text index does not concern the new column."""
    op.add_column("jobs", sa.Column("program", sa.Text))
    _fill(op.get_bind())
    op.create_index(
        "ix_jobs_user_name_program_id",
        "jobs",
        ["user_name", "program", "id"],
        sqlite_where=sa.text(TELLING),
        postgresql_where=sa.text(TELLING),
    )


def _fill(connection: sa.Connection) -> None:
    """Set the program of the jobs from whose runs something can be learned."""
    last = 0
    change = sa.update(jobs).where(jobs.c.id == sa.bindparam("of")).values(program=sa.bindparam("found"))
    while True:
        page = sa.select(jobs).where(jobs.c.id > last, sa.text(f"({TELLING})")).order_by(jobs.c.id).limit(PAGE)
        rows = connection.execute(page).all()
        if not rows:
            return
        last = rows[-1].id
        connection.execute(change, [{"of": row.id, "found": _program(row)} for row in rows])


def _program(row: Any) -> str | None:
    """Return the program of a job, None for a command that cannot be split."""
    try:
        words = shlex.split(row.command)
    except ValueError:
        return None
    return program_of(words, row.script, row.cwd) if words else None
