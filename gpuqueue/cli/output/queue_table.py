"""The table of ``gpuqueue queue``, fitted to the terminal. Pure.

A pipe gets every column, uncut and always in the same order, with ``-`` for an empty cell, so that programs can split
the table.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple, TypeAlias

import click

from gpuqueue.cli.output import render
from gpuqueue.cli.output.arrays import labels
from gpuqueue.cli.output.render import NO_LIMIT, fit, fitted_progress, progress_in_words
from gpuqueue.model.job import Job, JobState
from gpuqueue.model.job_spec import Priority
from gpuqueue.model.progress import Progress
from gpuqueue.model.run import Listing
from gpuqueue.text.sanitize import cells, plain, short
from gpuqueue.text.units import format_bytes, format_duration
from gpuqueue.words import values


class Line(NamedTuple):
    """One line: a job, or the waiting or held members of an array, with its label, its state and its progress."""

    job: Job
    label: str
    state: JobState
    listing: Listing
    progress: Progress | None


#: One column of the table.
Column: TypeAlias = render.Column[Line]


def queue_table(
    listing: Listing, progress: Mapping[int, Progress], width: int | None = None, *, states: Collection[str] = ()
) -> str:
    """Return the jobs as a table *width* columns wide; None: for a pipe.

    With *states*, only the lines in one of these states.
    """
    lines = [
        Line(job, label, state, listing, progress.get(job.id))
        for job in listing.jobs
        for label, state in labels(job)
        if not states or state in states
    ]
    return table_of(lines, width)


def table_of(lines: Sequence[Line], width: int | None = None) -> str:
    """Return *lines* as a table *width* columns wide; None: for a pipe."""
    if width is None:
        rows = [[_piped(column, line) for column in COLUMNS] for line in lines]
        return render.table([column.head for column in COLUMNS], rows, right=_figures(COLUMNS))
    columns, widths = fit(columns_for(lines), lines, width)
    rows = [[_shown(column, line, widths[column.head]) for column in columns] for line in lines]
    head = [short(column.head, widths[column.head]) for column in columns]
    return render.table(head, rows, right=_figures(columns))


def columns_for(lines: Sequence[Line]) -> tuple[Column, ...]:
    """Return the columns for *lines*: the label of an array may be cut, that of a single job may not."""
    names = [cells(line.label) for line in lines if not _is_of_many(line)]
    return (replace(ID, least=max([LEAST_ID, *names])), *COLUMNS[1:])


def _is_of_many(line: Line) -> bool:
    return line.label.endswith("]")


def _figures(columns: Sequence[Column]) -> list[int]:
    return [place for place, column in enumerate(columns) if column.right]


def _piped(column: Column, line: Line) -> str:
    return (column.piped(line) if column.piped else column.cell(line, NO_LIMIT)) or "-"


def _shown(column: Column, line: Line, width: int) -> str:
    cell = short(column.cell(line, width), width)
    return click.style(cell, fg=render.COLOURS.get(line.state)) if column is STATE else cell


def _id(line: Line, width: int) -> str:
    """Return the label of the job; for an array, the first indexes that fit, and the concurrency limit."""
    if cells(line.label) <= width or not _is_of_many(line):
        return line.label
    indexes, percent, most = line.label.rstrip("]").partition("%")
    end = f"{percent}{most}]"
    return f"{short(indexes, width - len(end))}{end}"


def _memory(line: Line, _width: int) -> str:
    """Return the last sample of the job's memory and the requested memory: ``3.1G/6G``."""
    asked = values.asked_of(line.job)
    if line.job.spec.is_whole:  # nothing here measures what it uses
        return asked
    held = line.listing.held_bytes.get(line.job.id) if line.job.state.is_active else None
    return asked if held is None else f"{format_bytes(held)}/{asked}"


def elapsed_s(job: Job, listing: Listing) -> float | None:
    """Return the run time of a job in seconds by the store's clock, or None if it does not run."""
    if job.started_at is None or not job.state.is_active:
        return None
    return max(0.0, (listing.at - job.started_at).total_seconds())  # a clock may have been set back


def _time(line: Line, _width: int) -> str:
    """Return the run time and the time limit of the job; its waiting time if it waits; its duration if it has ended."""
    if line.job.ended_at is not None and line.job.started_at is not None:
        return format_duration(max(0.0, (line.job.ended_at - line.job.started_at).total_seconds()))
    ran_s = (
        elapsed_s(line.job, line.listing) if line.state.is_active else None
    )  # a line of an array shows members that do not run
    limit_s = line.job.spec.time_limit_s
    if ran_s is None:
        return format_duration(max(0.0, (line.listing.at - line.job.submitted_at).total_seconds()))
    return f"{format_duration(ran_s)}/{format_duration(limit_s)}" if limit_s else format_duration(ran_s)


def _device(line: Line, _width: int) -> str:
    found = line.listing.devices.get(line.job.id)
    return values.place_of(line.job.host, found) if found and line.job.host is not None else ""


def _progress(line: Line, width: int) -> str:
    """Return the progress of the job and its marks, or since when it has ended, or why it waits.

    The reason to wait is followed by the priority, if that is not the default.
    """
    marks = _marks(line)
    if line.progress is not None:
        if not marks:
            return fitted_progress(line.progress, width)
        return f"{marks}, {fitted_progress(line.progress, width - len(marks) - 2)}"
    if line.state.is_active:
        return marks
    if line.job.ended_at is not None:
        return f"ended {format_duration(max(0.0, (line.listing.at - line.job.ended_at).total_seconds()))} ago"
    priority = line.job.promoted or line.job.spec.priority
    is_own_state = line.state is line.job.state  # False for the held members of an array that is not held
    why = values.waits_for(line.job, line.listing.at) if is_own_state else str(line.state)
    words = (why, "" if line.job.spec.priority is priority is Priority.NORMAL else values.priority_of(line.job))
    return ", ".join(word for word in words if word)


def _marks(line: Line) -> str:
    """Return what looks wrong about the run of the job, and for how long: ``stalled 0:32:10``."""
    at, marks = line.listing.at, line.job.marks if line.state.is_active else ()
    return ", ".join(f"{each.brief} {format_duration(max(0.0, (at - each.since).total_seconds()))}" for each in marks)


def _piped_progress(line: Line) -> str:
    """Return the whole text of the last column, without a bar."""
    if line.progress is None:
        return _progress(line, NO_LIMIT)
    return ", ".join(filter(None, (_marks(line), progress_in_words(line.progress))))


#: Least width of an array's label, such as ``17_[0-3…]``.
LEAST_ID = 11
#: Narrowed first: an array with many ranges of waiting members has a very long label.
ID = Column(head="ID", cell=_id, least=LEAST_ID, right=True, narrows=0)
NAME = Column(head="NAME", cell=lambda line, _: plain(line.job.spec.name), least=11, enough=24, narrows=2)
STATE = Column(head="STATE", cell=lambda line, _: str(line.state))
PROGRESS = Column(
    head="PROGRESS / REASON",
    cell=_progress,
    least=17,
    narrows=1,
    piped=_piped_progress,
)
#: The columns from left to right. Add new ones only before the last, which may contain spaces.
COLUMNS = (
    ID,
    NAME,
    Column(head="USER", cell=lambda line, _: plain(line.job.spec.account.name), least=12, keep=3, narrows=-1),
    STATE,
    Column(head="MEMORY", cell=_memory, right=True, keep=5),
    Column(head="TIME", cell=_time, right=True, keep=4),
    Column(head="DEVICE", cell=_device, keep=2, is_extra=True),
    Column(head="WANTS", cell=lambda line, _: values.wants_of(line.job.spec), keep=1, is_extra=True),
    PROGRESS,
)
