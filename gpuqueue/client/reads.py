"""Reads jobs: from the queue what a job is now, and from the history its runs and its events."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from gpuqueue.client.connection import Connection
from gpuqueue.errors import BadRequest, HistoryUnreachable, JobNotFound, Refused, Unreachable
from gpuqueue.lazy.imports import later
from gpuqueue.model import job_ref
from gpuqueue.model.array import Member
from gpuqueue.model.dependencies import Condition
from gpuqueue.model.job import Job, JobState, WaitReason
from gpuqueue.model.job_ref import JobName

if TYPE_CHECKING:
    from typing import TypeVar

    from gpuqueue.model import run as runs
    from gpuqueue.model.array import MemberEnds
    from gpuqueue.model.event import Event
    from gpuqueue.model.run import Record
    from gpuqueue.queue.requests import Ends, Unknown

    T = TypeVar("T")
else:
    runs = later("gpuqueue.model.run")

#: How often the history is read for the ended members of an array, while more of them end.
MAX_READS = 10


def get(connection: Connection, job: int | str) -> Job:
    """Return the current state of a job, named by its id or by a member's name such as ``"17_2"``.

    While the store is unreachable, the history has the state of an ended job, which never changes.

    Raises:
        JobNotFound: the job does not exist.

    """
    name = job_ref.one_job(job)
    member = name.member
    try:
        found = connection.queue.jobs.get(id_of(name))
    except Unreachable as error:
        return _ended_instead(connection, name, error).job
    if found is not None and (member is None or found.member == member):
        return found
    return show(connection, job).job


def ended(connection: Connection, name: JobName) -> Record | None:
    """Return a job's record from the history if it has ended by that; None also if the history is unreachable."""
    with suppress(HistoryUnreachable):
        record = connection.recorded(id_of(name))
        if record is not None and record.job.state.is_end and name.member in {None, record.job.member}:
            return record
    return None


def _ended_instead(connection: Connection, name: JobName, error: Unreachable) -> Record:
    """Return the record of an ended job in place of the queue's answer, which is *error*.

    Raises:
        Unreachable: the history has no end of the job. It is *error*.

    """
    record = ended(connection, name)
    if record is None:
        raise error
    return record


def id_of(name: JobName) -> int:
    """Return the id under which the store and the history have the one job that *name* names."""
    return name.id if name.member is None else name.member.id


def show(connection: Connection, job: int | str, *, away: Callable[[Unreachable], None] | None = None) -> Record:
    """Return the job with all its runs: the current state from the queue, the runs from the history.

    The queue is read first. It deletes a job only after the history has it, so the job is found in one of them. If the
    recorder works meanwhile, the history is read again. *away* is that of ``Jobs.show``.

    Raises:
        JobNotFound: the job does not exist.

    """
    name = job_ref.one_job(job)
    try:
        return _show(connection, name)
    except HistoryUnreachable:
        raise
    except Unreachable as error:
        record = None if away is None else _in_the_history(connection, name)
        if away is None or record is None:
            raise
        away(error)
        return record


def _in_the_history(connection: Connection, name: JobName) -> Record | None:
    """Return a job's record from the history alone, or None if the job is missing or the history unreachable."""
    try:
        found = connection.recorded(id_of(name))
        if name.member is None or (found is not None and found.job.member == name.member):
            return found
        array = connection.recorded(name.member.array_id)
        return None if array is None else _unclaimed(name.member, array.job)
    except HistoryUnreachable:
        return None


def _show(connection: Connection, name: JobName) -> Record:
    if name.member is not None:
        return _member(connection, name.member)
    record = _known(connection, name.id)
    if record is None:
        raise JobNotFound(f"there is no job {name}: see gpuqueue queue and gpuqueue history")
    return record


def _known(connection: Connection, job_id: int) -> Record | None:
    job = connection.queue.jobs.get(job_id)
    if job is not None:
        job = by_its_members(connection, job)
    record = connection.recorded(job_id)
    if job is None:
        return record
    known = _with_current_run(connection, replace(record or runs.Record(job=job), job=job))
    if not _lacks_end(known):
        return known
    # Between these reads the recorder may have moved the end from the store to the history.
    again = replace(connection.recorded(job_id) or known, job=job)
    return known if _lacks_end(again) else again


def _lacks_end(record: Record) -> bool:
    """Return whether the newest run of an ended job is missing, or has no ending."""
    job, last = record.job, record.last_run
    return job.state.is_end and job.attempt > 0 and (last is None or last.attempt != job.attempt or last.ending is None)


def by_its_members(connection: Connection, job: Job) -> Job:
    """Return a running array with the state that follows from its members, and any other job unchanged.

    If they are all held, it has the reason of the first of them.
    """
    if job.tally is None or job.state is not JobState.RUNNING:
        return job
    members = connection.queue.jobs.members(job.id)
    shown = displayed(job, members.values())
    if shown.state is not JobState.HELD:
        return shown
    first = connection.queue.jobs.get(min(members))
    return shown if first is None else replace(shown, reason=first.reason, because=job.because or first.because)


def _member(connection: Connection, member: Member) -> Record:
    """Return a member of an array. Before a worker claims it, only the array's job has its state.

    The array is read first. A member that no longer waits in the array is in the queue or the history, unless it was
    cancelled before it was claimed.
    """
    array = array_of(connection, member.array_id)
    here = array.tally
    waits = here is not None and (member.index in here.left or member.index in here.held)
    unclaimed = _unclaimed(member, array)
    return (None if waits else _known(connection, member.id)) or unclaimed


def _unclaimed(member: Member, array: Job) -> Record:
    """Return the record of an unclaimed member, derived from its array."""
    if array.spec.array is None or member.index not in array.spec.array.indexes:
        raise JobNotFound(f"there is no job {member}: see gpuqueue show {member.array_id}")
    here = array.tally
    waits = here is not None and member.index in here.left
    is_held = here is not None and member.index in here.held
    state = JobState.QUEUED if waits else JobState.HELD if is_held else JobState.CANCELLED
    awaits = here is not None and member.index in here.awaiting
    spec = array.spec.of_member(member)
    job = Job(
        id=member.id,
        spec=spec,
        state=state,
        submitted_at=array.submitted_at,
        reason=(WaitReason.DEPENDENCY if awaits else array.reason) if waits else WaitReason.HELD if is_held else None,
        because=array.because if is_held else None,
        member=member,
        awaits=tuple(
            each for each in array.awaits if not state.is_end and (awaits or each.condition is not Condition.CORR)
        ),
        begins_at=None if state.is_end else array.begins_at,
        tags=spec.tags,
    )
    return runs.Record(job=job)


def array_of(connection: Connection, array_id: int) -> Job:
    """Return the job of an array.

    Raises:
        JobNotFound: the job does not exist.

    """
    job = connection.queue.jobs.get(array_id)
    return job if job is not None else show(connection, array_id).job


def must_have(connection: Connection, name: JobName) -> None:
    """Check that *name* is an array with at least one of the named members.

    Raises:
        JobNotFound: the array does not exist, or has none of these members.
        BadRequest: the job is not an array.

    """
    array = array_of(connection, name.id).spec.array
    if array is None:
        raise BadRequest(f"job {name.id} is no array: there is no part {name}")
    if name.part is not None and not any(index in array.indexes for index in name.part):
        raise JobNotFound(f"there is no job {name}: the members of {name.id} are {array.indexes}")


def newest(connection: Connection, job: int | str) -> Record:
    """Return the job with its newest run. Reads the queue alone if the queue knows where that run's log is.

    A claimed run whose start is not reported yet has no log path. It is returned as it is while the history is away. An
    ended job is returned from the history while the store is away.

    Raises:
        JobNotFound: the job does not exist.
        HistoryUnreachable: only the history has the newest run, and it is away.

    """
    name = job_ref.one_job(job)
    try:
        record = connection.queue.jobs.record(id_of(name))
    except Unreachable as error:
        return _ended_instead(connection, name, error)
    if record is None:
        return show(connection, job)
    run = record.last_run
    is_known = not record.job.attempt if run is None else run.log_path is not None
    if is_known and not record.job.state.is_end:
        return record
    try:
        return show(connection, job)
    except HistoryUnreachable:
        if run is None and not record.job.state.is_end:
            raise  # an earlier run, which only the history has
        return record


def _with_current_run(connection: Connection, record: Record) -> Record:
    """Return *record* with the current run from the queue, if the history lacks that run, its log path or its end."""
    last, attempt = record.last_run, record.job.attempt
    if not attempt:
        return record
    if last is not None and last.attempt == attempt and last.log_path is not None:
        lags = record.job.state.is_end and last.ending is None
        if not lags:
            return record
    reported = connection.queue.jobs.record(record.job.id)
    run = reported.last_run if reported is not None else None
    if run is None or run.attempt != attempt:
        return record
    return replace(record, runs=(*(each for each in record.runs if each.attempt != attempt), run))


def events(connection: Connection, job: int | str) -> tuple[Event, ...]:
    """Return all events of the job that the history has, in order."""
    return connection.database.events(id_of(job_ref.one_job(job)))


def retries(connection: Connection, job: int | str) -> tuple[int, ...]:
    """Return the ids of the jobs that run *job* again, or members of it, the oldest first, as the history has them."""
    found = get(connection, job)
    array = found.spec.array
    members = 0 if array is None else max(indexes[-1] for indexes in array.indexes.ranges) + 1
    return tuple(connection.database.retries_of(found.id, found.spec.account.name, members))


def with_ends(connection: Connection, unknown: Unknown, request: Callable[[Ends], T]) -> T:
    """Return the answer of *request* to what the history knows of the dependencies that the queue has deleted.

    They ended, or they never existed.

    Raises:
        Refused: members of the array that a job follows end faster than the history can be read.
        Unknown, BadRequest: see :func:`ends`.

    """
    from gpuqueue.queue.requests import Unknown  # noqa: PLC0415 - lazy import for startup time

    known: dict[int, bool | MemberEnds] = {}
    for _ in range(MAX_READS):
        known |= ends(connection, unknown.job_ids, followed=unknown.followed)
        try:
            return request(known)
        except Unknown as more:
            unknown = more
    raise Refused(f"members of job {unknown.followed} end while the history is read: submit again")


def ends(connection: Connection, job_ids: Sequence[int], *, followed: int | None) -> dict[int, bool | MemberEnds]:
    """Return for each of these jobs, which the queue has deleted, whether it succeeded.

    Of an array that is *followed*, return how its members have ended.

    Raises:
        Unknown: the history has no end of some of the jobs.
        BadRequest: one of them is a member of an array.

    """
    from gpuqueue.queue.requests import Unknown, whole_array_only  # noqa: PLC0415 - lazy import for startup time

    for member in connection.database.members_among(job_ids):
        raise whole_array_only(member)
    states = connection.database.states(job_ids)
    result: dict[int, bool | MemberEnds] = {
        each: state is JobState.SUCCEEDED for each, state in states.items() if state.is_end
    }
    if followed is not None and followed in job_ids:
        members = connection.database.member_ends(followed)
        result |= {} if members is None else {followed: members}
    missing = tuple(each for each in job_ids if each not in result)
    if missing:
        raise Unknown(missing)
    return result


def displayed(job: Job, members: Iterable[JobState]) -> Job:
    """Return *job*, an array, with the state that follows from the states of its claimed *members*.

    The store records an array as running until its last member has ended. If no member is active, the array is
    queued when one of its members waits for a retry. Otherwise all remaining members are held, and so is the array.
    """
    there = {state for state in members if not state.is_end}
    if job.state is not JobState.RUNNING or job.tally is None or not there or any(each.is_active for each in there):
        return job
    if JobState.QUEUED in there:
        return replace(job, state=JobState.QUEUED, reason=WaitReason.RETRY)
    return replace(job, state=JobState.HELD, reason=WaitReason.HELD)
