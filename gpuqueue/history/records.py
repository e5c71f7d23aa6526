"""Builds jobs from their rows in the history database, whichever reader supplies the rows. Pure."""

from __future__ import annotations

import json
import shlex
from collections import defaultdict
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

from gpuqueue.codec.request import UNREADABLE, decode_notes, decode_spec, stand_in, whole_payload
from gpuqueue.codec.wire import from_plain
from gpuqueue.errors import BadRequest, Unreadable
from gpuqueue.lazy.imports import later
from gpuqueue.model.array import Indexes, Member, Tally
from gpuqueue.model.device import FIGURES, Activity, DeviceKind, Peak, PeakSource, Timeline
from gpuqueue.model.job import Job, JobState, WaitReason
from gpuqueue.model.job_spec import JobSpec, Priority
from gpuqueue.model.notification import Delivery, Outcome
from gpuqueue.model.run import Ending, EndingKind, Note, Record, Run, RunDevice, StartKind
from gpuqueue.text.json_fields import loaded

if TYPE_CHECKING:
    import logging
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from gpuqueue.codec import marks as codec_marks
    from gpuqueue.history import fold
    from gpuqueue.model import event as steps
    from gpuqueue.model import job_values, mem_source
    from gpuqueue.model.event import Event
    from gpuqueue.model.job_values import JobValues, Metric
else:
    codec_marks = later("gpuqueue.codec.marks")
    logging = later("logging")
    job_values = later("gpuqueue.model.job_values")
    mem_source = later("gpuqueue.model.mem_source")
    fold = later("gpuqueue.history.fold")
    steps = later("gpuqueue.model.event")

#: Acts that carry a note for the job's owner, by their names in :class:`gpuqueue.model.event.Act`.
_NOTES = frozenset({"note", "idle", "run_mark", "promote", "finish"})
_LIMITS = "the limits of a run"
#: Acts by which a run is known to have started.
_STARTS = frozenset({"started", "adopt"})
#: Most parameters of one IN (…); PostgreSQL takes 65535, SQLite 32766.
_MOST_IN = 1000


def record_of(source: Rows, job_id: int) -> Record | None:
    """Return the job with its runs, timelines, notes and notifications, or None if it has no row."""
    found = records_of(source, source.of("jobs", "id", [job_id], "id"), timelines=True, arrays_too=True)
    if not found:
        return None
    rows = source.of("job_events", "job_id", [job_id], "event_id")
    return Record(
        job=found[0].job,
        runs=tuple(_with_limits(found[0].runs, rows)),
        notes=_notes(rows),
        reported=_reported(source, job_id),
    )


def records_of(source: Rows, rows: Sequence[Row], *, timelines: bool = False, arrays_too: bool = False) -> list[Record]:
    """Return *rows* as jobs with their runs.

    Timelines and curves, and the progress of arrays, take long to read. They are included only if *timelines* and
    *arrays_too* are true.
    """
    come = tally(source, rows) if arrays_too else {}
    array_ids = {row["array_id"] for row in rows} - {None}
    arrays = {row["id"]: row["spec"] for row in source.of("jobs", "id", array_ids, "id")}
    ids = [row["id"] for row in rows]
    lines: dict[tuple[int, int, str], Timeline] = {}
    if timelines:
        for row in source.of("run_timelines", "job_id", ids, "attempt"):
            held = tuple(json.loads(row["bytes"]))
            lines[row["job_id"], row["attempt"], row["device_uuid"]] = Timeline(step_s=row["step_s"], bytes=held)
    devices: dict[tuple[int, int], list[RunDevice]] = defaultdict(list)
    for row in source.of("run_devices", "job_id", ids, "device_index"):
        line = lines.get((row["job_id"], row["attempt"], row["device_uuid"]))
        devices[row["job_id"], row["attempt"]].append(_run_device(row, line))
    metrics = _metrics(source, ids, curves=timelines)
    runs: dict[int, list[Run]] = defaultdict(list)
    for row in source.of("runs", "job_id", ids, "attempt"):
        key = row["job_id"], row["attempt"]
        runs[row["job_id"]].append(_run(row, devices[key], metrics[key]))
    tags: dict[int, list[str]] = defaultdict(list)
    for row in source.of("job_tags", "job_id", ids, "tag"):
        tags[row["job_id"]].append(row["tag"])
    return [
        Record(
            job=_job(row, runs[row["id"]], arrays.get(row["array_id"]), come.get(row["id"]), tags[row["id"]]),
            runs=tuple(runs[row["id"]]),
        )
        for row in rows
    ]


def _with_limits(runs: Sequence[Run], rows: Sequence[Row]) -> Iterator[Run]:
    """Yield *runs* with the limits that the events of their starts have kept; an adoption after a loss has none."""
    starts = [(row["attempt"], _limits(row["detail"])) for row in rows if row["act"] in _STARTS]
    kept = {attempt: limits for attempt, limits in starts if limits}
    for run in runs:
        yield replace(run, limits=kept.get(run.attempt, {}))


def _limits(detail: str | None) -> Mapping[str, int]:
    """Return the limits in the text of an event, nothing if it has none or they are damaged."""
    try:
        kept = loaded(loaded(detail or "{}", _LIMITS).text("limits", "{}"), _LIMITS)
        return {name: kept.whole(name) for name in kept}
    except Unreadable:
        return {}


def _notes(rows: Sequence[Row]) -> tuple[Note, ...]:
    notes = [event_of(row) for row in rows if row["act"] in _NOTES]
    notes.sort(key=lambda each: steps.place(each.id))
    return tuple(Note(at=each.at, attempt=each.attempt, text=text) for each in notes if (text := _text(each)))


def _text(event: Event) -> str:
    if event.act is steps.Act.FINISH:
        return fold.note_of(event) if event.fields.keys() & {"again", "mem_refused"} else ""
    priority = event.fields.get("priority", "")
    if event.act is not steps.Act.PROMOTE or priority not in {str(each.value) for each in Priority}:
        return event.fields.get("detail", "")
    return f"waited long: promoted to priority {Priority(int(priority))}"


def _reported(source: Rows, job_id: int) -> tuple[Delivery, ...]:
    """Return the state of each notification about the end of the job."""
    return tuple(
        Delivery(
            **_named(row, ("number", "tries", "at", "trouble")),
            outcome=Outcome(row["outcome"]) if row["outcome"] else None,
        )
        for row in source.of("notifications", "job_id", [job_id], "number")
    )


#: Columns that have the name of the attribute.
_OF_JOB = (
    *("id", "submitted_at", "attempt", "losses", "retries", "requeues", "mem_retries", "begins_at"),
    *("because", "claimed_at", "started_at", "ended_at", "host", "front", "note"),
)
_OF_RUN = (
    *("job_id", "attempt", "token", "host", "worker", "claimed_at", "started_at", "ended_at"),
    *("duration_s", "log_path", "peak_at_once_bytes"),
)


def _named(row: Row, names: Sequence[str]) -> dict[str, Any]:
    """Return the columns *names* of *row*."""
    return {name: row[name] for name in names}


def _job(row: Row, its_runs: Sequence[Run], array: str | None, come: Tally | None, tags: Sequence[str]) -> Job:
    return Job(
        **_named(row, _OF_JOB),
        spec=_spec(row, array),
        state=JobState(row["state"]),
        reason=WaitReason(row["reason"]) if row["reason"] else None,
        devices=tuple(device.uuid for device in its_runs[-1].devices) if its_runs else (),
        member=None if row["array_id"] is None else Member(row["array_id"], row["array_index"]),
        tally=come,
        tags=tuple(tags),
    )


def _spec(row: Row, array: str | None) -> JobSpec:
    """Return the request of the job.

    If the payload is damaged or of a newer version, return a stand-in made from the columns.
    """
    try:
        spec = decode_spec(whole_payload(row["spec"], array))
        return mem_source.with_granted(spec, row["mem_bytes"]) if row["mem_retries"] else spec
    except Unreadable:
        return stand_in(
            **_named(row, ("name", "mem_bytes", "gpus", "time_limit_s", "pool", "cwd", "script", "interpreter")),
            user=row["user_name"],
            uid=row["user_uid"],
            host=row["submit_host"],
            priority=Priority(row["priority"]),
            argv=_words(row["command"]),
        )


def _words(command: str) -> tuple[str, ...]:
    """Split *command* into its words. Return a placeholder if that is impossible."""
    try:
        return tuple(shlex.split(command)) or (UNREADABLE,)
    except ValueError:
        return (UNREADABLE,)


def _metrics(source: Rows, ids: Sequence[int], *, curves: bool) -> dict[tuple[int, int], list[Metric]]:
    """Return the metrics of each run of the jobs *ids*, by job and attempt, ordered by name."""
    found: dict[tuple[int, int], list[Metric]] = defaultdict(list)
    rows = source.of("run_metrics", "job_id", ids, "name")
    points: dict[tuple[int, int, str], list[Any]] = {}
    if curves and rows:
        for row in source.of("run_curves", "job_id", ids, "name"):
            points[row["job_id"], row["attempt"], row["name"]] = json.loads(row["points"])
    for row in rows:
        name, key = row["name"], (row["job_id"], row["attempt"])
        plain = {**json.loads(row["detail"]), "name": name, "curve": points.get((*key, name), [])}
        found[key].append(from_plain(job_values.Metric, plain, "a metric of a run"))
    return found


def _values(row: Row, metrics: Sequence[Metric]) -> JobValues | None:
    params, result = row["params"], row["result"]
    if not metrics and params is None and result is None:
        return None
    return job_values.JobValues(
        metrics=tuple(metrics),
        params={} if params is None else json.loads(params),
        result=None if result is None else json.loads(result),
    )


def _run(row: Row, devices: Sequence[RunDevice], metrics: Sequence[Metric]) -> Run:
    ending = None
    if row["ending"] is not None:
        ending = Ending(
            kind=EndingKind(row["ending"]),
            exit_code=row["exit_code"],
            signal=row["signal"],
            detail=row["detail"] or "",
        )
    return Run(
        **_named(row, _OF_RUN),
        devices=tuple(devices),
        ending=ending,
        start_kind=StartKind.known(row["start_kind"]),
        notes=decode_notes(row["notes"]),
        marks=() if row["marks"] is None else codec_marks.decode_marks(row["marks"]),
        values=_values(row, metrics),
    )


def _run_device(row: Row, timeline: Timeline | None) -> RunDevice:
    return RunDevice(
        **_named(row, ("name", "total_bytes", "lease_bytes")),
        uuid=row["device_uuid"],
        index=row["host_index"],
        kind=DeviceKind(row["kind"]) if row["kind"] else None,
        peak=Peak(
            **_named(row, ("samples", "na_samples", "interval_s", "shared")),
            bytes=row["peak_bytes"],
            source=PeakSource(row["peak_source"]),
        ),
        activity=Activity(**_named(row, FIGURES)),
        timeline=timeline,
    )


def event_of(row: Row) -> Event:
    """Return one event of a job. ``fields`` omits the payloads that the job's record contains."""
    return steps.Event(
        **_named(row, ("job_id", "at", "attempt", "losses")),
        id=row["event_id"],
        act=steps.Act(row["act"]),
        state=JobState(row["state"]),
        reason=WaitReason(row["reason"]) if row["reason"] else None,
        fields=json.loads(row["detail"]) if row["detail"] else {},
    )


def parts(ids: Iterable[int]) -> Iterator[list[int]]:
    """Yield the distinct *ids* in order, in lists that fit into one IN (…)."""
    wanted = sorted(set(ids))
    for start in range(0, len(wanted), _MOST_IN):
        yield wanted[start : start + _MOST_IN]


class Row(Protocol):
    """A row of a table, with the types of ``tables.py``."""

    def __getitem__(self, column: str, /) -> Any:
        """Return the value of *column*."""


class Rows(Protocol):
    """Reads rows: through SQLAlchemy (``queries.py``), or from a SQLite file without it (``sqlite_reader.py``)."""

    def of(self, table: str, key: str, ids: Collection[int], order: str) -> Sequence[Row]:
        """Return the whole rows of *table* whose *key* is one of *ids*, ordered by *key* and then by *order*."""

    def count_states(self, array_ids: Collection[int]) -> Iterable[tuple[int, str, int]]:
        """Return (array id, state, number of members in that state), counting members with a row of their own."""


def tally(source: Rows, rows: Sequence[Row]) -> dict[int, Tally]:
    """Return the progress of each array among the jobs *rows*, by array id.

    An array whose row cannot be read is logged and left out.
    """
    arrays = {row["id"]: row for row in rows if row["array_left"] is not None}
    counts: dict[int, dict[str, int]] = defaultdict(dict)
    if arrays:
        for array_id, state, times in source.count_states(list(arrays)):
            counts[array_id][state] = times
    found = {}
    for array_id, row in arrays.items():
        try:
            found[array_id] = _tally(row, counts[array_id])
        except (Unreadable, BadRequest) as error:
            log = logging.getLogger(__name__)
            log.warning("the progress of array %s is unknown: %s", array_id, error)
    return found


def _tally(row: Row, counts: Mapping[str, int]) -> Tally:
    """Return the progress of one array.

    A member that is cancelled before a device takes it has no row. Members without a row count as cancelled.
    """
    left, held = waiting(row["state"], row["array_left"], row["array_held"])
    array = decode_spec(row["spec"]).array
    never_began = max(0, (len(array) if array else 0) - sum(counts.values()) - len(left) - len(held))
    ended = {state.value: counts.get(state.value, 0) for state in JobState if state.is_end}
    ended[JobState.CANCELLED.value] += never_began
    return Tally(left=left, held=held, ended=ended)


def waiting(state: str, left: str, held: str | None) -> tuple[Indexes, Indexes]:
    """Return the waiting and the held members of an array. Both are empty once the array has ended."""
    return (Indexes(), Indexes()) if JobState(state).is_end else (Indexes.parse(left), Indexes.parse(held or ""))
