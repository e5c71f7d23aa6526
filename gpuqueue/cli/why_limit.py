"""Of ``why``: when there must be room under the limits that are in a job's way. Pure."""

from __future__ import annotations

from gpuqueue.job import Job
from gpuqueue.limits import Measure
from gpuqueue.queue.explanation import Explanation, LimitReached
from gpuqueue.why import Why


def room_under_limit(found: Why, explanation: Explanation) -> tuple[int, tuple[int, ...]] | None:
    """Return when there must be room under the job's limits, in ms of the store's clock, and whose ends make it.

    By the time limits of the runs that use them, in the order in which they end. None where those do not make enough,
    or the room is kept for another job, or nothing is known of a run, be it under one of several limits only.
    """
    rooms = [_room_under(found, explanation, limit) for limit in explanation.limits]
    known = [each for each in rooms if each is not None]
    if not known or len(known) < len(rooms):
        return None
    return max(at_ms for at_ms, _ in known), tuple(dict.fromkeys(run for _, runs in known for run in runs))


def _room_under(found: Why, explanation: Explanation, limit: LimitReached) -> tuple[int, tuple[int, ...]] | None:
    if limit.kept_for is not None:
        return None
    ends = _ends(explanation)
    limited = sorted((at_ms, job_id) for job_id in limit.runs if (at_ms := ends.get(job_id)) is not None)
    lacking, first = limit.used + limit.asked - limit.most, []
    for at_ms, job_id in limited:
        other = found.others.get(job_id)
        first.append(job_id)
        lacking -= _uses(other, limit.measure) if other is not None else 0
        if lacking <= 0:
            return at_ms, tuple(first)
    return None


def _ends(explanation: Explanation) -> dict[int, int | None]:
    return {run.job_id: run.ends_ms for device in explanation.devices for run in device.runs}


def _uses(job: Job, measure: Measure) -> int:
    """Return how much of a limit a running *job* uses, at least: one that has its devices for itself uses more."""
    if measure is Measure.RUNNING_JOBS:
        return 1
    if measure is Measure.RUNNING_GPUS:
        return sum(not each.startswith("cpu-") for each in job.devices)
    return job.spec.mem_bytes * max(1, len(job.devices))
