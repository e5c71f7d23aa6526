"""Selects the ended jobs that a retry submits again, by common properties."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime

from gpuqueue.client import listing
from gpuqueue.client.connection import Connection
from gpuqueue.client.selection import PAGE, Chosen, whole
from gpuqueue.errors import BadRequest
from gpuqueue.model import times, validation
from gpuqueue.model.history_query import HistoryQuery
from gpuqueue.model.job import Job, JobState
from gpuqueue.model.job_spec import tags_of
from gpuqueue.model.queue_query import QueueQuery


def choose(
    connection: Connection,
    *,
    user: str | None,
    name: str | None,
    states: Sequence[JobState | str],
    tag: str | None,
    since: str | datetime | None,
) -> list[Chosen]:
    """Return the ended jobs that match all criteria and were not retried yet, in the order of their ids.

    Probes are not among them: each would take a whole device again.
    """
    ends = validation.words_of("states", states, JobState)
    if not ends or not all(state.is_end for state in ends):
        raise BadRequest(
            f"only a job that has ended can be retried: write {', '.join(s for s in JobState if s.is_end)}"
        )
    query = HistoryQuery(
        user=validation.text_or_none("user", user) or connection.account.name,
        name=validation.text_or_none("name", name),
        states=ends,
        tags=() if tag is None else tags_of((tag,)),
        since=times.moment("since", since),
        reverse=True,
        limit=PAGE,
    )
    found = [job for job in whole(_all(connection, query)) if job.spec.probe is None]
    over = _retried(connection, found)
    return [Chosen(job.label, job) for job in found if over.isdisjoint(_ids(job))]


def _all(connection: Connection, query: HistoryQuery) -> list[Job]:
    found: list[Job] = []
    while True:
        page = connection.database.history(query)
        found += [record.job for record in page]
        if len(page) < PAGE:
            return found
        query = replace(query, after_id=page[-1].job.id)


def _ids(job: Job) -> set[int]:
    """Return the ids under which *job* may have been retried: its own, and that of its array."""
    return {job.id, job.member.array_id} if job.member is not None else {job.id}


def _retried(connection: Connection, found: Sequence[Job]) -> set[int]:
    """Return the retried jobs among *found* and their arrays. The history does not have the newest retries yet."""
    recorded = connection.database.retried({each for job in found for each in _ids(job)})
    return recorded | {
        job.spec.retry_of for job in listing.listing(connection, QueueQuery()).jobs if job.spec.retry_of is not None
    }
