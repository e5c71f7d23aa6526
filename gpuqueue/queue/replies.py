"""Converts script replies and the store's hashes to values.

For those about devices see devices.py, for ``why.lua`` explanation.py.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import TYPE_CHECKING

from gpuqueue.clock import from_epoch_ms
from gpuqueue.codec.request import decode_spec, of_member, stand_in
from gpuqueue.errors import BadRequest, Unreadable
from gpuqueue.lazy.imports import later
from gpuqueue.model.array import Indexes, Member, Tally
from gpuqueue.model.dependencies import Dependency
from gpuqueue.model.event import Act, Event
from gpuqueue.model.job import Job, JobState, WaitReason
from gpuqueue.model.job_spec import JobSpec, Priority
from gpuqueue.model.measures import Use
from gpuqueue.queue import job_fields as stored
from gpuqueue.queue.drains import drains, reservations_on
from gpuqueue.queue.lease import BrokenClaim, Claim, Later, Lease, PreemptRequest, Reservation, Reservations, Verdicts
from gpuqueue.text.sanitize import brief

if TYPE_CHECKING:
    import logging

    from gpuqueue.model import mem_source
    from gpuqueue.model.run_mark import RunMark
else:
    logging = later("logging")
    mem_source = later("gpuqueue.model.mem_source")


def claim(reply: Sequence[str]) -> Claim | Later | None:
    """Return the reply of claim.lua as a value.

    Raises:
        BrokenClaim: the job's request is missing, damaged or of an unknown version.

    """
    if not reply:
        return None
    if len(reply) == 1:
        return Later(int(reply[0]) / 1000)
    job_id, token, spec, attempt, lease_bytes, devices, claimed_ms, *whose = reply
    member = _member(*whose) if whose else None
    payload = with_owner(spec, member)
    try:
        wanted = granted(decode_spec(payload), int(lease_bytes))
    except Unreadable as error:
        raise BrokenClaim(int(job_id), token, str(error)) from error
    return Claim(
        job_id=int(job_id),
        token=token,
        attempt=int(attempt),
        spec=wanted,
        lease_bytes=int(lease_bytes),
        devices=tuple(devices.split(",")),
        claimed_ms=int(claimed_ms),
        payload=payload or "",
        member=member,
    )


def granted(spec: JobSpec, lease_bytes: int) -> JobSpec:
    """Return *spec* with the memory of its run, which is more than the job asked for after a lack of memory.

    A run with exclusive devices may use all of their memory, whatever the job asked for.
    """
    return (
        spec
        if spec.placement.exclusive or lease_bytes == spec.mem_bytes
        else mem_source.with_granted(spec, lease_bytes)
    )


def _member(array_id: str, index: str) -> Member:
    return Member(int(array_id), int(index))


def with_owner(spec: str | None, member: Member | None) -> str | None:
    """Return the spec of a *member* from the stored spec: that of its array, or its own after a restore."""
    return of_member(spec, member) if spec and member is not None else spec


def uses(reply: str) -> dict[str, Use]:
    """Return the reply of usage.lua."""
    result = {}
    for user in json.loads(reply):
        name, open_bytes = user.pop("user"), user.pop("open_bytes", None)  # left out if there are too many to read
        counts = {measure: int(value) for measure, value in user.items()}
        result[name] = Use(**counts, open_bytes=None if open_bytes is None else int(open_bytes))
    return result


def reservations(reply: str) -> Reservations:
    """Return the reply of reserve.lua."""
    found = json.loads(reply)
    made = [
        Reservation(
            job_id=int(each["job_id"]),
            devices=tuple(each["devices"].split(",")),
            start_ms=int(each["start_ms"]) or None,
            until_ms=int(each["until_ms"]) or None,
        )
        for each in found["reservations"]
    ]
    return Reservations(made=tuple(made), again_ms=int(found["again_ms"]) or None)


def verdicts(reply: str) -> Verdicts | str:
    """Return the reply of heartbeat.lua about the runs of a device, its other leases and the device.

    A text is the id of the machine that has the host name.
    """
    plain = json.loads(reply)
    if "taken" in plain:
        return str(plain["taken"])
    go_on, cancelled, stale = (
        frozenset(token for token, verdict in plain["verdicts"].items() if verdict == which) for which in (1, -1, 0)
    )
    numbers = ("job_id", "lease_bytes", "observed_bytes")
    return Verdicts(
        epoch=plain["epoch"],
        go_on=go_on,
        cancelled=cancelled,
        stale=stale,
        others=tuple(Lease(**{**each, **{name: int(each[name]) for name in numbers}}) for each in plain["others"]),
        drains=drains(plain.get("drained")),
        calendar=reservations_on("", plain.get("drained")),
        preemptions={
            token: PreemptRequest(by=int(each["by"]), left_s=each["left_ms"] / 1000)
            for token, each in plain["preempted"].items()
        },
        limits={token: int(limit_ms) / 1000 for token, limit_ms in plain["limits"].items()},
    )


def job(job_id: int, fields: Mapping[str, str], spec: str | None) -> Job:
    """Return the job with this hash and spec.

    If the spec cannot be read, a substitute is made from the hash. The job waits or holds memory, so users must see it
    to be able to cancel it.

    Raises:
        Unreadable: the hash is damaged.

    """
    with readable_reply(f"the store's entry of job {job_id}"):
        return _job(job_id, fields, spec)


def _job(job_id: int, fields: Mapping[str, str], spec: str | None) -> Job:
    state = JobState(fields[stored.STATE])
    waits, is_array = state in {JobState.QUEUED, JobState.HELD}, stored.LEFT in fields
    wanted = _spec(fields, spec)
    return Job(
        id=job_id,
        spec=wanted,
        state=state,
        reason=_reason(fields) or (WaitReason.MEMORY if state is JobState.QUEUED else None),
        attempt=int(fields[stored.ATTEMPTS]),
        losses=int(fields[stored.LOSSES]),
        submitted_at=from_epoch_ms(int(fields[stored.SUBMITTED_MS])),
        claimed_at=None if waits else _moment(fields, stored.CLAIMED_MS),
        started_at=_moment(fields, stored.STARTED_MS) if is_array or not waits else None,  # an array's first member
        ended_at=_moment(fields, stored.ENDED_MS),
        host=fields.get(stored.HOST) or None,
        devices=tuple(fields[stored.DEVICES].split(",")) if fields.get(stored.DEVICES) else (),
        retries=int(fields.get(stored.RETRIES) or 0),
        requeues=int(fields.get(stored.REQUEUES) or 0),
        mem_retries=int(fields.get(stored.MEM_RETRIES) or 0),
        awaits=Dependency.parse(fields[stored.AFTER]) if waits and fields.get(stored.AFTER) else (),
        begins_at=_moment(fields, stored.NOT_BEFORE_MS) if waits else None,
        because=fields.get(stored.BECAUSE) or None,
        member=member_in(fields),
        tally=_tally(fields) if is_array else None,
        front=int(fields[stored.FRONT]) if fields.get(stored.FRONT) else None,
        tags=tuple(filter(None, fields[stored.TAGS].split(","))) if stored.TAGS in fields else wanted.tags,
        note=fields.get(stored.NOTE) or None,
        promoted=_priority(fields) if waits and int(fields.get(stored.PROMOTIONS) or 0) else None,
        marks=current_marks(fields.get(stored.MARKS)),
    )


def _spec(fields: Mapping[str, str], text: str | None) -> JobSpec:
    """Return the spec in *text*, or a substitute from the hash of its job if it cannot be read."""
    try:
        return in_force(decode_spec(text), fields)
    except Unreadable:
        return stand_in(user=fields[stored.USER], mem_bytes=int(fields[stored.MEM_BYTES]), priority=_priority(fields))


def in_force(spec: JobSpec, fields: Mapping[str, str]) -> JobSpec:
    """Return the *spec* of the job with this hash, with the memory that it got after a lack of it."""
    if stored.MEM_RETRIES not in fields:
        return spec
    return mem_source.with_granted(spec, int(fields[stored.MEM_BYTES]))


def _priority(fields: Mapping[str, str]) -> Priority:
    return Priority(int(fields[stored.PRIORITY]))


def _reason(fields: Mapping[str, str]) -> WaitReason | None:
    return WaitReason(fields[stored.REASON]) if fields.get(stored.REASON) else None


def _moment(fields: Mapping[str, str], name: str) -> datetime | None:
    return from_epoch_ms(int(fields[name])) if fields.get(name) else None


def current_marks(text: str | None) -> tuple[RunMark, ...]:
    """Return the marks of a run that are not over, of the *text* in its job's hash. Damaged marks hide no job."""
    if not text:
        return ()
    from gpuqueue.codec.marks import decode_store_marks  # noqa: PLC0415 - few runs are marked

    try:
        return tuple(each for each in decode_store_marks(text) if each.until is None)
    except Unreadable:
        return ()


def member_in(fields: Mapping[str, str]) -> Member | None:
    """Return the array and index of the job with this hash, None if it is not a member.

    Raises:
        ValueError: the array or the index is damaged.

    """
    return _member(fields[stored.ARRAY], fields.get(stored.INDEX, "")) if fields.get(stored.ARRAY) else None


#: Fields of an array's hash with the number of members that ended in each state.
ENDED = {
    stored.SUCCEEDED: JobState.SUCCEEDED,
    stored.FAILED: JobState.FAILED,
    stored.CANCELLED: JobState.CANCELLED,
    stored.LOST: JobState.LOST,
}


def _tally(fields: Mapping[str, str]) -> Tally:
    return Tally(
        left=Indexes.parse(fields[stored.LEFT]),
        held=Indexes.parse(fields.get(stored.HELD, "")),
        ended={state.value: int(fields.get(name) or 0) for name, state in ENDED.items()},
        awaiting=Indexes.parse(fields.get(stored.PENDING, "")),
    )


@contextmanager
def readable_reply(what: str) -> Iterator[None]:
    """Replace the errors that a damaged entry of the store causes by one error.

    Raises:
        Unreadable: the entry is damaged.

    """
    try:
        yield
    except (KeyError, ValueError, TypeError, OverflowError, OSError, BadRequest) as error:
        raise Unreadable(f"{what} cannot be read: {brief(error)}") from error


def event(entry_id: str, fields: Mapping[str, str]) -> Event:
    """Return the outbox entry as an event.

    An unreadable entry must neither stop the recorder nor vanish. It becomes an event of job 0, which does not exist,
    with all fields of the entry.
    """
    known = {"act", "job", "state", "at", "attempt", "losses", "reason"}
    try:
        with readable_reply(f"event {entry_id}"):
            return Event(
                id=entry_id,
                act=Act(fields["act"]),
                job_id=int(fields["job"]),
                state=JobState(fields["state"]),
                at=from_epoch_ms(int(fields["at"])),
                attempt=int(fields["attempt"]),
                losses=int(fields["losses"]),
                reason=WaitReason(fields["reason"]) if fields["reason"] else None,
                fields={name: value for name, value in fields.items() if name not in known},
            )
    except Unreadable as error:
        logging.getLogger(__name__).warning("%s", error)
        at = from_epoch_ms(int(entry_id.partition("-")[0]))
        return Event(id=entry_id, act=Act.OTHER, job_id=0, state=JobState.HELD, at=at, attempt=0, fields=dict(fields))
