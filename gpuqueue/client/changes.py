"""Changes jobs: cancel, hold, release and move."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from enum import Enum
from typing import TYPE_CHECKING

from gpuqueue.client import reads
from gpuqueue.client.connection import Connection
from gpuqueue.errors import BadRequest, Impossible, Refused, Unreadable
from gpuqueue.lazy.frozen import dataclass
from gpuqueue.lazy.imports import later
from gpuqueue.model import job_ref, validation
from gpuqueue.model.array import Indexes
from gpuqueue.model.job import Job, JobState
from gpuqueue.model.job_ref import JobName
from gpuqueue.model.job_spec import tags_of

if TYPE_CHECKING:
    from gpuqueue.client import devices
    from gpuqueue.queue.changes import Changed, Mark
else:
    devices = later("gpuqueue.client.devices")

#: Longest note, in characters.
MAX_NOTE = 1000


class Elsewhere(str, Enum):
    """State of an array index that has no job of its own and does not wait."""

    #: The member was cancelled before it started, or it has ended and the queue has deleted it.
    OVER = "over"
    #: The array never had this index.
    NO_MEMBER = "no member"
    #: The index is in a named range, but it has ended or is not a member. A range selects existing members only.
    PASSED_OVER = "passed over"

    def __str__(self) -> str:
        return self.value


@dataclass(frozen=True, kw_only=True, slots=True)
class Change:
    """The result of a change to a job, an array or a part of an array.

    ``state`` is the state afterwards. ``already``: nothing had to be changed. ``missed`` are the members of an array
    that were not changed, by their state. ``because``: why what was released had been held, if that is known.
    """

    state: JobState
    already: bool = False
    because: str | None = None
    missed: tuple[tuple[JobState | Elsewhere, Indexes], ...] = ()


def _already(state: JobState) -> str:
    return f"was {state} already" if state is JobState.LOST else f"has {state} already"


def cancel(connection: Connection, job: int | str) -> Change:
    """End the job."""
    name = job_ref.job_name(job)
    done = _changed(connection, "cancel", name)
    if name.part is not None and not done.moved:
        done = replace(done, state=_state_of_ended(connection, name), unchanged=True)
    if done.state.is_end and done.state is not JobState.CANCELLED:
        raise Refused(f"job {name} {_already(done.state)}: see gpuqueue show {name}")
    already = done.state is JobState.CANCELLED and (done.unchanged or done.moved == 0)
    return Change(state=done.state, already=already, missed=_missed(connection, name, done))


def _state_of_ended(connection: Connection, name: JobName) -> JobState:
    """Return the state of a member that has ended, or CANCELLED for a part whose members were all cancelled.

    Raises:
        Refused: *name* is a part of several members, and some of them were not cancelled.

    """
    if name.member is None:
        if _all_cancelled(connection, name):
            return JobState.CANCELLED
        raise Refused(f"nothing of {name} waits or runs: there is nothing to cancel, see gpuqueue show {name.id}")
    return reads.get(connection, str(name)).state


def _all_cancelled(connection: Connection, name: JobName) -> bool:
    """Return whether all members of a part were cancelled; False if the history lags too far to know."""
    from gpuqueue.model.history_query import HistoryQuery  # noqa: PLC0415 - lazy import: most cancels need no history

    array = reads.array_of(connection, name.id)
    if array.spec.array is None or name.part is None:
        return False
    ends = tuple(state for state in JobState if state.is_end and state is not JobState.CANCELLED)
    otherwise = None if array.tally is None else sum(array.tally.ended.get(state, 0) for state in ends)
    if otherwise == 0:
        return True
    query = HistoryQuery(array_id=name.id, states=ends, limit=len(array.spec.array))
    found = [record.job.member for record in connection.database.history(query)]
    if otherwise is not None and len(found) < otherwise:
        return False
    return not any(member is not None and member.index in name.part for member in found)


def hold_or_release(connection: Connection, verb: str, job: int | str) -> Change:
    """Hold a waiting job or release a held one, or such members of an array or of a part. *verb* says which."""
    name = job_ref.job_name(job)
    before = _releasable(connection, name) if verb == "release" else None
    done = _changed(connection, verb, name)
    if not done.moved:
        _check_unchanged(connection, verb, name, done)
    state = done.state if not done.moved else JobState.HELD if verb == "hold" else JobState.QUEUED
    because = None if before is None else before.because
    return Change(state=state, already=done.unchanged, because=because, missed=_missed(connection, name, done))


def _releasable(connection: Connection, name: JobName) -> Job | None:
    """Return the job to release: of a member without a job of its own its array; None if the queue has none.

    Raises:
        Refused: no host can enforce the limits of the job, so it would be held again at once.

    """
    with suppress(Unreadable):  # of which the release says so
        found = None if name.member is None else connection.queue.jobs.get(name.member.id)
        found = found or connection.queue.jobs.get(name.id)
        if found is None or (found.spec.cpus, found.spec.cpu_mem_bytes) == (None, None):
            return found
        if not (found.state is JobState.HELD if found.tally is None else found.tally.held):
            return found  # the release says what the state is
        try:
            devices.check_limits(connection, found.spec)
        except Impossible as error:
            raise Refused(f"job {name} would be held again: {error}") from None
        return found
    return None


def move(connection: Connection, job: int | str, *, front: bool = True) -> JobState:
    """Move a waiting job before all other jobs of its user, or back to its place by arrival."""
    name = job_ref.one_job(job)
    called = str(name)
    state = connection.queue.jobs.move(reads.id_of(name), front=front, by=connection.user, called=called)
    if state is not None:
        return state
    known = reads.show(connection, job).job
    if known.state.is_end:
        raise Refused(f"job {name} {known.state.in_words}: only a job that waits can be moved")
    raise BadRequest(f"{name} waits with its array, which goes in its own order: move all of {name.id}")


def _changed(connection: Connection, act: str, name: JobName) -> Changed:
    """Apply *act* to a job. For a part, the result is about its members, not about the array."""
    if name.part is None:
        done = connection.queue.jobs.change(act, name.id, by=connection.user)
    else:
        done = connection.queue.jobs.part(name.id, act, name.part, by=connection.user)
        if done is None or not done.moved:
            reads.must_have(connection, name)
        elif act == "cancel":
            done = replace(done, state=JobState.CANCELLING if done.ending else JobState.CANCELLED)
    if done is not None:
        return done
    from gpuqueue.queue.changes import Changed  # noqa: PLC0415 - lazy import for startup time

    return Changed(state=reads.show(connection, name.id).job.state, unchanged=True)


def _missed(connection: Connection, name: JobName, done: Changed) -> tuple[tuple[JobState | Elsewhere, Indexes], ...]:
    """Return the members of *name* that were not changed, if others were, by state."""
    if not done.moved:
        return ()
    by_state: dict[JobState | Elsewhere, list[int]] = {}
    for index, state in done.others.items():
        by_state.setdefault(state, []).append(index)
    named = set(name.part) if name.part is not None else set()
    for index, place in _elsewhere(connection, name, named - set(done.others) - (done.reached or set())):
        by_state.setdefault(place, []).append(index)
    return tuple((where, Indexes.of(indexes)) for where, indexes in by_state.items())


def _elsewhere(connection: Connection, name: JobName, unknown: Collection[int]) -> Iterator[tuple[int, Elsewhere]]:
    """Yield the indexes of *unknown* that neither wait nor are held in the array, and why."""
    array = reads.array_of(connection, name.id) if unknown else None
    if array is None or array.spec.array is None or name.part is None:
        return
    members, here = array.spec.array.indexes, array.tally
    singles = {each[0] for each in name.part.ranges if len(each) == 1}
    last = max(each[-1] for each in members.ranges)
    for index in sorted(unknown):
        if here is None or (index not in here.left and index not in here.held):
            if index not in singles and index <= last:
                yield index, Elsewhere.PASSED_OVER
            else:
                yield index, Elsewhere.OVER if index in members else Elsewhere.NO_MEMBER


def _check_unchanged(connection: Connection, verb: str, name: JobName, done: Changed) -> None:
    """Check that a job that did not change is in the wanted state.

    Raises:
        Refused: it is not, or *name* is an array or a part of one.

    """
    wanted = JobState.QUEUED if verb == "release" else JobState.HELD
    if done.moved != 0 and done.state is wanted:
        return
    if name.part is not None and name.member is None:
        what = "is held" if verb == "release" else "waits"
        raise Refused(f"nothing of {name} {what}: there is nothing to {verb}, see gpuqueue show {name.id}")
    state = reads.get(connection, str(name)).state if name.member else done.state
    raise Refused(f"job {name} {state.in_words}: there is nothing to {verb}, see gpuqueue show {name}")


def tag(connection: Connection, job: int | str, words: Sequence[str], *, remove: bool) -> None:
    """Add *words* to the tags of a job, or remove them."""
    from gpuqueue.queue.changes import Mark  # noqa: PLC0415 - lazy import for startup time

    if not words:
        raise BadRequest(f"name the tags: gpuqueue tag {job} baseline")
    tags = tags_of(words)
    _mark(connection, job, Mark(remove=tags) if remove else Mark(add=tags))


def note(connection: Connection, job: int | str, text: str) -> None:
    """Set the note of a job to *text*; an empty text removes the note."""
    from gpuqueue.queue.changes import Mark  # noqa: PLC0415 - lazy import for startup time

    _mark(connection, job, Mark(note=validation.text_or_none("a note", text, most=MAX_NOTE) or ""))


def _mark(connection: Connection, job: int | str, mark: Mark) -> None:
    """Send *mark* to the queue, which passes it to the history. The job may be in the history only."""
    name = job_ref.one_job(job)
    job_id = reads.id_of(name)
    if connection.queue.jobs.mark(job_id, mark, by=connection.user):
        return
    known = reads.show(connection, job).job
    recorded = connection.recorded(job_id)
    if recorded is None:
        raise BadRequest(f"{name} has not started yet: tag or annotate the whole array {name.id}")
    if not connection.queue.jobs.mark(job_id, mark, by=connection.user, ended=recorded.job):
        raise Refused(
            f"job {name} {known.state.in_words} in the history, and the queue does not know it: try again later"
        )
