"""Of ``why``: whose place a job may take, where its site lets its level do so (``preempt.lua``). Pure."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta

from gpuqueue.cli import render
from gpuqueue.cli.why_table import named
from gpuqueue.clock import SystemClock
from gpuqueue.job import Job, JobState
from gpuqueue.queue.explanation import NEVER_THERE
from gpuqueue.units import format_duration
from gpuqueue.why import Why

#: Most runs that are named: the store chooses among them, by the work that would be lost.
MOST_RUNS = 4


def place_lines(found: Why) -> Iterator[str]:
    """Yield of whose runs the job may take the place, and from when on."""
    runs = runs_below(found)
    if not runs:
        return
    names = [named(found, job.id) + _from(at) for job, at in runs[:MOST_RUNS]]
    more = f" or {len(runs) - MOST_RUNS} more" if len(runs) > MOST_RUNS else ""
    left = format_duration(found.preempt_grace_s)
    yield f"it may take the place of {' or '.join(names)}{more}; whoever must go has {left} for that"


def _from(at: datetime) -> str:
    return f" from {render.when(at)} on" if at > SystemClock().now() else ""


def runs_below(found: Why) -> list[tuple[Job, datetime]]:
    """Return the runs in the way that may be asked to go for this job, and from when on, the earliest first.

    None where there is room, or it waits for something else. Which of them go the store decides, at its next tick.
    """
    explanation = found.explanation
    if explanation is None or found.job.state is not JobState.QUEUED or explanation.limit is not None:
        return []
    if explanation.start is not None and not explanation.start.blockers:
        return []
    ids = {run.job_id for each in explanation.devices if each.obstacle not in NEVER_THERE for run in each.runs}
    runs = [found.others[each] for each in sorted(ids) if each in found.others]
    after = timedelta(seconds=found.preempt_after_s)
    may = [(job, job.started_at + after) for job in runs if job.started_at is not None and _may_go(found, job)]
    return sorted(may, key=lambda each: (each[1], each[0].id))


def _may_go(found: Why, job: Job) -> bool:
    level = job.spec.level if job.lifted is None else job.lifted
    return job.state is JobState.RUNNING and job.spec.requeue and level in found.preempts
