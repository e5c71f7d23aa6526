"""Selects jobs: by a word that names several, or by common properties."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from enum import Enum
from typing import TYPE_CHECKING

from gpuqueue.client import listing
from gpuqueue.client.connection import Connection
from gpuqueue.errors import HistoryUnreachable, JobNotFound, Refused
from gpuqueue.lazy.frozen import dataclass
from gpuqueue.lazy.imports import later
from gpuqueue.model import validation
from gpuqueue.model.job import Job, JobState
from gpuqueue.model.job_ref import JobName, JobSpan, meant
from gpuqueue.model.queue_query import QueueQuery
from gpuqueue.system.account import SUPERUSER

if TYPE_CHECKING:
    import fnmatch
else:
    fnmatch = later("fnmatch")


#: Jobs in one page of a history query.
PAGE = 500


class StateFilter(str, Enum):
    """State by which jobs, or the members of arrays, are selected."""

    #: Queued or held.
    WAITING = "waiting"
    #: The job is allocated a device.
    RUNNING = "running"
    #: Queued, and not held.
    QUEUED = "queued"
    HELD = "held"

    def __str__(self) -> str:
        return self.value


class Which(str, Enum):
    """Which jobs of a range of ids are selected. The value completes an error message."""

    LIVE = "waits or runs"
    FAILED = "failed"
    ANY = "is known"

    def __str__(self) -> str:
        return self.value


@dataclass(frozen=True, slots=True)
class Chosen:
    """A selected job, or the selected part of an array. Other client calls accept ``name``."""

    name: str
    job: Job


def named(connection: Connection, word: str, *, which: Which | str) -> list[str]:
    """Return the names of the jobs that *word* means, in order of their ids."""
    name, which = meant(word), validation.word("which", which, Which)
    if isinstance(name, JobName):
        return [str(name)]
    jobs: dict[int, Job] = {}
    if which is not Which.LIVE:
        jobs.update((job.id, job) for job in _recorded_from_to(connection, name, which))
    if which is not Which.FAILED:
        jobs.update((job.id, job) for job in _queued_from_to(connection, name, which))
    if not jobs:
        words = f"no job of {name} {which.value}: see gpuqueue queue and gpuqueue history"
        raise Refused(words) if _was_any(connection, name) else JobNotFound(words)
    return [job.label for job in whole(jobs[each] for each in sorted(jobs))]


def _was_any(connection: Connection, span: JobSpan) -> bool:
    """Return whether a job of *span* ever existed. Without a reachable history, only the queue is searched."""
    from gpuqueue.model.history_query import HistoryQuery  # noqa: PLC0415 - lazy import for startup time

    if any(span.first <= job.id <= span.last for job in connection.queue.jobs.page(after=span.first - 1, limit=1).jobs):
        return True
    try:
        query = HistoryQuery(reverse=True, after_id=span.first - 1 or None, before_id=span.last + 1, limit=1)
        return bool(connection.database.history(query))
    except HistoryUnreachable:
        return False


def _recorded_from_to(connection: Connection, span: JobSpan, which: Which) -> Iterator[Job]:
    from gpuqueue.model.history_query import HistoryQuery  # noqa: PLC0415 - lazy import: most cancels need no history

    states = (JobState.FAILED, JobState.LOST) if which is Which.FAILED else ()
    after = span.first - 1
    while True:
        page = HistoryQuery(states=states, reverse=True, after_id=after or None, before_id=span.last + 1, limit=PAGE)
        found = connection.database.history(page)
        yield from (record.job for record in found)
        if len(found) < PAGE:
            return
        after = found[-1].job.id


def _queued_from_to(connection: Connection, span: JobSpan, which: Which) -> Iterator[Job]:
    """Yield the jobs of *span* that the queue has. Ended jobs are included only for ``Which.ANY``."""
    after: int | None = span.first - 1
    while after is not None and after < span.last:
        page = connection.queue.jobs.page(after=after)
        found = (job for job in page.jobs if job.id <= span.last)
        yield from (job for job in found if which is Which.ANY or not job.state.is_end)
        after = page.after


def may_change(connection: Connection, user: str) -> bool:
    """Return whether this account may change the jobs of *user*."""
    if connection.user in {user, SUPERUSER}:
        return True
    admins = connection.queue.rules.admins()
    return admins == "*" or connection.user in admins.split(",")


def must_own(connection: Connection, user: str) -> None:
    """Check that this account may change the jobs of *user*.

    Raises:
        Refused: the account may not change them.

    """
    if not may_change(connection, user):
        raise Refused(f"only {user} may change the jobs of {user}, or an administrator of this site (setting admins)")


def choose(
    connection: Connection,
    *,
    user: str | None,
    name: str | None,
    state: StateFilter | str | None,
    tag: str | None,
) -> list[Chosen]:
    """Return the jobs that have not ended and match all criteria."""
    whose = validation.text_or_none("user", user) or connection.account.name
    called = validation.text_or_none("name", name)
    where = None if state is None else validation.word("state", state, StateFilter)
    word = validation.text_or_none("tag", tag)
    jobs = [
        job
        for job in listing.listing(connection, QueueQuery(user=whose)).jobs
        if (called is None or fnmatch.fnmatchcase(job.spec.name, called)) and (word is None or word in job.tags)
    ]
    if where is None:
        return [Chosen(job.label, job) for job in whole(jobs) if job.state is not JobState.CANCELLING]
    return [Chosen(each, job) for job in jobs for each in _in_state(job, where)]


def whole(jobs: Iterable[Job]) -> list[Job]:
    """Return *jobs* without the members of arrays that are among them. A change to an array changes its members."""
    found = list(jobs)
    arrays = {job.id for job in found if job.tally is not None or job.spec.array is not None}
    return [job for job in found if job.member is None or job.member.array_id not in arrays]


def _in_state(job: Job, where: StateFilter) -> Iterator[str]:
    """Yield the name of *job* if its state matches *where*; of an array, the names of the matching parts."""
    states = {
        StateFilter.WAITING: {JobState.QUEUED, JobState.HELD},
        StateFilter.RUNNING: {JobState.STARTING, JobState.RUNNING},
        StateFilter.QUEUED: {JobState.QUEUED},
        StateFilter.HELD: {JobState.HELD},
    }[where]
    if job.tally is None:
        if job.state in states:
            yield job.label
        return
    if JobState.QUEUED in states:
        yield from map(str, JobName.of_parts(job.id, job.tally.left))
    if JobState.HELD in states:
        yield from map(str, JobName.of_parts(job.id, job.tally.held))
