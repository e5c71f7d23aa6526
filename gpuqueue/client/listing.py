"""Lists jobs page by page: those that have not ended, with filters, and the members of an array that have begun."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from gpuqueue.client.connection import Connection
from gpuqueue.errors import HistoryUnreachable
from gpuqueue.lazy.imports import later
from gpuqueue.model.array import Member
from gpuqueue.model.job import Job, JobState

if TYPE_CHECKING:
    from gpuqueue.client import reads
    from gpuqueue.client.client import Client
    from gpuqueue.model.queue_query import QueueQuery
    from gpuqueue.model.run import Listing, Record
else:
    reads = later("gpuqueue.client.reads")

#: Largest number of jobs in one request. The store serves other clients too, and one request blocks it.
PAGE = 2000
#: Members of an array in one request to the history, each with its runs.
MEMBERS_PAGE = 500


def listing(connection: Connection, query: QueueQuery) -> Listing:
    """Return the jobs of *query*, with what the queue knows about the running ones.

    ``Listing.after`` is the last id if there may be more jobs.
    """
    most, chosen = query.limit, frozenset(query.states)
    wanted = _filter(query)
    size = PAGE if most is None or chosen or wanted is not None else min(max(1, most), PAGE)
    pages = [connection.queue.jobs.page(limit=size, after=query.after)]
    found = _wanted(pages[0], wanted)
    while pages[-1].after is not None and (most is None or _count(found, chosen) < most):
        pages.append(connection.queue.jobs.page(limit=size, after=pages[-1].after))
        found += _wanted(pages[-1], wanted)
    jobs = [job for job in with_states(found) if is_in(job, chosen)]
    last = jobs[most - 1].id if most is not None and 0 < most < len(jobs) else pages[-1].after
    return merged(pages, jobs=tuple(jobs[:most]), after=last)


def merged(pages: Sequence[Listing], *, jobs: tuple[Job, ...], after: int | None) -> Listing:
    """Return one page with *jobs* and with the data on runs of all *pages*."""
    first, *others = pages
    for each in others:
        first = replace(
            first,
            held_bytes={**first.held_bytes, **each.held_bytes},
            logs={**first.logs, **each.logs},
            devices={**first.devices, **each.devices},
        )
    return replace(first, jobs=jobs, after=after)


def _filter(query: QueueQuery) -> Callable[[Job], bool] | None:
    """Return the condition that the filters of *query* make, less its states, or None without filters."""
    if query.user is None and query.name is None and query.pool is None and not query.tags:
        return None
    return lambda job: query.fits(job.spec.account.name, job.spec.name, job.tags, job.spec.pool)


def _wanted(page: Listing, wanted: Callable[[Job], bool] | None) -> list[Job]:
    return [job for job in page.jobs if not job.state.is_end and (wanted is None or wanted(job))]


def _count(found: Sequence[Job], states: Collection[JobState]) -> int:
    return len(found) if not states else sum(is_in(job, states) for job in found)


def is_in(job: Job, states: Collection[JobState]) -> bool:
    """Return whether *job* is in one of *states*, or no state is given. An array is in the states of its own members.

    Its other members are jobs of their own.
    """
    if not states or job.tally is None:
        return not states or job.state in states
    here = ((job.tally.left, JobState.QUEUED), (job.tally.held, JobState.HELD))
    return any(indexes.ranges and state in states for indexes, state in here)


def with_states(jobs: Sequence[Job]) -> Iterator[Job]:
    """Yield *jobs*, with each array's state derived from its members if all claimed members are in *jobs*."""
    members: dict[int, list[JobState]] = {}
    for job in jobs:
        if job.member is not None:
            members.setdefault(job.member.array_id, []).append(job.state)
    for job in jobs:
        array, here = job.spec.array, job.tally
        if job.state is not JobState.RUNNING or array is None or here is None:
            yield job
            continue
        taken = len(array) - len(here.left) - len(here.held) - sum(here.ended.values())
        found = members.get(job.id, [])
        yield reads.displayed(job, found) if len(found) == taken else job


def members(client: Client, array: Job, read: Callable[[str], Record]) -> Iterator[Record]:
    """Yield the members of *array* that have begun, in the order of their indexes.

    Those that have ended come from the history, a page at a time. The others are few: *read* gets each by its name.
    """
    passed = set() if array.tally is None else {*array.tally.left, *array.tally.held}
    with suppress(HistoryUnreachable):
        passed.update(client.history.never_began(array.id))
    indexes = () if array.spec.array is None else array.spec.array.indexes
    begun = [Member(array.id, index) for index in indexes if index not in passed]
    for start in range(0, len(begun), MEMBERS_PAGE):
        page, ended = begun[start : start + MEMBERS_PAGE], {}
        before, behind = page[0].id - 1, page[-1].id + 1
        with suppress(HistoryUnreachable):
            records = client.history.search(
                array=array.id, reverse=True, limit=MEMBERS_PAGE, after_id=before, before_id=behind
            )
            ended = {record.job.id: record for record in records if record.job.state.is_end}
        for member in page:
            yield ended.get(member.id) or read(str(member))
