"""Durations of earlier runs, for estimates about jobs without a time limit."""

from __future__ import annotations

import sqlalchemy as sa

from gpuqueue.history.tables import jobs, runs
from gpuqueue.model.run import EndingKind

#: Most runs that are considered, the newest first: the durations of old runs may no longer apply.
MOST_RUNS = 100


def durations_s(connection: sa.Connection, *, user: str, name: str) -> list[float]:
    """Return the durations in seconds of *user*'s newest runs of jobs called *name* that exited by themselves."""
    found = (
        sa.select(runs.c.duration_s)
        .join(jobs, jobs.c.id == runs.c.job_id)
        .where(jobs.c.user_name == user, jobs.c.name == name)
        .where(runs.c.ending == EndingKind.EXITED.value, runs.c.duration_s.is_not(None))
        .order_by(runs.c.job_id.desc())
        .limit(MOST_RUNS)
    )
    return list(connection.scalars(found))
