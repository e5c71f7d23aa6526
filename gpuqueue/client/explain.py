"""Asks the queue and the history why a job waits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gpuqueue.client import reads
from gpuqueue.client.connection import Connection
from gpuqueue.client.why import Usual, Why, named_by, usual_of
from gpuqueue.clock import from_epoch_ms
from gpuqueue.errors import HistoryUnreachable, Unreadable
from gpuqueue.model.array import Member
from gpuqueue.model.job import Job, JobState
from gpuqueue.model.preemption import parse_preempt
from gpuqueue.queue.explanation import Explanation
from gpuqueue.queue.lease import SILENT_HEARTBEATS


def why(connection: Connection, job: int | str) -> Why:
    """Return why a job waits: what blocks it on each device, its place in the order, when it may start.

    Raises:
        JobNotFound: the job does not exist.

    """
    asked = reads.by_its_members(connection, reads.get(connection, job))
    explanation = connection.queue.jobs.why(asked.id)
    if explanation is None and asked.member is not None and not asked.state.is_end:
        explanation = _with_its_array(connection, asked.member)
    if explanation is None or explanation.state not in {JobState.QUEUED, JobState.HELD}:
        place = explanation.preemption if explanation is not None else None
        by = None if place is None or place.by is None else _seen(connection, place.by)
        return Why(job=asked, preemption=place, others={} if by is None else {by.id: by})
    devices = {status.device.uuid: status for status in connection.queue.devices.all()}
    named = named_by(explanation) | {each.job_id for each in asked.awaits}
    named |= {status.reservation.job_id for status in devices.values() if status.reservation is not None}
    others = {each: other for each in named if (other := _seen(connection, each)) is not None}
    usual, outlived = _usual(connection, _unlimited(explanation, others))
    settings = connection.settings
    return Why(
        job=asked,
        explanation=explanation,
        devices=devices,
        others=others,
        usual=usual,
        outlived=outlived,
        reserve_after_s=settings.reserve_after_s,
        reservations=settings.reservations,
        silent_after_s=SILENT_HEARTBEATS * settings.heartbeat_s,
        preempts=parse_preempt(settings.preempt).get(asked.spec.priority, ()),
        preempt_after_s=settings.preempt_after_s,
        preempt_grace_s=settings.preempt_grace_s,
        external_half_life_s=settings.external_half_life_s,
    )


def _with_its_array(connection: Connection, member: Member) -> Explanation | None:
    """Return why an unclaimed member waits: the explanation of its array, behind the members before it."""
    queue = connection.queue
    explanation, array = queue.jobs.why(member.array_id), queue.jobs.get(member.array_id)
    if explanation is None or array is None or array.tally is None:
        return explanation
    return explanation.behind(array.tally.left.before(member.index))


def _unlimited(explanation: Explanation, others: Mapping[int, Job]) -> list[Job]:
    """Return the jobs whose runs block the job and have no time limit."""
    found = [others[each] for each in explanation.runs_in_the_way if each in others]
    return [each for each in found if each.spec.time_limit_s is None]


def _seen(connection: Connection, job_id: int) -> Job | None:
    try:
        return connection.queue.jobs.get(job_id)
    except Unreadable:
        return None


def _usual(connection: Connection, jobs: Sequence[Job]) -> tuple[dict[int, Usual], dict[int, int]]:
    """Return the usual durations of *jobs*, and the jobs that have outlasted all their earlier runs.

    The first mapping is from a job's id to its usual duration. The second is from the id of a job that has lasted
    longer than all earlier runs of its name to the number of those runs. If the history is unreachable, jobs are
    missing from both.
    """
    found: dict[int, Usual] = {}
    outlived: dict[int, int] = {}
    now = from_epoch_ms(connection.queue.now_ms())
    for job in jobs:
        try:
            before = connection.database.durations_s(user=job.spec.account.name, name=job.spec.name)
        except HistoryUnreachable:
            break
        elapsed_s = (now - job.started_at).total_seconds() if job.started_at else 0.0
        usual = usual_of(before, elapsed_s=elapsed_s)
        if usual is not None:
            found[job.id] = usual
        elif before:
            outlived[job.id] = len(before)
    return found, outlived
