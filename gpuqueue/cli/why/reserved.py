"""Of ``why``: that nothing is kept for a job since its hosts keep devices for others. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime

from gpuqueue.cli.output import render
from gpuqueue.cli.why.table import count, named
from gpuqueue.client.why import Why
from gpuqueue.clock import SystemClock, from_epoch_ms
from gpuqueue.model.job import JobState, WaitReason
from gpuqueue.queue.explanation import NEVER_THERE
from gpuqueue.text.sanitize import plain

#: For how long a device is kept before that is no reason any more that nothing is kept for the next: ``reserve.lua``.
STANDS_S = 60.0
#: Most hosts that are told of: each has a line.
MOST_HOSTS = 3
#: Why a job waits that would start if there were room.
_FOR_ROOM = {None, WaitReason.MEMORY, WaitReason.SLOTS, WaitReason.RESERVATION}

#: Jobs for which a host keeps devices -> since when.
Holders = Mapping[int, "datetime | None"]


def kept_lines(found: Why) -> Iterator[str]:
    """Yield for whom each host keeps devices that would keep some for this job, and since when."""
    hosts = kept_for_others(found, SystemClock().now())
    rule = f"a host keeps devices for {count(found.reservations, 'job')} at a time (setting reservations)"
    for host, holders in list(hosts.items())[:MOST_HOSTS]:
        jobs = " and ".join(named(found, each) + _since(at) for each, at in holders.items())
        yield f"kept   on {plain(host)} for {jobs}; nothing is kept for this job yet: {rule}"
    if len(hosts) > MOST_HOSTS:
        yield f"kept   so it is on {len(hosts) - MOST_HOSTS} more: see gpuqueue gpus"


def _since(at: datetime | None) -> str:
    return f" since {render.when(at)}" if at is not None else ""


def kept_for_others(found: Why, now: datetime) -> dict[str, Holders]:
    """Return the hosts that keep devices for as many jobs as they may, and nothing for this one, which has waited long.

    What has been kept for longer than a job must wait for it does not count: see ``reserve.lua``. Nothing where the job
    could start, or has a device kept for it.
    """
    explanation, after_s = found.explanation, found.reserve_after_s
    if explanation is None or after_s is None or not found.reservations or not _wants_room(found, now):
        return {}
    kept = [(status.host, status.kept) for status in found.devices.values() if status.kept is not None]
    own = {found.job.id, found.job.member.array_id if found.job.member is not None else None}
    if any(each.job_id in own for _, each in kept):
        return {}
    possible = {device.host for device in explanation.devices if device.obstacle not in NEVER_THERE}
    hosts: dict[str, dict[int, datetime | None]] = {host: {} for host in sorted(possible)}
    for host, each in kept:
        age_s = (now - each.since).total_seconds() if each.since is not None else 0.0
        if host in hosts and age_s <= max(after_s, STANDS_S):
            hosts[host][each.job_id] = each.since
    return {host: holders for host, holders in hosts.items() if len(holders) >= found.reservations}


def _wants_room(found: Why, now: datetime) -> bool:
    """Return whether the job has waited so long that devices are kept for such a job, and for nothing but room."""
    job, explanation = found.job, found.explanation
    if explanation is None or explanation.limit is not None or job.state is not JobState.QUEUED:
        return False
    could_start = explanation.start is not None and not explanation.start.blockers
    if explanation.waits_since_ms is None or could_start:
        return False
    waited_s = (now - from_epoch_ms(explanation.waits_since_ms)).total_seconds()
    return job.reason in _FOR_ROOM and waited_s >= (found.reserve_after_s or 0.0)


def kept_to_plain(found: Why) -> list[dict[str, object]]:
    """Return what ``why --json`` shows of it."""
    return [
        {"host": host, "job_id": job_id, "since": at.isoformat(timespec="milliseconds") if at else None}
        for host, holders in kept_for_others(found, SystemClock().now()).items()
        for job_id, at in holders.items()
    ]
