"""The table of ``gpuqueue queue``: as much of each job as the terminal is wide. Pure.

What does not fit is left out in a set order. A pipe has no width: it gets every column, whole, always in the same
order, and ``-`` where there is nothing, so that a column has one number for whoever cuts the table up.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import click

from gpuqueue.cli import render
from gpuqueue.cli.arrays import labels
from gpuqueue.cli.progress_words import fitted, in_words
from gpuqueue.job import Job, JobState, Level
from gpuqueue.listing import Listing
from gpuqueue.progress import Progress
from gpuqueue.units import format_bytes, format_duration
from gpuqueue.words import plain, short

#: Wide enough for whatever a cell may hold.
NO_LIMIT = 1_000_000
GAP = 2
#: The narrowest that a cell is cut to.
TINY = 4


class Line(NamedTuple):
    """One line: a job (of an array: what waits of it, or what is held), where it stands, and what is known of it."""

    job: Job
    label: str
    stands: JobState
    listing: Listing
    progress: Progress | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Column:
    """One column. ``cell`` returns what it holds in so many characters; it is never made narrower than ``least``.

    Those with the lowest ``keep`` are left out first; None: it always stays. ``is_extra``: it is left out before any
    other is made narrower than ``enough``.
    """

    head: str
    cell: Callable[[Line, int], str]
    least: int = 0
    right: bool = False
    enough: int = 0
    keep: int | None = None
    is_extra: bool = False
    #: What a pipe gets in place of the whole cell.
    piped: Callable[[Line], str] | None = None


def queue_table(listing: Listing, progress: Mapping[int, Progress], width: int | None = None) -> str:
    """Return the jobs as a table for a terminal so *wide*; None: for a pipe."""
    lines = [
        Line(job, label, stands, listing, progress.get(job.id)) for job in listing.jobs for label, stands in labels(job)
    ]
    return table_of(lines, width)


def table_of(lines: Sequence[Line], width: int | None = None) -> str:
    """Return *lines* as a table: as :func:`queue_table`."""
    if width is None:
        rows = [[_piped(column, line) for column in COLUMNS] for line in lines]
        return render.table([column.head for column in COLUMNS], rows, right=_figures(COLUMNS))
    columns, widths = fit(COLUMNS, lines, width)
    rows = [[_shown(column, line, widths[column.head]) for column in columns] for line in lines]
    head = [short(column.head, widths[column.head]) for column in columns]
    return render.table(head, rows, right=_figures(columns))


def fit(columns: Sequence[Column], lines: Sequence[Line], width: int) -> tuple[list[Column], dict[str, int]]:
    """Return which *columns* fit into *width* characters, and how wide each of them is."""
    wanted = {column.head: max((len(column.cell(line, NO_LIMIT)) for line in lines), default=0) for column in columns}
    left = [column for column in columns if wanted[column.head]]
    widths = {column.head: max(len(column.head), wanted[column.head]) for column in left}
    least = {column.head: min(widths[column.head], column.least or NO_LIMIT) for column in left}
    enough = {column.head: min(widths[column.head], column.enough or NO_LIMIT) for column in left}
    _drop(left, [column for column in left if column.is_extra], enough, width)
    _drop(left, [column for column in left if column.keep is not None], least, width)
    for head in (NOTE.head, NAME.head):  # what is too much is taken from the last word first
        room = width - _total([widths[column.head] for column in left])
        if room < 0 and head in widths:
            widths[head] = max(least[head], widths[head] + room)
    for column in (NAME, NOTE):  # a terminal of a few characters
        room = width - _total([widths[column.head] for column in left])
        if room < 0 and column.head in widths:
            widths[column.head] = max(TINY, widths[column.head] + room)
    return left, widths


def _drop(left: list[Column], some: list[Column], widths: Mapping[str, int], width: int) -> None:
    """Take *some* columns out of *left*, in their order, until what is left fits."""
    for column in sorted(some, key=lambda each: each.keep or 0):
        if _total([widths[each.head] for each in left]) > width:
            left.remove(column)


def _total(widths: Sequence[int]) -> int:
    return sum(widths) + GAP * (len(widths) - 1)


def _figures(columns: Sequence[Column]) -> list[int]:
    return [place for place, column in enumerate(columns) if column.right]


def _piped(column: Column, line: Line) -> str:
    return (column.piped(line) if column.piped else column.cell(line, NO_LIMIT)) or "-"


def _shown(column: Column, line: Line, width: int) -> str:
    cell = short(column.cell(line, width), width)
    return click.style(cell, fg=render.COLOURS.get(line.stands)) if column is STATE else cell


def _memory(line: Line, _width: int) -> str:
    """Return what the job was last seen to hold, and what it asked for: ``3.1G/6G``."""
    asked = render.asked_of(line.job)
    held = line.listing.held_bytes.get(line.job.id) if line.job.state.is_active else None
    return asked if held is None else f"{format_bytes(held)}/{asked}"


def elapsed_s(job: Job, listing: Listing) -> float | None:
    """Return for how long a job has been running, by the store's clock; None while it waits."""
    if job.started_at is None or not job.state.is_active:
        return None
    return max(0.0, (listing.at - job.started_at).total_seconds())  # a clock may have been set


def _time(line: Line, _width: int) -> str:
    """Return for how long it has been running, and how long it may; of one that waits, for how long it has."""
    ran_s, limit_s = elapsed_s(line.job, line.listing), line.job.spec.time_limit_s
    if ran_s is None:
        return format_duration(max(0.0, (line.listing.at - line.job.submitted_at).total_seconds()))
    return f"{format_duration(ran_s)}/{format_duration(limit_s)}" if limit_s else format_duration(ran_s)


def _device(line: Line, _width: int) -> str:
    found = line.listing.devices.get(line.job.id)
    if not found or line.job.host is None:
        return ""
    return plain(f"{line.job.host}:{','.join(map(render.device_label, found))}")


def _note(line: Line, width: int) -> str:
    """Return how far it is, or why it waits, and its level where that is not everybody's."""
    if line.progress is not None:
        return fitted(line.progress, width)
    if line.stands is not line.job.state or line.job.state.is_active:
        return ""
    level = line.job.spec.level
    words = (render.waits_for(line.job, line.listing.at), "" if level is Level.NORMAL else f"level {level}")
    return ", ".join(word for word in words if word)


NAME = Column(head="NAME", cell=lambda line, _: plain(line.job.spec.name), least=11, enough=24)
STATE = Column(head="STATE", cell=lambda line, _: str(line.stands))
NOTE = Column(
    head="PROGRESS / REASON",
    cell=_note,
    least=17,
    piped=lambda line: in_words(line.progress) if line.progress else _note(line, NO_LIMIT),
)
#: From left to right. New ones only ever before the last, which may hold several words.
COLUMNS = (
    Column(head="ID", cell=lambda line, _: line.label, right=True),
    NAME,
    Column(head="USER", cell=lambda line, _: short(line.job.spec.account.name, 12), keep=3),
    STATE,
    Column(head="MEMORY", cell=_memory, right=True, keep=5),
    Column(head="TIME", cell=_time, right=True, keep=4),
    Column(head="DEVICE", cell=_device, keep=2, is_extra=True),
    Column(head="WANTS", cell=lambda line, _: render.wants_of(line.job.spec), keep=1, is_extra=True),
    NOTE,
)
