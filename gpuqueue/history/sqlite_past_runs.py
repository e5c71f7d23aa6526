"""A fast reader for the earlier runs of a program in a SQLite history database, with the standard library alone.

``gpuqueue submit`` uses it: importing SQLAlchemy would take longer than the rest of the command.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuqueue.history.past_runs import ARRAYS, QUERY, arrays_of, past_runs
from gpuqueue.history.sqlite_file import reading

if TYPE_CHECKING:
    from gpuqueue.learning.past_run import PastRun

#: How long to wait for a locked file, in seconds. A submit must not wait longer.
WAIT_S = 0.1


def runs_of(url: str, user: str, program: str) -> tuple[PastRun, ...]:
    """Return the runs of *program* by *user* that show a need, newest first.

    Raises:
        Shut: this reader cannot answer.

    """
    with reading(url, WAIT_S) as connection:
        rows = connection.execute(QUERY, {"user": user, "program": program}).fetchall()
        arrays = [connection.execute(ARRAYS, {"id": each}).fetchone() for each in arrays_of(rows)]
        return past_runs(rows, dict(filter(None, arrays)))
