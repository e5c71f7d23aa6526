"""Reads jobs with their runs: a few queries for a page, whatever its number of jobs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import sqlalchemy as sa

from gpuqueue.clock import from_epoch_ms
from gpuqueue.codec import whole_payload
from gpuqueue.history import environments, filters
from gpuqueue.history.members import last_id_of, requests
from gpuqueue.history.records import event_of, record_of, records_of
from gpuqueue.history.rows import parts
from gpuqueue.history.tables import job_events, jobs, metadata, outbox_cursor
from gpuqueue.lazy.imports import later
from gpuqueue.model.event import Act, Cursor, Event, place
from gpuqueue.model.history_query import HistoryQuery
from gpuqueue.model.job import JobState
from gpuqueue.model.job_spec import Account
from gpuqueue.model.run import Record, Survivor

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence
    from datetime import datetime

    from gpuqueue.model import page
    from gpuqueue.model.job import Job
    from gpuqueue.model.page import JobSummary
else:  # only the page asks for it
    page = later("gpuqueue.model.page")

#: Jobs in a page of :func:`survivors`.
_PAGE = 500


def history(connection: sa.Connection, query: HistoryQuery) -> list[Record]:
    """Return the jobs that match *query*, with all their runs, in the order of the query."""
    return records_of(_Tables(connection), filters.page(connection, query))


def get(connection: sa.Connection, job_id: int) -> Record | None:
    """Return the job with all its data, or None if it is not in the history database."""
    return record_of(_Tables(connection), job_id)


def survivors(connection: sa.Connection) -> Iterator[list[Survivor]]:
    """Yield all jobs that have not ended, in pages, in the order of their ids.

    A job whose request cannot be read is included: its run may still be active, and a worker that claims the job ends
    it.
    """
    alive = jobs.c.state.in_([state.value for state in JobState if not state.is_end])
    last = 0
    while True:
        page = sa.select(jobs).where(alive, jobs.c.id > last).order_by(jobs.c.id).limit(_PAGE)
        rows = connection.execute(page).mappings().all()
        if not rows:
            return
        last = rows[-1]["id"]
        arrays = requests(connection, {row["array_id"] for row in rows} - {None})
        own = {row["id"]: row["spec"] for row in rows}
        whole = environments.restored(connection, {**arrays, **own})
        payloads = {row["id"]: whole_payload(whole[row["id"]], whole.get(row["array_id"])) for row in rows}
        origins = {row["id"]: row["array_id"] or row["id"] for row in rows}  # a member has the device kind of its array
        records = records_of(_Tables(connection), rows, arrays_too=True)
        gpu_jobs = _meant_for_gpus(connection, [*payloads, *arrays])
        ends = _ends(connection, records)
        parked = _parked(connection, [record.job.id for record in records if record.job.state.is_active])
        yield [
            Survivor(
                record=record,
                payload=payloads[record.job.id],
                meant_for_gpu=bool(gpu_jobs & {record.job.id, origins[record.job.id]}),
                ends={each.job_id: ends[each.job_id] for each in record.job.spec.waits.after if each.job_id in ends},
                parked_until=parked.get(record.last_run.token) if record.last_run else None,
            )
            for record in records
        ]


def _ends(connection: sa.Connection, records: Sequence[Record]) -> dict[int, bool]:
    """Return which of the jobs that others wait for have ended, and whether they succeeded.

    A job that is not in the history database counts as ended without success.
    """
    ids = {each.job_id for record in records if _may_wait(record.job) for each in record.job.spec.waits.after}
    found = states(connection, ids)
    return {each: found.get(each) is JobState.SUCCEEDED for each in ids if found.get(each, JobState.LOST).is_end}


def _may_wait(job: Job) -> bool:
    """Return whether *job* may wait for other jobs: it never ran, or is inactive, so an edit may have made it wait."""
    return not job.attempt or not job.state.is_active


def states(connection: sa.Connection, job_ids: Collection[int]) -> dict[int, JobState]:
    """Return the state of each of *job_ids* that is in the history database."""
    found: dict[int, JobState] = {}
    for some in parts(job_ids):
        rows = connection.execute(sa.select(jobs.c.id, jobs.c.state).where(jobs.c.id.in_(some)))
        found.update({row.id: JobState(row.state) for row in rows})
    return found


def summaries(connection: sa.Connection, job_ids: Collection[int]) -> dict[int, JobSummary]:
    """Return in a few words each of *job_ids* that is in the history database."""
    columns = jobs.c.id, jobs.c.name, jobs.c.user_name, jobs.c.user_uid, jobs.c.submit_host, jobs.c.state
    found: dict[int, JobSummary] = {}
    for some in parts(job_ids):
        for row in connection.execute(sa.select(*columns).where(jobs.c.id.in_(some))):
            account = Account(name=row.user_name, uid=row.user_uid, host=row.submit_host)
            found[row.id] = page.JobSummary(id=row.id, name=row.name, account=account, state=JobState(row.state))
    return found


def _meant_for_gpus(connection: sa.Connection, ids: Sequence[int]) -> set[int]:
    """Return which of the jobs *ids* are meant for a GPU although their request names no device kind."""
    acts = (Act.SUBMIT.value, Act.EDIT.value, Act.RESTORE.value, Act.ADOPT.value)
    wanted = sa.select(job_events).where(job_events.c.job_id.in_(ids), job_events.c.act.in_(acts))
    reported = (event_of(row) for row in connection.execute(wanted.where(job_events.c.detail.is_not(None))).mappings())
    return {event.job_id for event in reported if event.fields.get("meant") == "gpu"}


def _parked(connection: sa.Connection, ids: Sequence[int]) -> dict[str, datetime]:
    """Return until when each run is left to its shim, by token. Skip runs that a worker has adopted since."""
    acts = (Act.PARK.value, Act.ADOPT.value)
    wanted = sa.select(job_events).where(job_events.c.job_id.in_(ids), job_events.c.act.in_(acts))
    reported = sorted(
        (event_of(row) for row in connection.execute(wanted).mappings()), key=lambda event: place(event.id)
    )
    last = {event.fields.get("token", ""): event for event in reported}
    return {token: from_epoch_ms(int(event.fields["until"])) for token, event in last.items() if event.act is Act.PARK}


def events(connection: sa.Connection, job_id: int) -> tuple[Event, ...]:
    """Return the events of the job in order. ``fields`` omits the payloads that the job's record contains."""
    found = connection.execute(sa.select(job_events).where(job_events.c.job_id == job_id)).mappings()
    return tuple(sorted((event_of(row) for row in found), key=lambda event: place(event.id)))


def max_job_id(connection: sa.Connection) -> int | None:
    """Return the highest job id in the history database, or None if it has none.

    An array counts with the ids of all its members.
    """
    # A job whose submission could not be read has only events.
    highest = (connection.scalar(sa.select(sa.func.max(column))) for column in (jobs.c.id, job_events.c.job_id))
    found = max((each for each in highest if each is not None), default=None)
    return None if found is None else last_id_of(connection, found)


def cursor(connection: sa.Connection) -> Cursor | None:
    """Return the cursor in the outbox, or None if no event was ever read."""
    row = connection.execute(sa.select(outbox_cursor)).mappings().first()
    return Cursor(epoch=row["epoch"], last_id=row["last_id"]) if row is not None else None


class _Tables:
    """Reads rows through SQLAlchemy for :mod:`gpuqueue.history.records`."""

    def __init__(self, connection: sa.Connection) -> None:
        self._connection = connection

    def of(self, table: str, key: str, ids: Collection[int], order: str) -> list[sa.RowMapping]:
        """Return whole rows: see :class:`gpuqueue.history.rows.Rows`."""
        columns = metadata.tables[table]
        rows: list[sa.RowMapping] = []
        for some in parts(ids):
            found = sa.select(columns).where(columns.c[key].in_(some)).order_by(columns.c[key], columns.c[order])
            rows.extend(self._connection.execute(found).mappings())
        return rows

    def count_states(self, array_ids: Collection[int]) -> list[tuple[int, str, int]]:
        """Return members per array and state: see :class:`gpuqueue.history.rows.Rows`."""
        some = sa.select(jobs.c.array_id, jobs.c.state, sa.func.count()).where(jobs.c.array_id.in_(array_ids))
        found = self._connection.execute(some.group_by(jobs.c.array_id, jobs.c.state))
        return [(array_id, state, number) for array_id, state, number in found]
