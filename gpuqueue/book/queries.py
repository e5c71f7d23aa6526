"""Reads the history: a few queries for a page of jobs with their runs, however many there are."""

from __future__ import annotations

import json
import shlex
from collections import defaultdict
from dataclasses import replace
from typing import TYPE_CHECKING

import sqlalchemy as sa

from gpuqueue.array import Member
from gpuqueue.book import filters, notices
from gpuqueue.book.members import last_id_of, requests, tally
from gpuqueue.book.tables import job_events, job_tags, jobs, outbox_cursor, run_devices, run_timelines, runs
from gpuqueue.clock import from_epoch_ms
from gpuqueue.codec import UNREADABLE, decode_spec, stand_in, whole_payload
from gpuqueue.device import Activity, DeviceKind, Peak, PeakSource, Timeline
from gpuqueue.errors import Unreadable
from gpuqueue.event import Act, Cursor, Event, place
from gpuqueue.history import HistoryQuery
from gpuqueue.job import Job, JobSpec, JobState, Level, WaitReason
from gpuqueue.run import Ending, EndingKind, Note, Record, Run, RunDevice, StartKind, Survivor

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence
    from datetime import datetime

#: Most parameters of one IN (…); PostgreSQL takes 65535, SQLite 32766.
_MOST_IN = 1000
#: Jobs in a page of survivors.
_PAGE = 500


def history(connection: sa.Connection, query: HistoryQuery) -> list[Record]:
    """Return the jobs that match *query* with all their runs, in its order."""
    return _records(connection, filters.page(connection, query))


def get(connection: sa.Connection, job_id: int) -> Record | None:
    """Return the job with all its runs, their timelines and notes, or None if the book does not know it.

    What became of its notices is there as well.
    """
    found = connection.execute(sa.select(jobs).where(jobs.c.id == job_id)).mappings().all()
    record = next(iter(_records(connection, found, timelines=True, arrays_too=True)), None)
    if record is None:
        return None
    return replace(record, notes=_notes(connection, job_id), told=notices.told(connection, job_id))


def _notes(connection: sa.Connection, job_id: int) -> tuple[Note, ...]:
    told = (event for event in events(connection, job_id) if event.act in {Act.NOTE, Act.LIFT})
    return tuple(Note(at=event.at, attempt=event.attempt, text=_text(event)) for event in told)


def _text(event: Event) -> str:
    level = event.fields.get("level", "")
    if event.act is not Act.LIFT or level not in {str(each.value) for each in Level}:
        return event.fields.get("detail", "")
    return f"waited long: lifted to level {Level(int(level))}"


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
        records = _records(connection, rows, arrays_too=True)
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
    waiting = [record.job for record in records if not record.job.attempt and record.job.spec.waits.after]
    ids = {each.job_id for job in waiting for each in job.spec.waits.after}
    found = states(connection, ids)
    return {each: found.get(each) is JobState.SUCCEEDED for each in ids if found.get(each, JobState.LOST).is_end}


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
    told = (_event(row) for row in connection.execute(wanted.where(job_events.c.detail.is_not(None))).mappings())
    return {event.job_id for event in told if event.fields.get("meant") == "gpu"}


def _parked(connection: sa.Connection, ids: Sequence[int]) -> dict[str, datetime]:
    """Return until when each run is left to its shim, by token: of those that no worker has taken over since."""
    acts = (Act.PARK.value, Act.ADOPT.value)
    wanted = sa.select(job_events).where(job_events.c.job_id.in_(ids), job_events.c.act.in_(acts))
    told = sorted((_event(row) for row in connection.execute(wanted).mappings()), key=lambda event: place(event.id))
    last = {event.fields.get("token", ""): event for event in told}
    return {token: from_epoch_ms(int(event.fields["until"])) for token, event in last.items() if event.act is Act.PARK}


def events(connection: sa.Connection, job_id: int) -> tuple[Event, ...]:
    """Return every step of the job in order; payloads that are in its record are left out of ``fields``."""
    found = connection.execute(sa.select(job_events).where(job_events.c.job_id == job_id)).mappings()
    return tuple(sorted((_event(row) for row in found), key=lambda event: place(event.id)))


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


def _records(
    connection: sa.Connection, rows: Sequence[sa.RowMapping], *, timelines: bool = False, arrays_too: bool = False
) -> list[Record]:
    """Return *rows* with their runs; what takes long only if asked for: timelines, how far arrays have come."""
    come = tally(connection, rows) if arrays_too else {}
    arrays = requests(connection, {row["array_id"] for row in rows} - {None})
    ids = [row["id"] for row in rows]
    lines: dict[tuple[int, int, str], Timeline] = {}
    if timelines:
        for row in _of_jobs(connection, run_timelines, ids, "attempt"):
            steps = tuple(json.loads(row["bytes"]))
            lines[row["job_id"], row["attempt"], row["device_uuid"]] = Timeline(step_s=row["step_s"], bytes=steps)
    devices: dict[tuple[int, int], list[RunDevice]] = defaultdict(list)
    for row in _of_jobs(connection, run_devices, ids, "device_index"):
        line = lines.get((row["job_id"], row["attempt"], row["device_uuid"]))
        devices[row["job_id"], row["attempt"]].append(_run_device(row, line))
    runs_of: dict[int, list[Run]] = defaultdict(list)
    for row in _of_jobs(connection, runs, ids, "attempt"):
        runs_of[row["job_id"]].append(_run(row, devices[row["job_id"], row["attempt"]]))
    tags: dict[int, list[str]] = defaultdict(list)
    for row in _of_jobs(connection, job_tags, ids, "tag"):
        tags[row["job_id"]].append(row["tag"])
    return [
        Record(
            job=replace(
                _job(row, runs_of[row["id"]], arrays.get(row["array_id"])),
                tally=come.get(row["id"]),
                tags=tuple(tags[row["id"]]),
            ),
            runs=tuple(runs_of[row["id"]]),
        )
        for row in rows
    ]


def _of_jobs(connection: sa.Connection, table: sa.Table, ids: Sequence[int], order: str) -> list[sa.RowMapping]:
    """Return the rows of *table* that belong to the jobs *ids*."""
    rows: list[sa.RowMapping] = []
    for start in range(0, len(ids), _MOST_IN):
        some = ids[start : start + _MOST_IN]
        found = sa.select(table).where(table.c.job_id.in_(some)).order_by(table.c.job_id, table.c[order])
        rows.extend(connection.execute(found).mappings())
    return rows


def _job(row: sa.RowMapping, its_runs: Sequence[Run], array: str | None) -> Job:
    return Job(
        id=row["id"],
        spec=_spec(row, array),
        state=JobState(row["state"]),
        submitted_at=row["submitted_at"],
        attempt=row["attempt"],
        losses=row["losses"],
        retries=row["retries"],
        requeues=row["requeues"],
        begins_at=row["begins_at"],
        because=row["because"],
        reason=WaitReason(row["reason"]) if row["reason"] else None,
        claimed_at=row["claimed_at"],
        started_at=row["started_at"],
        ended_at=row["ended_at"],
        host=row["host"],
        devices=tuple(device.uuid for device in its_runs[-1].devices) if its_runs else (),
        front=row["front"],
        note=row["note"],
        member=None if row["array_id"] is None else Member(row["array_id"], row["array_index"]),
    )


def _spec(row: sa.RowMapping, array: str | None) -> JobSpec:
    """Return the request; where a damaged payload or a newer version's cannot be read, what the columns tell of it."""
    try:
        return decode_spec(whole_payload(row["spec"], array))
    except Unreadable:
        known = {name: row[name] for name in ("name", "gpus", "time_limit_s", "pool", "cwd", "script", "interpreter")}
        return stand_in(
            user=row["user_name"],
            uid=row["user_uid"],
            host=row["submit_host"],
            mem_bytes=row["mem_bytes"],
            level=Level(row["level"]),
            argv=_words(row["command"]),
            **known,
        )


def _words(command: str) -> tuple[str, ...]:
    """Return the words that were joined to *command*."""
    try:
        return tuple(shlex.split(command)) or (UNREADABLE,)
    except ValueError:
        return (UNREADABLE,)


def _run(row: sa.RowMapping, devices: Sequence[RunDevice]) -> Run:
    return Run(
        job_id=row["job_id"],
        attempt=row["attempt"],
        token=row["token"],
        host=row["host"],
        worker=row["worker"],
        devices=tuple(devices),
        claimed_at=row["claimed_at"],
        started_at=row["started_at"],
        ended_at=row["ended_at"],
        duration_s=row["duration_s"],
        ending=_ending(row),
        log_path=row["log_path"],
        peak_at_once_bytes=row["peak_at_once_bytes"],
        start_kind=StartKind.known(row["start_kind"]),
    )


def _ending(row: sa.RowMapping) -> Ending | None:
    if row["ending"] is None:
        return None
    return Ending(
        kind=EndingKind(row["ending"]),
        exit_code=row["exit_code"],
        signal=row["signal"],
        detail=row["detail"] or "",
    )


def _run_device(row: sa.RowMapping, timeline: Timeline | None) -> RunDevice:
    return RunDevice(
        uuid=row["device_uuid"],
        index=row["host_index"],
        name=row["name"],
        kind=DeviceKind(row["kind"]) if row["kind"] else None,
        total_bytes=row["total_bytes"],
        lease_bytes=row["lease_bytes"],
        peak=Peak(
            bytes=row["peak_bytes"],
            source=PeakSource(row["peak_source"]),
            samples=row["samples"],
            na_samples=row["na_samples"],
            interval_s=row["interval_s"],
            shared=row["shared"],
        ),
        activity=Activity(
            first_memory_s=row["first_memory_s"],
            utilisation_mean=row["utilisation_mean"],
            utilisation_max=row["utilisation_max"],
            temperature_max_c=row["temperature_max_c"],
        ),
        timeline=timeline,
    )


def _event(row: sa.RowMapping) -> Event:
    fields: Mapping[str, str] = json.loads(row["detail"]) if row["detail"] else {}
    return Event(
        id=row["event_id"],
        act=Act(row["act"]),
        job_id=row["job_id"],
        state=JobState(row["state"]),
        at=row["at"],
        attempt=row["attempt"],
        losses=row["losses"],
        reason=WaitReason(row["reason"]) if row["reason"] else None,
        fields=fields,
    )
