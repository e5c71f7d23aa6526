"""Part of ``why``: the devices that are reserved for a job, or why none is.

Pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime

from gpuqueue.client.why import Why
from gpuqueue.clock import from_epoch_ms
from gpuqueue.model.job import JobState, WaitReason
from gpuqueue.queue.explanation import NEVER_THERE
from gpuqueue.text.sanitize import plain
from gpuqueue.words import times
from gpuqueue.words.times import clock
from gpuqueue.words.why.names import count, label, named

#: Most hosts with a line of their own.
MOST_HOSTS = 3
#: Reasons of a job that waits only for room on a device.
_FOR_ROOM = {None, WaitReason.MEMORY, WaitReason.SLOTS, WaitReason.RESERVATION}

#: Job with a reservation on a host -> time of the reservation.
Holders = Mapping[int, "datetime | None"]


def reserved_lines(found: Why, now: datetime) -> Iterator[str]:
    """Yield a line for each device that is reserved for this job, and for each host of :func:`reserved_for_others`.

    If there is neither, yield why nothing is reserved for a job that has waited long enough.
    """
    own = _ids(found)
    for uuid, status in found.devices.items():
        if status.reservation is not None and status.reservation.job_id in own:
            where = f"{label(found, uuid)}{_since(status.reservation.since)}"
            yield f"reserved for this job: {where}; others start there only if that does not delay it"
    hosts = reserved_for_others(found, now)
    rule = f"a host reserves devices for {count(found.reservations, 'job')} at a time (setting reservations)"
    for host, holders in list(hosts.items())[:MOST_HOSTS]:
        jobs = " and ".join(named(found, each) + _since(at) for each, at in holders.items())
        yield f"reserved on {plain(host)} for {jobs}; nothing is reserved for this job yet: {rule}"
    if len(hosts) > MOST_HOSTS:
        yield f"reserved on {len(hosts) - MOST_HOSTS} more hosts: see gpuqueue gpus"
    if not hosts:
        yield from _not_reserved(found, now)


def _not_reserved(found: Why, now: datetime) -> Iterator[str]:
    """Yield why no device is reserved for a job that has waited long enough. The rules: docs/explanation/order.md."""
    explanation = found.explanation
    start = explanation.start if explanation is not None else None
    if explanation is None or start is None or start.in_vain or not _may_have_reservation(found, now):
        return
    if explanation.reserve_from_ms is not None:
        until = clock(explanation.reserve_from_ms)
        yield f"nothing is reserved for any job before {until}: many devices were reserved until now"
    else:
        is_alone = all(each.reservation is None for each in found.devices.values())
        others = "" if is_alone else "devices are reserved for other jobs, or "
        yield f"nothing is reserved for this job yet: {others}the runs in its way are not likely to end soon enough"


def _since(at: datetime | None) -> str:
    return f" since {times.when(at)}" if at is not None else ""


def reserved_for_others(found: Why, now: datetime) -> dict[str, Holders]:
    """Return the hosts that have their maximum of reservations, so that this job gets none there.

    The result is empty if the job has not waited long enough, could start now, or has a reservation.
    """
    explanation = found.explanation
    if explanation is None or not _may_have_reservation(found, now):
        return {}
    possible = {device.host for device in explanation.devices if device.obstacle not in NEVER_THERE}
    hosts: dict[str, dict[int, datetime | None]] = {host: {} for host in sorted(possible)}
    for status in found.devices.values():
        if status.reservation is not None and status.host in hosts:
            hosts[status.host][status.reservation.job_id] = status.reservation.since
    return {host: holders for host, holders in hosts.items() if len(holders) >= found.reservations}


def _may_have_reservation(found: Why, now: datetime) -> bool:
    """Return whether the job has waited long enough for a reservation, and has none."""
    if found.reserve_after_s is None or not found.reservations or not _wants_room(found, now):
        return False
    own = _ids(found)
    return not any(each.reservation and each.reservation.job_id in own for each in found.devices.values())


def _ids(found: Why) -> set[int | None]:
    """Return the id of the job, and that of its array: a reservation of an array is for its next member."""
    return {found.job.id, found.job.member.array_id if found.job.member is not None else None}


def _wants_room(found: Why, now: datetime) -> bool:
    """Return whether the job waits only for room, and has waited long enough for a reservation."""
    job, explanation = found.job, found.explanation
    if explanation is None or explanation.limits or job.state is not JobState.QUEUED:
        return False
    could_start = explanation.start is not None and not explanation.start.blockers
    if explanation.waits_since_ms is None or could_start:
        return False
    waited_s = (now - from_epoch_ms(explanation.waits_since_ms)).total_seconds()
    return job.reason in _FOR_ROOM and waited_s >= (found.reserve_after_s or 0.0)
