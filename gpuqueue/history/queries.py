"""Reads jobs with their runs: a few queries for a page, whatever its number of jobs."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import datetime
from itertools import groupby
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from gpuqueue.clock import from_epoch_ms
from gpuqueue.codec.request import whole_payload
from gpuqueue.history import environments, filters, members
from gpuqueue.history.members import last_id_of, requests
from gpuqueue.history.past_runs import MOST_SPEC_BYTES, TELLING, codes_of, is_probe, runs_of
from gpuqueue.history.records import event_of, parts, record_of, records_of
from gpuqueue.history.tables import job_events, jobs, metadata, outbox_cursor, run_devices, runs
from gpuqueue.lazy.frozen import dataclass
from gpuqueue.lazy.imports import later
from gpuqueue.learning.past_run import Proof
from gpuqueue.learning.replay import PastJob
from gpuqueue.model.event import Act, Cursor, Event, place
from gpuqueue.model.history_query import FoldedRow, HistoryQuery
from gpuqueue.model.job import JobState
from gpuqueue.model.job_spec import Account
from gpuqueue.model.run import EndingKind, Record, StartKind, Survivor

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from gpuqueue.history.past_runs import Code
    from gpuqueue.learning.past_run import PastRun
    from gpuqueue.model import page
    from gpuqueue.model.array import MemberEnds
    from gpuqueue.model.job import Job
    from gpuqueue.model.page import JobSummary
else:
    page = later("gpuqueue.model.page")

#: Jobs in a page of :func:`survivors`.
_PAGE = 500
#: Most jobs that are read. A replay of this many takes about a second, and some seconds for large sweeps.
MOST_REPLAYED = 2000

#: The number of leading columns that a single run needs, those of QUERY. The others are about the job.
_OF_JOB = 19
#: Most jobs among which the retries of one are looked for.
MOST_SEARCHED = 5000


def history(connection: sa.Connection, query: HistoryQuery, *, with_members: bool = True) -> list[Record]:
    """Return the jobs that match *query*, with all their runs, in the order of the query.

    Without members, those of arrays are left out, and the arrays stay, with their progress.
    """
    rows = filters.page(connection, query, with_members=with_members)
    return records_of(_Tables(connection), rows, arrays_too=not with_members)


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


def _ends(connection: sa.Connection, records: Sequence[Record]) -> dict[int, bool | MemberEnds]:
    """Return which of the jobs that others wait for have ended, and whether they succeeded.

    For an array that is followed member by member, return how its members have ended.
    A job that is not in the history database counts as ended without success.
    """
    ids = {each.job_id for record in records if _may_wait(record.job) for each in record.job.spec.waits.after}
    found = states(connection, ids)
    over: dict[int, bool | MemberEnds] = {
        each: found.get(each) is JobState.SUCCEEDED for each in ids if found.get(each, JobState.LOST).is_end
    }
    for each in {record.job.spec.waits.followed for record in records if _may_wait(record.job)}:
        if each is not None and (ended := members.ends(connection, each)) is not None:
            over[each] = ended
    return over


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
        """Return whole rows: see :class:`gpuqueue.history.records.Rows`."""
        columns = metadata.tables[table]
        rows: list[sa.RowMapping] = []
        for some in parts(ids):
            found = sa.select(columns).where(columns.c[key].in_(some)).order_by(columns.c[key], columns.c[order])
            rows.extend(self._connection.execute(found).mappings())
        return rows

    def count_states(self, array_ids: Collection[int]) -> list[tuple[int, str, int]]:
        """Return members per array and state: see :class:`gpuqueue.history.records.Rows`."""
        some = sa.select(jobs.c.array_id, jobs.c.state, sa.func.count()).where(jobs.c.array_id.in_(array_ids))
        found = self._connection.execute(some.group_by(jobs.c.array_id, jobs.c.state))
        return [(array_id, state, number) for array_id, state, number in found]


def past_jobs(
    connection: sa.Connection, *, since: datetime, until: datetime, user: str | None, limit: int = MOST_REPLAYED
) -> tuple[list[PastJob], bool]:
    """Return the newest *limit* jobs that ended from *since* to *until* and whose last run shows a need, by id.

    *user* is the submitting account, None for all. The second value says whether the period has more such jobs.
    """
    newest = _newest(since, until, user, limit + 1)
    is_cut = (connection.scalar(sa.select(sa.func.count()).select_from(newest)) or 0) > limit
    rows = connection.execute(_with_runs(newest)).all()
    grouped = [list(each) for _, each in groupby(rows, key=lambda row: row.id)]
    if len(grouped) > limit:
        oldest = min(range(len(grouped)), key=lambda place: grouped[place][0].job_ended_at)
        del grouped[oldest]
    known = codes_of(_arrays(connection, {row.array_id for row in rows} - {None}))
    return [_job(each, known) for each in grouped], is_cut


def _newest(since: datetime, until: datetime, user: str | None, limit: int) -> sa.Subquery:
    wanted = (
        sa.select(jobs.c.id)
        .where(sa.text(f"({TELLING})"), jobs.c.ended_at >= since, jobs.c.ended_at < until)
        .where(jobs.c.program.is_not(None))
        .order_by(jobs.c.ended_at.desc())
        .limit(limit)
    )
    return (wanted if user is None else wanted.where(jobs.c.user_name == user)).subquery("newest")


def _with_runs(newest: sa.Subquery) -> sa.Select[Any]:
    """Return a query whose rows begin with the columns of :data:`gpuqueue.history.past_runs.QUERY`, in its order."""
    spec = sa.case((sa.func.length(jobs.c.spec) <= MOST_SPEC_BYTES, jobs.c.spec), else_="")
    of_run = jobs.c.id, runs.c.attempt, runs.c.ending, runs.c.exit_code
    of_job = (
        *(jobs.c.command, jobs.c.interpreter, spec.label("spec"), jobs.c.array_id),
        *(jobs.c.mem_bytes, jobs.c.mem_retries, runs.c.notes, runs.c.duration_s),
    )
    device = (
        *(run_devices.c.lease_bytes, run_devices.c.peak_bytes, run_devices.c.peak_source, run_devices.c.samples),
        *(run_devices.c.kind, run_devices.c.name, run_devices.c.total_bytes),
    )
    more = (jobs.c.user_name, jobs.c.program, jobs.c.submitted_at, jobs.c.ended_at.label("job_ended_at"))
    source = (
        newest.join(jobs, jobs.c.id == newest.c.id)
        .join(runs, runs.c.job_id == jobs.c.id)
        .join(run_devices, (run_devices.c.job_id == runs.c.job_id) & (run_devices.c.attempt == runs.c.attempt))
    )
    return (
        sa.select(*of_run, *of_job, *device, *more)
        .select_from(source)
        .where(runs.c.ending.is_not(None))
        .order_by(jobs.c.id, runs.c.attempt.desc(), run_devices.c.device_index)
    )


def _arrays(connection: sa.Connection, ids: Iterable[int]) -> dict[int, str]:
    """Return the requests of arrays by their ids, without those that are too long."""
    found: dict[int, str] = {}
    for some in parts(ids):
        wanted = sa.select(jobs.c.id, jobs.c.spec).where(jobs.c.id.in_(some))
        short = wanted.where(sa.func.length(jobs.c.spec) <= MOST_SPEC_BYTES)
        found.update({row.id: row.spec for row in connection.execute(short)})
    return found


def _job(rows: Sequence[sa.Row[Any]], known: Mapping[int, Code]) -> PastJob:
    """Return the job with these *rows*, newest run first, one for each device of each run."""
    attempts = [list(each) for _, each in groupby(rows, key=lambda row: row.attempt)]
    last, first = attempts[0], attempts[-1]
    proved = runs_of([[tuple(row)[:_OF_JOB] for row in each] for each in attempts], known)
    job = last[0]
    return PastJob(
        id=job.id,
        program=(job.user_name, job.program),
        runs=tuple(run for run in proved if run is not None),
        is_known=_is_known(proved[0], job),
        asked_bytes=max(row.lease_bytes for row in first),
        used_bytes=sum(row.peak_bytes or 0 for row in last),
        devices=len(last),
        duration_s=job.duration_s or 0.0,
        submitted_at=job.submitted_at,
        ended_at=job.job_ended_at,
    )


def _is_known(run: PastRun | None, job: sa.Row[Any]) -> bool:
    """Return whether the need of the last *run* is known. A probe has the whole device, which nobody asked for."""
    return run is not None and run.proof is Proof.PEAK and bool(job.duration_s) and not is_probe(job.spec)


def retries_of(connection: sa.Connection, job_id: int, user: str, members: int = 0) -> list[int]:
    """Return the ids of the retries of a job, the oldest first, among the next MOST_SEARCHED jobs of *user*.

    Those of an array are also those of its *members*: the ids of so many members follow its own.
    """
    later = sa.select(jobs.c.id, jobs.c.spec).where(jobs.c.user_name == user, jobs.c.id > job_id)
    newer = later.where(jobs.c.array_id.is_(None)).order_by(jobs.c.id).limit(MOST_SEARCHED).subquery()
    named = newer.c.spec.contains('"retry_of"', autoescape=True)
    found = connection.execute(sa.select(newer.c.id, newer.c.spec).where(named).order_by(newer.c.id))
    ids = range(job_id, job_id + members + 1)
    return [row.id for row in found if json.loads(row.spec).get("retry_of") in ids]


def retried(connection: sa.Connection, job_ids: Collection[int]) -> set[int]:
    """Return which of *job_ids* have a retry. A retry has a higher id than its job."""
    if not job_ids:
        return set()
    names_one = jobs.c.spec.contains('"retry_of"', autoescape=True)
    found = connection.execute(sa.select(jobs.c.spec).where(jobs.c.id > min(job_ids), names_one)).scalars()
    return {int(plain["retry_of"]) for plain in map(json.loads, found) if plain.get("retry_of")} & {*job_ids}


# ---- arrays as one row -----------------------------------------------------------------------------------------------

# The ids of an array and its members are one block. So the list is read along the ids, and from the first row of an
# array it goes on behind the block: the cost depends on the number of rows shown, not on the size of the arrays. In the
# order of ends, the members of an array are apart. So only arrays and single jobs are listed there, and an array is
# where it has ended as a whole.


def folded(connection: sa.Connection, query: HistoryQuery) -> list[FoldedRow]:
    """Return at most ``limit`` rows of the jobs that match *query*, in the order of their ids or of their ends.

    An array is one row, with the number of its matching members in each state. Members without a row of their own are
    among them: those that wait, and those that were cancelled before a device took them.
    """
    if not query.is_by_id:
        return [_row(connection, query, each) for each in history(connection, query, with_members=False)]
    rows: list[FoldedRow] = []
    page = query
    while len(rows) < query.limit:
        records = history(connection, page)
        for record in records:
            array_id = _array_of(record)
            if rows and array_id is not None and array_id == _array_of(rows[-1].record):
                continue
            rows.append(_row(connection, query, record))
            if len(rows) == query.limit:
                return rows
        if len(records) < page.limit:
            return rows
        page = replace(page, after_id=rows[-1].last_id)
    return rows


def _array_of(record: Record) -> int | None:
    """Return the id of the array that *record* is, or belongs to, or None."""
    if record.job.member is not None:
        return record.job.member.array_id
    return record.job.id if record.job.spec.array is not None else None


def _row(connection: sa.Connection, query: HistoryQuery, record: Record) -> FoldedRow:
    array_id = _array_of(record)
    if array_id is None:
        return FoldedRow(record=record, last_id=record.job.id)
    members, highest = filters.counts(connection, replace(query, array_id=array_id, after_id=None))
    whole = record if record.job.tally is not None else get(connection, array_id) or record
    members = {**members, **_without_rows(connection, query, whole.job, members)}
    return FoldedRow(
        record=whole,
        members={state: members[state.value] for state in JobState if members.get(state.value)},
        last_id=max(array_id, highest) if query.reverse and query.is_by_id else array_id,
    )


def _without_rows(
    connection: sa.Connection, query: HistoryQuery, array: Job, members: Mapping[str, int]
) -> dict[str, int]:
    """Return *members* with those that have no row: they wait, or were cancelled before a device took them.

    They have had no run, so a query for something of runs matches none of them.
    """
    tally = array.tally
    if tally is None or query.is_about_runs:
        return {}
    rows, _ = filters.counts(connection, HistoryQuery(array_id=array.id, states=(JobState.CANCELLED,)))
    more = {
        JobState.QUEUED: len(tally.left),
        JobState.HELD: len(tally.held),
        JobState.CANCELLED: tally.ended.get(JobState.CANCELLED.value, 0) - rows.get(JobState.CANCELLED.value, 0),
    }
    return {
        state.value: members.get(state.value, 0) + count
        for state, count in more.items()
        if not query.states or state in query.states
    }


#: The events that are counted.
ACTS = (Act.SUBMIT, Act.CLAIM, Act.RELEASE_CLAIM, Act.STARTED, Act.PREEMPT, Act.FINISH, Act.LOSE)
#: Numbers of event ids from here on belong to events that a rebuild has written again (refill.py).
_AGAIN = 10**9


@dataclass(frozen=True, kw_only=True, slots=True)
class RecordedEvent:
    """An event with what its job and its run have now. ``wait_s`` is known for the first start of a job."""

    act: Act
    start_kind: StartKind | None = None
    wait_s: float | None = None
    ending: EndingKind | None = None
    exit_code: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Position:
    """How far a reader has read. ``seen`` are the ids of the last millisecond, which may have more events later."""

    cursor: Cursor
    seen: frozenset[str] = frozenset()


def position(connection: sa.Connection) -> Position:
    """Return the position behind all recorded events."""
    read = cursor(connection) or Cursor(epoch="")
    seen = connection.scalars(sa.select(job_events.c.event_id).where(*_after(read))) if read.epoch else ()
    return Position(cursor=read, seen=frozenset(seen))


def recorded_events(
    connection: sa.Connection, after: Position, most: int
) -> tuple[Sequence[RecordedEvent], Position, bool]:
    """Return at most *most* events behind *after*, the new position, and whether there may be more.

    After a rebuild of the store its events are read from their beginning. What the rebuild wrote again is left out.
    """
    newest = cursor(connection)
    if newest is None:
        return (), after, False
    if newest.epoch != after.cursor.epoch:
        after = Position(cursor=Cursor(epoch=newest.epoch))
    limit = most + len(after.seen)
    rows = connection.execute(_wanted().where(*_after(after.cursor)).order_by(job_events.c.event_id).limit(limit)).all()
    new = [row for row in rows if row.event_id not in after.seen][:most]
    if not new:
        return (), after, False
    last_ms = place(new[-1].event_id)[0]
    before = after.seen if last_ms == place(after.cursor.last_id)[0] else frozenset()
    reached = Position(
        cursor=Cursor(epoch=newest.epoch, last_id=f"{last_ms}-0"),
        seen=before.union(row.event_id for row in new if place(row.event_id)[0] == last_ms),
    )
    counted = [_event(row) for row in new if row.act in ACTS and place(row.event_id)[1] < _AGAIN]
    return counted, reached, len(rows) == limit


def _after(cursor: Cursor) -> list[sa.ColumnElement[bool]]:
    """Return the conditions for the events from the millisecond of *cursor* on. As text ``…-10`` precedes ``…-9``."""
    ms, _ = place(cursor.last_id)
    return [job_events.c.epoch == cursor.epoch, job_events.c.event_id >= (f"{ms}-" if ms else "")]


def _wanted() -> sa.Select[tuple[object, ...]]:
    of_run = (runs.c.job_id == job_events.c.job_id) & (runs.c.attempt == job_events.c.attempt)
    source = job_events.outerjoin(jobs, jobs.c.id == job_events.c.job_id).outerjoin(runs, of_run)
    columns = (
        *(job_events.c.event_id, job_events.c.act, job_events.c.at, job_events.c.attempt, jobs.c.submitted_at),
        *(runs.c.start_kind, runs.c.ending, runs.c.exit_code),
    )
    return sa.select(*columns).select_from(source)


def _event(row: sa.Row[tuple[object, ...]]) -> RecordedEvent:
    at, submitted_at = row.at, row.submitted_at
    is_first = row.act == Act.STARTED and row.attempt == 1
    known = is_first and isinstance(at, datetime) and isinstance(submitted_at, datetime)
    return RecordedEvent(
        act=Act(row.act),
        start_kind=StartKind.known(row.start_kind),
        wait_s=max(0.0, (at - submitted_at).total_seconds()) if known else None,
        ending=EndingKind(row.ending) if row.ending else None,
        exit_code=row.exit_code,
    )
