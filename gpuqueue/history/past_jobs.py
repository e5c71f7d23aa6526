"""Reads the newest ended jobs of a period with their runs, for a replay of what was learned from them.

The work is bounded by MOST_REPLAYED jobs, whatever the period. An index on the time of the end finds the jobs.
"""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from gpuqueue.history.past_runs import MOST_SPEC_BYTES, TELLING, codes_of, is_probe, runs_of
from gpuqueue.history.rows import parts
from gpuqueue.history.tables import jobs, run_devices, runs
from gpuqueue.learning.past_run import Proof
from gpuqueue.learning.replay import PastJob

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from datetime import datetime

    from gpuqueue.history.past_runs import Code
    from gpuqueue.learning.past_run import PastRun

#: Most jobs that are read. A replay of this many takes about a second, and some seconds for large sweeps.
MOST_REPLAYED = 2000

#: The number of leading columns that a single run needs, those of QUERY. The others are about the job.
_OF_JOB = 17


def past_jobs(
    connection: sa.Connection, *, since: datetime, until: datetime, user: str | None, limit: int = MOST_REPLAYED
) -> tuple[list[PastJob], bool]:
    """Return the newest *limit* jobs that ended from *since* to *until* and whose last run shows a need, by id.

    *user* is the submitting account, None for all. The second value says whether the period has more such jobs.
    """
    newest = _newest(since, until, user, limit + 1)
    is_cut = (connection.scalar(sa.select(sa.func.count()).select_from(newest)) or 0) > limit
    rows = connection.execute(_with_runs(newest)).all()
    grouped = [list(each) for _, each in groupby(rows, key=lambda row: row.id)]
    if len(grouped) > limit:
        oldest = min(range(len(grouped)), key=lambda place: grouped[place][0].job_ended_at)
        del grouped[oldest]
    known = codes_of(_arrays(connection, {row.array_id for row in rows} - {None}))
    return [_job(each, known) for each in grouped], is_cut


def _newest(since: datetime, until: datetime, user: str | None, limit: int) -> sa.Subquery:
    wanted = (
        sa.select(jobs.c.id)
        .where(sa.text(f"({TELLING})"), jobs.c.ended_at >= since, jobs.c.ended_at < until)
        .where(jobs.c.program.is_not(None))
        .order_by(jobs.c.ended_at.desc())
        .limit(limit)
    )
    return (wanted if user is None else wanted.where(jobs.c.user_name == user)).subquery("newest")


def _with_runs(newest: sa.Subquery) -> sa.Select[Any]:
    """Return a query whose rows begin with the columns of :data:`gpuqueue.history.past_runs.QUERY`, in its order."""
    spec = sa.case((sa.func.length(jobs.c.spec) <= MOST_SPEC_BYTES, jobs.c.spec), else_="")
    of_run = jobs.c.id, runs.c.attempt, runs.c.ending, runs.c.exit_code
    of_job = (
        *(jobs.c.command, jobs.c.interpreter, spec.label("spec"), jobs.c.array_id),
        *(jobs.c.mem_bytes, jobs.c.mem_retries),
    )
    device = (
        *(run_devices.c.lease_bytes, run_devices.c.peak_bytes, run_devices.c.peak_source, run_devices.c.samples),
        *(run_devices.c.kind, run_devices.c.name, run_devices.c.total_bytes),
    )
    more = (
        *(jobs.c.user_name, jobs.c.program, jobs.c.submitted_at, jobs.c.ended_at.label("job_ended_at")),
        runs.c.duration_s,
    )
    source = (
        newest.join(jobs, jobs.c.id == newest.c.id)
        .join(runs, runs.c.job_id == jobs.c.id)
        .join(run_devices, (run_devices.c.job_id == runs.c.job_id) & (run_devices.c.attempt == runs.c.attempt))
    )
    return (
        sa.select(*of_run, *of_job, *device, *more)
        .select_from(source)
        .where(runs.c.ending.is_not(None))
        .order_by(jobs.c.id, runs.c.attempt.desc(), run_devices.c.device_index)
    )


def _arrays(connection: sa.Connection, ids: Iterable[int]) -> dict[int, str]:
    """Return the requests of arrays by their ids, without those that are too long."""
    found: dict[int, str] = {}
    for some in parts(ids):
        wanted = sa.select(jobs.c.id, jobs.c.spec).where(jobs.c.id.in_(some))
        short = wanted.where(sa.func.length(jobs.c.spec) <= MOST_SPEC_BYTES)
        found.update({row.id: row.spec for row in connection.execute(short)})
    return found


def _job(rows: Sequence[sa.Row[Any]], known: Mapping[int, Code]) -> PastJob:
    """Return the job with these *rows*, newest run first, one for each device of each run."""
    attempts = [list(each) for _, each in groupby(rows, key=lambda row: row.attempt)]
    last, first = attempts[0], attempts[-1]
    proved = runs_of([[tuple(row)[:_OF_JOB] for row in each] for each in attempts], known)
    job = last[0]
    return PastJob(
        id=job.id,
        program=(job.user_name, job.program),
        runs=tuple(run for run in proved if run is not None),
        is_known=_is_known(proved[0], job),
        asked_bytes=max(row.lease_bytes for row in first),
        used_bytes=sum(row.peak_bytes or 0 for row in last),
        devices=len(last),
        duration_s=job.duration_s or 0.0,
        submitted_at=job.submitted_at,
        ended_at=job.job_ended_at,
    )


def _is_known(run: PastRun | None, job: sa.Row[Any]) -> bool:
    """Return whether the need of the last *run* is known. A probe has the whole device, which nobody asked for."""
    return run is not None and run.proof is Proof.PEAK and bool(job.duration_s) and not is_probe(job.spec)
