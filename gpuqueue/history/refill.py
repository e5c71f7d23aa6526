"""Writes the jobs that the store still knows to a history database that was lost or restored from a backup."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from gpuqueue.clock import to_epoch_ms
from gpuqueue.codec.request import encode_started
from gpuqueue.history.connect import writing
from gpuqueue.history.fold import Batch, fold
from gpuqueue.history.tables import jobs, runs
from gpuqueue.history.writer import move_cursor, write
from gpuqueue.model.event import Act, Cursor, Event, place
from gpuqueue.model.job import JobState

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from datetime import datetime

    from gpuqueue.model.run import Run, Survivor

#: Detail of the runs and jobs whose ending was lost with the history database.
GONE = "how it ended was lost with the history database"


def rebase(
    engine: sa.Engine,
    pages: Iterable[list[Survivor]],
    *,
    expected: Cursor | None,
    to: Cursor,
    last_given: int,
    at: datetime,
) -> int | None:
    """Write the jobs of *pages* as of *at* and move the cursor from *expected* to *to*, in one transaction.

    Outbox entries after *to* are recorded later and overwrite what is written here. A restored history database may
    list runs and jobs as active that the store does not know. They are closed as lost. *last_given* is the last job id
    that the store issued. The history database must contain this id, whatever happened to the job.

    Returns:
        The number of jobs written. None if the cursor is not at *expected*; nothing is changed then.
    """
    ids: set[int] = set()
    tokens: set[str] = set()
    with writing(engine) as connection:
        if not move_cursor(connection, expected, to):
            return None
        for page in pages:
            events = [event for survivor in page for event in _story(survivor, to, at)]
            batch = fold(events, epoch=to.epoch)
            # Only the restore event of each job happened; the others lead to its state.
            batch.events[:] = [row for row in batch.events if row["act"] == Act.RESTORE.value]
            write(connection, batch)
            ids.update(survivor.record.job.id for survivor in page)
            tokens.update(run.token for survivor in page for run in survivor.record.runs)
        if last_given and last_given not in ids:
            known = _event(last_given, to, at, Act.RESTORE, JobState.LOST, detail="the last id that was given out")
            write(connection, Batch(events=fold([known], epoch=to.epoch).events))  # without a row of a job
        _close_the_gone(connection, ids, tokens, to, at)
    return len(ids)


def _story(survivor: Survivor, to: Cursor, at: datetime) -> Iterator[Event]:
    """Yield the fewest events that lead to the job's current state.

    A job that has ended is written in its state before the end: its end is still in the outbox and is recorded later.
    """
    job = survivor.record.job
    yield _event(job.id, to, job.submitted_at, Act.SUBMIT, JobState.QUEUED, spec=survivor.payload)
    for run in survivor.record.runs:
        yield from _run_story(run, to)
    before_end = JobState.RUNNING if survivor.record.runs else JobState.QUEUED
    state = before_end if job.state.is_end else job.state
    here = job.tally
    fields = {
        **({"meant": "gpu"} if survivor.meant_for_gpu else {}),
        **({"begin": str(to_epoch_ms(job.begins_at))} if job.begins_at else {}),
        **({"tags": ",".join(job.tags)} if job.tags or job.spec.tags else {}),
        **({"note": job.note} if job.note else {}),
        **({"front": str(job.front)} if job.front is not None else {}),
        **({"because": job.because} if job.because else {}),
        **({"left": str(here.left), "held": str(here.held)} if here is not None else {}),
        "retries": str(job.retries),
        "requeues": str(job.requeues),
        **({"mem": str(job.spec.mem_bytes), "mem_retries": str(job.mem_retries)} if job.mem_retries else {}),
    }
    counts = {"attempt": job.attempt, "losses": job.losses}
    yield _event(job.id, to, at, Act.RESTORE, state, reason=job.reason, **counts, **fields)


def _run_story(run: Run, to: Cursor) -> Iterator[Event]:
    claimed = {
        "token": run.token,
        "host": run.host,
        "worker": run.worker,
        "devices": ",".join(device.uuid for device in run.devices),
        "lease": str(run.devices[0].lease_bytes),
        **({"start": str(run.start_kind)} if run.start_kind else {}),
    }
    yield _event(run.job_id, to, run.claimed_at, Act.CLAIM, JobState.STARTING, attempt=run.attempt, **claimed)
    if run.started_at is not None:
        started = encode_started(log_path=run.log_path or "", devices=run.devices)
        details = {"token": run.token, "started": started}
        yield _event(run.job_id, to, run.started_at, Act.STARTED, JobState.RUNNING, attempt=run.attempt, **details)


def _event(job_id: int, to: Cursor, at: datetime, act: Act, state: JobState, **given: Any) -> Event:
    """Return an event between those recorded before *to* and the later ones. No outbox entry has its id."""
    ms, _ = place(to.last_id)
    columns = {name: given.pop(name) for name in ("attempt", "losses", "reason") if name in given}
    return Event(
        id=f"{ms}-{10**9 + job_id}",
        act=act,
        job_id=job_id,
        state=state,
        at=at,
        fields=given,
        **{"attempt": 0, **columns},
    )


def _close_the_gone(connection: sa.Connection, ids: set[int], tokens: set[str], to: Cursor, at: datetime) -> None:
    """Close the runs and the jobs that are not in the store as lost."""
    for job_id, attempt, token in connection.execute(
        sa.select(runs.c.job_id, runs.c.attempt, runs.c.token).where(runs.c.ended_at.is_(None))
    ).all():
        if token not in tokens:
            gone = sa.update(runs).where(runs.c.job_id == job_id, runs.c.token == token)
            connection.execute(gone.values(ended_at=at, ending="lost", detail=GONE))
            its_job = sa.update(jobs).where(jobs.c.id == job_id, jobs.c.attempt == attempt)
            connection.execute(its_job.values(ending="lost"))
    alive = jobs.c.state.in_([state.value for state in JobState if not state.is_end])
    events = [
        _event(job_id, to, at, Act.RESTORE, JobState.LOST, attempt=attempt, losses=losses, detail=GONE)
        for job_id, attempt, losses in connection.execute(
            sa.select(jobs.c.id, jobs.c.attempt, jobs.c.losses).where(alive)
        )
        if job_id not in ids
    ]
    write(connection, fold(events, epoch=to.epoch))
