"""Reads the earlier runs of a program."""

from __future__ import annotations

from typing import TYPE_CHECKING

import sqlalchemy as sa

from gpuqueue.history.past_runs import ARRAYS, QUERY, arrays_of, past_runs

if TYPE_CHECKING:
    from gpuqueue.learning.past_run import PastRun

_QUERY, _ARRAYS = sa.text(QUERY), sa.text(ARRAYS)


def runs_of(connection: sa.Connection, user: str, program: str) -> tuple[PastRun, ...]:
    """Return the runs of *program* by *user* that show a need, newest first."""
    rows = connection.execute(_QUERY, {"user": user, "program": program}).all()
    arrays = [connection.execute(_ARRAYS, {"id": each}).one_or_none() for each in arrays_of(rows)]
    return past_runs(rows, {row.id: row.spec for row in arrays if row is not None})
