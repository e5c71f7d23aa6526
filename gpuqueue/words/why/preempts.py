"""Part of ``why``: the runs that a job may preempt, by the rules of ``preempt.lua``. Pure apart from the clock."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta

from gpuqueue.client.why import Why
from gpuqueue.clock import SystemClock
from gpuqueue.model.job import Job, JobState
from gpuqueue.model.placement import EXTERNAL_SHARE
from gpuqueue.model.preemption import MOST
from gpuqueue.queue.explanation import NEVER_THERE, Explanation, Obstacle, Occupant, Verdict
from gpuqueue.text.units import format_duration
from gpuqueue.words import times
from gpuqueue.words.why.names import named

#: Most runs that are named. The store chooses among all of them, by the least work lost.
MOST_RUNS = 4
#: Obstacles of a device on which no run is preempted for the job.
_SHUT = NEVER_THERE | {Obstacle.DRAINED, Obstacle.SILENT}


def place_lines(found: Why) -> Iterator[str]:
    """Yield the line about the runs that the job may preempt, and from when on; nothing if there are none."""
    runs = runs_below(found)
    if not runs:
        return
    names = [named(found, job.id) + _from(at) for job, at in runs[:MOST_RUNS]]
    more = f" or {len(runs) - MOST_RUNS} more" if len(runs) > MOST_RUNS else ""
    left = format_duration(found.preempt_grace_s)
    yield f"it may preempt {' or '.join(names)}{more}; a preempted job has {left} to end"


def _from(at: datetime) -> str:
    return f" from {times.when(at)} on" if at > SystemClock().now() else ""


def runs_below(found: Why) -> list[tuple[Job, datetime]]:
    """Return the jobs whose runs this job may preempt, and from when on, the earliest first.

    The list is empty if there is room, if the job waits for something else, or if preempting all of them does not make
    enough room. The store chooses among them at its next tick.
    """
    explanation = found.explanation
    if explanation is None or found.job.state is not JobState.QUEUED or explanation.limits:
        return []
    if found.job.promoted is not None or (explanation.start is not None and not explanation.start.blockers):
        return []
    after = timedelta(seconds=found.preempt_after_s)
    ids = {run.job_id for each in _could_have(found, explanation) for run in each.runs if _may_go(found, run)}
    runs = [found.others[each] for each in sorted(ids)]
    may = [(job, job.started_at + after) for job in runs if job.started_at is not None]
    return sorted(may, key=lambda each: (each[1], each[0].id))


def _could_have(found: Why, explanation: Explanation) -> list[Verdict]:
    """Return the devices that have room for the job only after preemption, on hosts with enough of them."""
    possible = [
        each
        for each in explanation.devices
        if each.device in found.devices
        and _may_take(found, each)
        and each.obstacle not in _SHUT
        and _fits(found, each, _stay(found, each.runs))
    ]
    enough = found.with_enough(possible)
    return [each for each in enough if not _fits(found, each, [run for run in each.runs if not run.going])]


def _may_take(found: Why, device: Verdict) -> bool:
    """Return whether *device* is reserved for no other job, or for a job of a priority that may be preempted."""
    if device.reserved_for in {None, found.job.id}:
        return True
    holder = found.others.get(device.reserved_for)
    if holder is None:
        return False
    return (holder.spec.priority if holder.promoted is None else holder.promoted) in found.preempts


def _stay(found: Why, runs: Sequence[Occupant]) -> list[Occupant]:
    return [run for run in runs if not run.going and not _may_go(found, run)]


def _fits(found: Why, device: Verdict, stay: Sequence[Occupant]) -> bool:
    """Return whether the job fits on *device* if only the runs *stay* remain, by the rules of ``preempt.lua``."""
    spec, status = found.job.spec, found.devices[device.device]
    if spec.placement.exclusive and stay:
        return False
    if spec.placement.whole and (status.external_bytes or 0) * EXTERNAL_SHARE > device.total_bytes:
        return False  # external processes cannot be preempted
    free_bytes = device.capacity_bytes - sum(run.held_bytes for run in stay)
    return free_bytes >= spec.mem_bytes and len(stay) < status.slots


def _may_go(found: Why, run: Occupant) -> bool:
    job = found.others.get(run.job_id)
    if job is None or job.state is not JobState.RUNNING or job.started_at is None or run.going:
        return False
    priority = job.spec.priority if run.priority is None else run.priority
    return job.spec.requeue and priority in found.preempts and run.preemptions < MOST
