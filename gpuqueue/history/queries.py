"""Reads the history: a few queries for a page of jobs with their runs, however many there are."""

from __future__ import annotations

from typing import TYPE_CHECKING

import sqlalchemy as sa

from gpuqueue.clock import from_epoch_ms
from gpuqueue.codec import whole_payload
from gpuqueue.history import filters
from gpuqueue.history.members import last_id_of, requests
from gpuqueue.history.records import event_of, record_of, records_of
from gpuqueue.history.tables import job_events, jobs, metadata, outbox_cursor
from gpuqueue.model.event import Act, Cursor, Event, place
from gpuqueue.model.history_query import HistoryQuery
from gpuqueue.model.job import JobState
from gpuqueue.model.run import Record, Survivor

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence
    from datetime import datetime

    from gpuqueue.model.job import Job

#: Most parameters of one IN (…); PostgreSQL takes 65535, SQLite 32766.
_MOST_IN = 1000
#: Jobs in a page of survivors.
_PAGE = 500


def history(connection: sa.Connection, query: HistoryQuery) -> list[Record]:
    """Return the jobs that match *query* with all their runs, in its order."""
    return records_of(_Tables(connection), filters.page(connection, query))


def get(connection: sa.Connection, job_id: int) -> Record | None:
    """Return the job with all that the book has of it, or None if the book does not know it."""
    return record_of(_Tables(connection), job_id)


def survivors(connection: sa.Connection) -> Iterator[list[Survivor]]:
    """Yield every job that has not ended, in pages, in the order of their ids.

    One whose request cannot be read is there as well: its run may be on, and whoever claims it ends it with its story.
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
        payloads = {row["id"]: whole_payload(row["spec"], arrays.get(row["array_id"])) for row in rows}
        origins = {row["id"]: row["array_id"] or row["id"] for row in rows}  # a member is meant as its array is
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

    One that the book does not know will never be heard of: that is no success.
    """
    ids = {each.job_id for record in records if _may_wait(record.job) for each in record.job.spec.waits.after}
    found = states(connection, ids)
    return {each: found.get(each) is JobState.SUCCEEDED for each in ids if found.get(each, JobState.LOST).is_end}


def _may_wait(job: Job) -> bool:
    """Return whether it may wait for others: it never ran, or may have been told to since."""
    return not job.attempt or not job.state.is_active


def states(connection: sa.Connection, job_ids: Collection[int]) -> dict[int, JobState]:
    """Return where each of *job_ids* stands that the book knows."""
    found: dict[int, JobState] = {}
    ids = sorted(job_ids)
    for start in range(0, len(ids), _MOST_IN):
        some = sa.select(jobs.c.id, jobs.c.state).where(jobs.c.id.in_(ids[start : start + _MOST_IN]))
        found.update({row.id: JobState(row.state) for row in connection.execute(some)})
    return found


def _meant_for_gpus(connection: sa.Connection, ids: Sequence[int]) -> set[int]:
    """Return which of these jobs are meant for a GPU although their request does not say so."""
    acts = (Act.SUBMIT.value, Act.EDIT.value, Act.RESTORE.value, Act.ADOPT.value)
    wanted = sa.select(job_events).where(job_events.c.job_id.in_(ids), job_events.c.act.in_(acts))
    told = (event_of(row) for row in connection.execute(wanted.where(job_events.c.detail.is_not(None))).mappings())
    return {event.job_id for event in told if event.fields.get("meant") == "gpu"}


def _parked(connection: sa.Connection, ids: Sequence[int]) -> dict[str, datetime]:
    """Return until when each run is left to its shim, by token: of those that no worker has taken over since."""
    acts = (Act.PARK.value, Act.ADOPT.value)
    wanted = sa.select(job_events).where(job_events.c.job_id.in_(ids), job_events.c.act.in_(acts))
    told = sorted((event_of(row) for row in connection.execute(wanted).mappings()), key=lambda event: place(event.id))
    last = {event.fields.get("token", ""): event for event in told}
    return {token: from_epoch_ms(int(event.fields["until"])) for token, event in last.items() if event.act is Act.PARK}


def events(connection: sa.Connection, job_id: int) -> tuple[Event, ...]:
    """Return every step of the job in order; payloads that are in its record are left out of ``fields``."""
    found = connection.execute(sa.select(job_events).where(job_events.c.job_id == job_id)).mappings()
    return tuple(sorted((event_of(row) for row in found), key=lambda event: place(event.id)))


def max_job_id(connection: sa.Connection) -> int | None:
    """Return the highest job id that the book has seen, or None if it has seen none.

    The ids of an array's members are seen with its own.
    """
    highest = (connection.scalar(sa.select(sa.func.max(table.c[name]))) for table, name in _ID_COLUMNS)
    found = max((each for each in highest if each is not None), default=None)
    return None if found is None else last_id_of(connection, found)


def cursor(connection: sa.Connection) -> Cursor | None:
    """Return how far the outbox is read, or None if nothing was ever read."""
    row = connection.execute(sa.select(outbox_cursor)).mappings().first()
    return Cursor(epoch=row["epoch"], last_id=row["last_id"]) if row is not None else None


#: A job whose submission could not be read has left only events.
_ID_COLUMNS = ((jobs, "id"), (job_events, "job_id"))


class _Tables:
    """Reads rows for :mod:`gpuqueue.history.records`."""

    def __init__(self, connection: sa.Connection) -> None:
        self._connection = connection

    def of(self, table: str, key: str, ids: Collection[int], order: str) -> list[sa.RowMapping]:
        """Return whole rows: see :class:`gpuqueue.history.rows.Rows`."""
        columns, wanted = metadata.tables[table], sorted(ids)
        rows: list[sa.RowMapping] = []
        for start in range(0, len(wanted), _MOST_IN):
            some = columns.c[key].in_(wanted[start : start + _MOST_IN])
            found = sa.select(columns).where(some).order_by(columns.c[key], columns.c[order])
            rows.extend(self._connection.execute(found).mappings())
        return rows

    def standing(self, array_ids: Collection[int]) -> list[tuple[int, str, int]]:
        """Return where members stand: see :class:`gpuqueue.history.rows.Rows`."""
        some = sa.select(jobs.c.array_id, jobs.c.state, sa.func.count()).where(jobs.c.array_id.in_(array_ids))
        found = self._connection.execute(some.group_by(jobs.c.array_id, jobs.c.state))
        return [(array_id, state, number) for array_id, state, number in found]
