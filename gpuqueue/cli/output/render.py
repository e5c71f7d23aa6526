"""Tables, colours, progress and the end of a log on a terminal, for commands and ``gpuqueue top``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import click

from gpuqueue.cli.output.terminal_width import NO_LIMIT, Column, fit
from gpuqueue.model.device import Device
from gpuqueue.model.job import Job, JobState
from gpuqueue.model.progress import ESCAPES, Progress
from gpuqueue.text.sanitize import cells, plain, short

#: State -> colour on a terminal.
COLOURS = {
    JobState.RUNNING: "green",
    JobState.STARTING: "green",
    JobState.SUCCEEDED: "green",
    JobState.FAILED: "red",
    JobState.LOST: "red",
    JobState.HELD: "yellow",
    JobState.CANCELLING: "yellow",
    JobState.CANCELLED: "yellow",
}
#: Width of a bar, and most columns of the words behind it, such as ``1281167/1281167, 12:34:56 left``.
BAR_WIDTH, WORDS_WIDTH = 8, 40
#: Bytes read from the end of a log: more than is shown.
LOG_BYTES = 16384
#: Type of a line of the table.
L = TypeVar("L")


def table(head: Sequence[str], rows: Sequence[Sequence[str]], *, right: Sequence[int] = ()) -> str:
    """Return a table with aligned columns; *right* has the positions of the columns that are aligned right."""
    widths = [max(cells(click.unstyle(row[i])) for row in (head, *rows)) for i in range(len(head))]

    def line(row: Sequence[str]) -> str:
        padded = []
        for i, cell in enumerate(row):
            space = " " * (widths[i] - cells(click.unstyle(cell)))
            padded.append(space + cell if i in right else cell + space)
        return "  ".join(padded).rstrip()

    return "\n".join(line(row) for row in (head, *rows))


def state(job: Job) -> str:
    """Return the job's state, in its colour."""
    return click.style(str(job.state), fg=COLOURS.get(job.state))


def place(where: str, width: int) -> str:
    """Return ``HOST:INDEXES`` in *width* columns: the host's name is cut, the indexes are not."""
    host, colon, indexes = where.rpartition(":")
    return f"{short(host, max(1, width - cells(indexes) - 1))}:{indexes}" if colon else short(where, width)


def model_of(device: Device, width: int) -> str:
    """Return the name of a device in *width* columns. That of a MIG instance keeps its profile: ``NVID… 1g.10gb``."""
    profile = plain(device.mig_profile or "")
    room = width - cells(profile) - 1
    if not profile or cells(plain(device.name)) <= width or room < 1:
        return short(device.name, width)
    card = device.name.rpartition(" MIG ")[0]
    return f"{short(card, room)} {profile}"


def share_bar(progress: Progress, width: int = BAR_WIDTH) -> str:
    """Return ``████····  50 %`` and the job's own text."""
    full, words = round(progress.share * width), short(progress.words, WORDS_WIDTH)
    return f"{'█' * full}{'·' * (width - full)} {100 * progress.share:3.0f} % {words}".rstrip()


def progress_in_words(progress: Progress) -> str:
    """Return the progress as text: ``50 % 45/100, 00:15 left``."""
    return f"{100 * progress.share:.0f} % {short(progress.words, WORDS_WIDTH)}".rstrip()


def fitted_progress(progress: Progress, width: int) -> str:
    """Return the progress in *width* columns; the bar is omitted first, then the time left, then the counts."""
    share, counts = f"{100 * progress.share:.0f} %", short(progress.words.partition(",")[0])
    forms = (share_bar(progress), progress_in_words(progress), f"{share} {counts}".rstrip(), share)
    return next((words for words in forms if cells(words) <= width), share)


def log_lines(written: bytes) -> list[str]:
    """Return the lines of *written* as plain text; a line that was overwritten shows only its last text."""
    text = ESCAPES.sub("", written.decode("utf-8", "replace")).replace("\r\n", "\n").rstrip("\r\n")
    return [plain(line.rpartition("\r")[2]) for line in text.split("\n")] if text else []


def log_end(written: bytes, lines: int, width: int) -> list[str]:
    """Return the last *lines* lines of *written*, the end of a log, each cut to *width*."""
    return [short(line, width) for line in log_lines(written)[-lines:]]


def table_of(columns: Sequence[Column[L]], lines: Sequence[L], width: int | None = None) -> str:
    """Return *lines* as a table of *columns*, *width* columns wide; None: for a pipe."""
    shown, widths = list(columns), {column.head: NO_LIMIT for column in columns}
    if width is not None:
        shown, widths = fit(columns, lines, width)
    body = [[cell(column, line, widths[column.head]) for column in shown] for line in lines]
    head = [short(column.head, widths[column.head]) for column in shown]
    return table(head, body, right=[place for place, column in enumerate(shown) if column.right])


def cell(column: Column[L], line: L, width: int) -> str:
    """Return the cell of *line* in *column*, cut to *width* columns of a terminal."""
    return short(column.cell(line, width), width)
