"""The columns of the history, in tables and in CSV files."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

import click

from gpuqueue.cli.output import render
from gpuqueue.errors import BadRequest
from gpuqueue.lazy.frozen import dataclass
from gpuqueue.model.history_query import FoldedRow
from gpuqueue.model.run import VALUES, Record, Run
from gpuqueue.text.sanitize import brief, cells, plain, short
from gpuqueue.text.units import format_duration
from gpuqueue.words import values

#: Suffixes of column names that the user may omit.
_UNITS = ("_bytes", "_at", "_s")
#: Head of the coloured column.
STATE = "STATE"
#: Order in which columns are narrowed: those that lose least come first.
_MOMENT, _LONG, _NAME, _DEVICES, _ENDING, _SHORT = range(6)
#: Mark at a peak that is the resident memory of processes.
RESIDENT_MARK = "*"
#: Least width of a long text, in columns.
LONG = 40


@dataclass(frozen=True, kw_only=True, slots=True)
class Column:
    """One column of the history.

    ``shown`` returns the text for the table, and ``value`` the value for CSV, where None means unknown. A ``figure`` is
    aligned right. ``narrows``, ``least`` and ``piped`` are those of
    :class:`gpuqueue.cli.output.render.Column`. ``tight`` returns a shorter text for a width, if cutting the
    text is not enough.
    """

    head: str
    value: Callable[[Record], Any]
    shown: Callable[[Record], str]
    figure: bool = False
    narrows: int | None = None
    least: int = 0
    tight: Callable[[Record, int], str] | None = None
    piped: Callable[[Record], str] | None = None


def _text(head: str, value: Callable[[Record], Any], width: int = 24, *, narrows: int | None = None) -> Column:
    return Column(
        head=head,
        value=value,
        shown=lambda record: _or_dash(value(record), width),
        narrows=narrows if narrows is not None else _LONG if width >= LONG else _SHORT,
        least=min(width, 11),
        piped=lambda record: _or_dash(value(record), render.NO_LIMIT),
    )


def _or_dash(value: Any, width: int) -> str:
    return "-" if value is None or value == "" else short(str(value), width)


def _number(head: str, value: Callable[[Record], Any]) -> Column:
    return Column(head=head, value=value, shown=lambda record: _or_dash(value(record), 24), figure=True)


def _moment(head: str, value: Callable[[Record], datetime | None]) -> Column:
    return Column(
        head=head,
        value=value,
        shown=lambda record: values.when(value(record)),
        narrows=_MOMENT,
        least=len("11-21 09:00"),
        tight=lambda record, _width: values.when(value(record))[len("2026-") : len("2026-11-21 09:00")],
    )


def _duration(head: str, value: Callable[[Record], float | None]) -> Column:
    return Column(head=head, value=value, shown=lambda record: format_duration(value(record)), figure=True)


def _devices_in(record: Record, width: int) -> str:
    """Return the host and devices of the last run in *width* columns."""
    return render.place(values.devices_of(record.last_run), width)


#: Column name -> column, in the order of VALUES.
COLUMNS: dict[str, Column] = {
    "id": Column(head="ID", value=VALUES["id"], shown=lambda record: record.job.label, figure=True),
    "name": _text("NAME", VALUES["name"], narrows=_NAME),
    "user": _text("USER", VALUES["user"], 12),
    "state": Column(head=STATE, value=VALUES["state"], shown=lambda record: str(record.job.state)),
    "ending": Column(
        head="ENDING",
        value=VALUES["ending"],
        shown=lambda record: plain(record.outcome),
        narrows=_ENDING,
        least=len("out of memory"),
    ),
    "exit_code": _number("EXIT", VALUES["exit_code"]),
    "signal": _number("SIGNAL", VALUES["signal"]),
    "host": _text("HOST", VALUES["host"]),
    "devices": Column(
        head="DEVICE",
        value=VALUES["devices"],
        shown=lambda record: values.devices_of(record.last_run),
        narrows=_DEVICES,
        least=16,
        tight=_devices_in,
    ),
    "submitted_at": _moment("SUBMITTED", VALUES["submitted_at"]),
    "started_at": _moment("STARTED", VALUES["started_at"]),
    "ended_at": _moment("ENDED", VALUES["ended_at"]),
    "duration_s": _duration("TOOK", VALUES["duration_s"]),
    "mem_bytes": Column(
        head="ASKED",
        value=VALUES["mem_bytes"],
        shown=lambda record: values.asked_of(record.job),
        figure=True,
    ),
    "gpus": _number("GPUS", VALUES["gpus"]),
    "peak_bytes": Column(
        head="PEAK",
        value=VALUES["peak_bytes"],
        shown=lambda record: _peak(record.last_run),
        figure=True,
    ),
    "peak_source": _text("SOURCE", VALUES["peak_source"]),
    "attempt": _number("RUNS", VALUES["attempt"]),
    "command": _text("COMMAND", VALUES["command"], 60),
    "wait_s": _duration("WAITED", VALUES["wait_s"]),
    "used": Column(
        head="USED",
        value=VALUES["used"],
        shown=lambda record: values.percent(VALUES["used"](record)),
        figure=True,
    ),
    "model": _text("MODEL", VALUES["model"]),
    "cwd": _text("DIRECTORY", VALUES["cwd"], 40),
    "because": _text("BECAUSE", VALUES["because"], 40),
    "array_id": _number("ARRAY", VALUES["array_id"]),
    "array_index": _number("INDEX", VALUES["array_index"]),
    "time_limit_s": _duration("LIMIT", VALUES["time_limit_s"]),
    "priority": _text("PRIORITY", VALUES["priority"]),
    "tags": _text("TAGS", VALUES["tags"], 40),
    "note": _text("NOTE", VALUES["note"], 60),
    "own_utilisation": Column(
        head="BUSY",
        value=VALUES["own_utilisation"],
        shown=lambda record: values.percent(VALUES["own_utilisation"](record)),
        figure=True,
    ),
    "marks": _text("MARKS", VALUES["marks"]),
}


def _reason(record: Record) -> str | None:
    """Return how the last run of a job ended, with its detail, or why the queue ended or holds the job."""
    run = record.last_run
    return str(run.ending) if run is not None and run.ending is not None else record.job.because


#: Columns that only ``--columns`` gives: why a job ended as it did, and the last line of its log, which costs a read.
REASON_NAME, LAST_NAME = ON_DEMAND = ("reason", "last")
REASON = _text("REASON", _reason, 60)
#: Columns of the table without ``--columns``. All other commands accept the ``id``.
USUAL = ("id", "name", "user", "state", "ending", "devices", "started_at", "duration_s", "mem_bytes", "peak_bytes")
#: Columns that a narrow terminal omits, in this order. The start time goes first, since ids are in order of time.
LEFT_OUT = ("started_at", "devices", "user", "mem_bytes", "duration_s", "ending", "peak_bytes")


def last(lines: Mapping[int, str]) -> Column:
    """Return the column of the last line of each log; *lines* are these, by job id."""
    return _text("LAST", lambda record: lines.get(record.job.id), 60)


def _peak(run: Run | None) -> str:
    """Return the peak, marked if it is no memory of a GPU."""
    return values.peak_of(run) + (RESIDENT_MARK if run is not None and _is_resident(run) else "")


def _is_resident(run: Run) -> bool:
    return any(device.peak.source.is_resident for device in run.devices)


def peak_note(records: Sequence[Record], names: Sequence[str] | None) -> str | None:
    """Return the line that explains the mark at a peak, or None if the table with the columns *names* has no mark."""
    marked = any(record.last_run is not None and _is_resident(record.last_run) for record in records)
    if not marked or "peak_bytes" not in (names or USUAL):
        return None
    return f"{RESIDENT_MARK} resident memory of the job's processes, not memory of a GPU"


def chosen(text: str, params: Collection[str] = ()) -> tuple[str, ...]:
    """Return the names of the columns in a list such as ``id,user,peak``; *params* are those of sweeps, and metrics.

    A name may omit its unit, or be the head of the column in the table. The name of a column takes
    precedence over that of a parameter.

    Raises:
        BadRequest: A name is no column, or is empty.

    """
    known = {**{name.lower(): name for name in params}, **_known()}
    found = []
    for word in (part.strip().lower() for part in text.split(",")):
        name = known.get(word)
        if name is None:
            from difflib import get_close_matches  # noqa: PLC0415 - only for a mistyped name

            meant = "".join(f"did you mean {each}? Or " for each in get_close_matches(word, known, n=1))
            raise BadRequest(f"{brief(word)} is no column: {meant}choose from {', '.join(COLUMNS)}")
        found.append(name)
    return tuple(found)


def has_others(text: str, params: Iterable[str] = ()) -> bool:
    """Return whether a list of columns has names that are neither columns nor *params*: perhaps those of a sweep."""
    known = {*_known(), *(name.lower() for name in params)}
    return any(part.strip().lower() not in known for part in text.split(","))


def _known() -> dict[str, str]:
    """Return the name of the column that each word means."""
    known = {name: name for name in ON_DEMAND}
    known |= {column.head.lower(): name for name, column in reversed(COLUMNS.items())}
    return known | {_without_unit(name): name for name in reversed(COLUMNS)} | {name: name for name in COLUMNS}


def param(head: str, name: str, params: Mapping[int, Mapping[str, str]]) -> Column:
    """Return the column of the parameter *name* of a sweep; *params* are the values of each job."""
    return _text(head, lambda record: params.get(record.job.id, {}).get(name))


def metric(head: str, name: str) -> Column:
    """Return the column of the last value of the metric *name* in the last run."""

    def value(record: Record) -> float | None:
        return record.last_run.metrics.get(name) if record.last_run is not None else None

    return Column(head=head, value=value, shown=lambda record: values.figure(value(record)), figure=True)


def folded(rows: Sequence[FoldedRow]) -> Column:
    """Return the column of endings that shows for an array how many of its members are in each state."""
    words = {row.record.job.id: row.words for row in rows}
    return replace(COLUMNS["ending"], shown=lambda record: words[record.job.id] or COLUMNS["ending"].shown(record))


def _without_unit(name: str) -> str:
    return next((name.removesuffix(unit) for unit in _UNITS if name.endswith(unit)), name)


def rows(
    records: Sequence[Record],
    names: Sequence[str] | None = None,
    width: int | None = None,
    *,
    others: Mapping[str, Column] | None = None,
) -> str:
    """Return the records as a table *width* columns wide; None: for a pipe, and nothing is omitted or cut.

    Without *names*, the table has the usual columns, and columns without room are omitted. Columns in *names* are never
    omitted, only cut. *others* are columns beside COLUMNS, or in their place.
    """
    known = {**COLUMNS, **(others or {})}
    columns = [_fitted(name, known[name], may_go=names is None, piped=width is None) for name in names or USUAL]
    widths = {column.head: render.NO_LIMIT for column in columns}
    if width is not None:
        columns, widths = render.fit(columns, records, width)
    cells = [[_in(column, record, widths[column.head]) for column in columns] for record in records]
    head = [short(column.head, widths[column.head]) for column in columns]
    return render.table(head, cells, right=[place for place, column in enumerate(columns) if column.right])


def _fitted(name: str, column: Column, *, may_go: bool, piped: bool) -> render.Column[Record]:

    def cell(record: Record, width: int) -> str:
        whole = column.piped(record) if piped and column.piped else column.shown(record)
        return whole if cells(whole) <= width or column.tight is None else column.tight(record, width)

    return render.Column(
        head=column.head,
        cell=cell,
        right=column.figure,
        narrows=column.narrows,
        least=column.least,
        keep=LEFT_OUT.index(name) if may_go and name in LEFT_OUT else None,
    )


def _in(column: render.Column[Record], record: Record, width: int) -> str:
    cell = short(column.cell(record, width), width)
    return click.style(cell, fg=render.COLOURS.get(record.job.state)) if column.head == STATE else cell
