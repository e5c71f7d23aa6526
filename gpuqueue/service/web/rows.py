"""Rows of the page's tables from jobs and devices. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from gpuqueue.model.job import Job, JobState, WaitReason
from gpuqueue.model.page import DeviceRun, DeviceView, ExternalUse, Members, QueueRow
from gpuqueue.model.run import Listing
from gpuqueue.model.run_mark import without_what
from gpuqueue.queue.lease import DeviceStatus, ExternalProcess, Holding
from gpuqueue.words.values import closed_in_words, device_errors, place_of, reserved_in_words
from gpuqueue.words.waiting import waits_because

#: Most commands of external processes that a row names.
_MOST_COMMANDS = 3
#: What jobs wait for that take no room as soon as there is some.
NOT_IN_LINE = frozenset(
    {WaitReason.DEPENDENCY, WaitReason.BEGIN, WaitReason.RETRY, WaitReason.REQUEUE, WaitReason.ARRAY_LIMIT}
)


def rows_of(listing: Listing) -> dict[int, QueueRow]:
    """Return the rows of the jobs of *listing* that have not ended, by id."""
    return {job.id: _row_of(job, listing) for job in listing.jobs if not job.state.is_end}


def _row_of(job: Job, listing: Listing) -> QueueRow:
    spec, is_active = job.spec, job.state.is_active
    return QueueRow(
        id=job.id,
        label=job.label,
        name=spec.name,
        user=spec.account.name,
        uid=spec.account.uid,
        state=job.state,
        priority=spec.priority if job.promoted is None else job.promoted,
        asked_priority=spec.priority,
        mem_bytes=spec.mem_bytes,
        gpus=spec.gpus,
        submitted_at=job.submitted_at,
        whole=spec.placement.whole,
        pool=spec.pool,
        tags=job.tags,
        note=job.note,
        reason=job.reason,
        begins_at=job.begins_at,
        started_at=job.started_at if is_active else None,
        time_limit_s=spec.time_limit_s,
        host=job.host if is_active else None,
        devices=job.devices if is_active else (),
        used_bytes=listing.held_bytes.get(job.id) if is_active else None,
        idle_since=job.idle_since if is_active else None,
        marks=without_what(job.marks) if is_active else (),
        attempt=job.attempt,
        array_id=job.member.array_id if job.member is not None else None,
        members=_members(job),
        front=job.front,
    )


def in_words(rows: Iterable[QueueRow], devices: Iterable[DeviceStatus]) -> Iterator[QueueRow]:
    """Yield *rows* with what follows from them and from the known *devices*, in words."""
    known = {each.device.uuid: each.device for each in devices}
    for row in rows:
        there = [known[uuid] for uuid in row.devices if uuid in known]
        where = place_of(row.host, there) if there and row.host else row.host
        yield replace(row, waits=waits_because(row), where=where)


def _members(job: Job) -> Members | None:
    if job.spec.array is None or job.tally is None:
        return None
    tally = job.tally
    return Members(
        total=len(job.spec.array),
        waiting=len(tally.left),
        held=len(tally.held),
        ended=sum(tally.ended.values()),
        failed=sum(tally.ended.get(str(each), 0) for each in (JobState.FAILED, JobState.LOST)),
    )


def with_array_states(rows: Mapping[int, QueueRow]) -> dict[int, QueueRow]:
    """Return *rows* with what follows for each array from its members: how many run, and its state.

    The state is derived as in :mod:`gpuqueue.client.reads`.
    """
    found = dict(rows)
    states: dict[int, Counter[JobState]] = {}
    for each in rows.values():
        if each.array_id is not None and each.array_id in rows:
            states.setdefault(each.array_id, Counter())[each.state] += 1
    for array_id, there in states.items():
        row = rows[array_id]
        running = sum(number for state, number in there.items() if state.is_active)
        if running and row.members is not None:
            found[array_id] = replace(row, members=replace(row.members, running=running))
        elif not running and row.state is JobState.RUNNING:
            waits = JobState.QUEUED in there
            state, reason = (JobState.QUEUED, WaitReason.RETRY) if waits else (JobState.HELD, WaitReason.HELD)
            found[array_id] = replace(row, state=state, reason=reason)
    return found


def device_view(
    status: DeviceStatus, rows: Mapping[int, QueueRow], at: datetime, *, silent_after_s: float
) -> DeviceView:
    """Return a device with its runs, as *rows* describe them."""
    runs = tuple(_run_of(each, rows.get(each.job_id)) for each in status.holdings)
    ends = [each.ends_at for each in runs]
    known = [each for each in ends if each is not None]
    silent = status.seen_s_ago > silent_after_s
    return DeviceView(
        uuid=status.device.uuid,
        host=status.host,
        index=status.device.index,
        name=status.device.name,
        kind=status.device.kind,
        pool=status.pool,
        total_bytes=status.device.total_bytes,
        headroom_bytes=status.headroom_bytes,
        allocated_bytes=status.allocated_bytes,
        used_bytes=sum(each.used_bytes for each in runs),
        external_bytes=status.external_bytes,
        free_bytes=0 if silent or status.drains or len(runs) >= status.slots else status.free_bytes,
        slots=status.slots,
        exclusive=status.exclusive,
        mig_parent=status.device.mig_parent,
        runs=runs,
        external=tuple(_external(status.external_processes, rows)),
        utilisation=status.utilisation,
        temperature_c=status.temperature_c,
        power_w=status.power_w,
        free_at=max(at, *known) if known and len(known) == len(ends) else None,
        trouble=status.trouble,
        drained=status.drained,
        ends_at=status.ends_at,
        end_reason=status.end.why or None if status.end is not None else None,
        **_reserved(status, rows),
        closed=closed_in_words(status, silent=silent),
        silent_s=status.seen_s_ago if silent else None,
        refusals=status.refusals.why if status.refusals and status.refusals.are_many else None,
        errors=tuple(device_errors(status)),
        calendar=status.calendar,
        calendar_words=reserved_in_words(status),
    )


def _reserved(status: DeviceStatus, rows: Mapping[int, QueueRow]) -> dict[str, Any]:
    """Return for which job the device is reserved, what is left beside it, and when it must have ended.

    What is left follows ``left_beside`` of ``capacity.lua``: the rule by which other jobs are claimed.
    """
    reserved = status.reservation
    if reserved is None:
        return {}
    row, until, beside_bytes = rows.get(reserved.job_id), None, 0
    if row is not None and row.time_limit_s is not None and reserved.start is not None:
        until = reserved.start + timedelta(seconds=row.time_limit_s)
    staying = [each for each in status.holdings if each.job_id not in reserved.blockers]
    if reserved.need_bytes is not None and status.external_bytes is not None and len(staying) + 1 < status.slots:
        capacity_bytes = status.device.total_bytes - status.headroom_bytes - status.external_bytes
        held_bytes = sum(max(each.lease_bytes, each.observed_bytes) for each in staying)
        beside_bytes = max(0, capacity_bytes - reserved.need_bytes - held_bytes)
    return {"reserved_for": reserved.job_id, "beside_bytes": beside_bytes, "reserved_until": until}


def _run_of(holding: Holding, row: QueueRow | None) -> DeviceRun:
    ends_at = None
    if row is not None and row.started_at is not None and row.time_limit_s is not None:
        ends_at = row.started_at + timedelta(seconds=row.time_limit_s)
    return DeviceRun(
        job_id=holding.job_id,
        allocated_bytes=holding.lease_bytes,
        used_bytes=holding.observed_bytes,
        label=row.label if row is not None else None,
        name=row.name if row is not None else None,
        user=row.user if row is not None else None,
        ends_at=ends_at,
        idle_since=row.idle_since if row is not None else None,
    )


def without_hidden(view: DeviceView, seen: Mapping[int, QueueRow]) -> DeviceView:
    """Return *view* with the names of those runs only whose jobs are in *seen*."""
    runs = tuple(
        each
        if each.job_id in seen
        else DeviceRun(job_id=each.job_id, allocated_bytes=each.allocated_bytes, used_bytes=each.used_bytes)
        for each in view.runs
    )
    return replace(view, runs=runs)


def _external(processes: Iterable[ExternalProcess], rows: Mapping[int, QueueRow]) -> list[ExternalUse]:
    """Return the external processes of a device by user and job, those with the most memory first."""
    by_owner: dict[tuple[str | None, int | None], list[ExternalProcess]] = {}
    for each in processes:
        by_owner.setdefault((each.user, each.job_id), []).append(each)
    found = [_use_of(user, rows.get(job_id or 0), job_id, own) for (user, job_id), own in by_owner.items()]
    return sorted(found, key=lambda each: -(each.held_bytes or 0))


def _use_of(user: str | None, row: QueueRow | None, job_id: int | None, own: list[ExternalProcess]) -> ExternalUse:
    held = [each.held_bytes for each in own if each.held_bytes is not None]
    commands = sorted({each.command for each in own if each.command})
    return ExternalUse(
        user=user,
        processes=len(own),
        held_bytes=sum(held) if len(held) == len(own) else None,
        commands=tuple(commands[:_MOST_COMMANDS]),
        job_id=job_id,
        label=None if row is None else row.label,
    )
