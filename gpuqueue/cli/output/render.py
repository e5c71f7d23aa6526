"""Tables, colours, progress and the end of a log on a terminal, for commands and ``gpuqueue top``.

Columns that do not fit are omitted in a set order, then the other columns are narrowed. A pipe has no width, and gets
everything.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Generic, TypeVar

import click

from gpuqueue.lazy.frozen import dataclass
from gpuqueue.model.device import Device
from gpuqueue.model.job import Job, JobState
from gpuqueue.model.progress import Progress
from gpuqueue.text.sanitize import ESCAPES, cells, is_overwritten, plain, short, terminal_lines, wrapped

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
#: Width of a bar, and most columns of the words behind it, such as ``1281167/1281167, 99 %, 2d 12:34:56 left``.
BAR_WIDTH, WORDS_WIDTH = 8, 48
#: Bytes read from the end of a log: more than is shown.
LOG_BYTES = 16384
#: Bytes of a log that are drawn at once.
DRAWN_BYTES = 4 * 1024 * 1024
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
    """Return a bar and the words of the progress: ``█······· epoch 3/20, 14 %, 2:10:00 left``."""
    full = round(progress.share * width)
    return f"{'█' * full}{'·' * (width - full)} {progress_in_words(progress)}"


def progress_in_words(progress: Progress) -> str:
    """Return the progress as text: ``epoch 3/20, 14 %, 2:10:00 left``."""
    return short(progress.words, WORDS_WIDTH)


def fitted_progress(progress: Progress, width: int) -> str:
    """Return the progress in *width* columns; the bar is omitted first, then the time left, then the counts."""
    short_ones = (replace(progress, left_s=None).words, progress.percent)
    forms = (share_bar(progress), progress_in_words(progress), *short_ones)
    return next((words for words in forms if cells(words) <= width), progress.percent)


def log_lines(written: bytes) -> list[str]:
    """Return the lines of *written* as a terminal shows them, as plain text."""
    text = written.decode("utf-8", "replace").rstrip("\r\n")
    return [plain(ESCAPES.sub("", line).expandtabs()) for line in terminal_lines(text)] if text else []


def last_lines(chunks: Iterable[bytes], lines: int) -> Iterator[bytes]:
    """Yield the last *lines* lines of a log as a terminal shows them. Bytes that nothing overwrites stay as they are.

    A progress bar can be redrawn for megabytes, so they are drawn in pieces. A piece ends where a line begins anew.
    """
    held = b""
    for chunk in chunks:
        held += chunk
        if len(held) > DRAWN_BYTES:
            at = max(held.rfind(b"\r"), held.rfind(b"\n")) + 1 or len(held)
            shown = _drawn(held[:at], lines)
            if len(shown) > DRAWN_BYTES // 2:
                yield shown
                shown = b""
            held = shown + held[at:]
    yield _drawn(held, lines)


def _drawn(written: bytes, lines: int) -> bytes:
    text = written.decode("utf-8", "surrogateescape")
    if not is_overwritten(text):
        return written
    end = next((each for each in ("\n", "\r") if text.endswith(each)), "")  # after CR the next text overwrites
    shown = terminal_lines(text)
    return ("\n".join(shown[max(0, len(shown) - lines) :]) + end).encode("utf-8", "surrogateescape")


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


#: A width that no cell exceeds.
NO_LIMIT = 1_000_000
#: Spaces between two columns.
GAP = 2
#: Least width of a cell.
TINY = 4


def terminal_width() -> int | None:
    """Return the width of the terminal at standard output, or None if there is none; ``COLUMNS`` overrides it."""
    if not os.isatty(1):
        return None
    columns = os.environ.get("COLUMNS", "")
    if columns.isascii() and columns.isdigit() and int(columns):
        return int(columns)
    try:
        return os.get_terminal_size(1).columns or 80
    except OSError:
        return 80


def is_dumb() -> bool:
    """Return whether the terminal can only print lines, such as a shell in an editor."""
    return os.environ.get("TERM") in {"dumb", "unknown"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Column(Generic[L]):
    """One column. ``cell`` returns the text of a line for a width; ``least`` is the least width of the column.

    Columns with the lowest ``keep`` are omitted first; None: never omitted. An ``is_extra`` column is omitted before
    any other is narrowed below its ``enough``. Columns with the lowest ``narrows`` are narrowed first, none below its
    ``enough`` as long as another is above it; None: never narrowed.
    """

    head: str
    cell: Callable[[L, int], str]
    least: int = 0
    right: bool = False
    enough: int = 0
    keep: int | None = None
    is_extra: bool = False
    narrows: int | None = None
    #: Returns the text for a pipe, if it differs from the whole cell.
    piped: Callable[[L], str] | None = None


def hanging(line: str, width: int | None) -> list[str]:
    """Return *line* wrapped to *width* columns; further lines are indented to the text after the label.

    Two spaces separate the label from the text, as in ``start  by noon``. A label takes at most half of the width.
    """
    if width is None or cells(line) <= width:
        return [line]
    begin, gap, words = line.partition(" " * GAP)
    is_label = gap and cells(begin) + GAP <= width // 2
    begin, words = (f"{begin}{gap}", words) if is_label else ("", line)
    indent = cells(begin) or GAP
    first, *more = wrapped(words, max(TINY, width - indent))
    return [each.rstrip() for each in (f"{begin}{first}", *(" " * indent + each for each in more))]


def fit(columns: Sequence[Column[L]], lines: Sequence[L], width: int) -> tuple[list[Column[L]], dict[str, int]]:
    """Return the *columns* that fit into *width* characters, and the width of each by its head."""
    wanted = {column.head: max((cells(column.cell(line, NO_LIMIT)) for line in lines), default=0) for column in columns}
    left = [column for column in columns if wanted[column.head]]
    widths = {column.head: max(len(column.head), wanted[column.head]) for column in left}
    least = {column.head: min(widths[column.head], column.least or NO_LIMIT) for column in left}
    enough = {column.head: min(widths[column.head], column.enough or NO_LIMIT) for column in left}
    _drop(left, [column for column in left if column.is_extra], enough, width)
    _drop(left, [column for column in left if column.keep is not None], least, width)
    giving = sorted((column for column in left if column.narrows is not None), key=lambda each: each.narrows or 0)
    _narrow(giving, left, widths, enough, width)
    _narrow(giving, left, widths, least, width)
    _narrow(giving[::-1], left, widths, {}, width)  # for a very narrow terminal, below `least`
    return left, widths


def _drop(left: list[Column[L]], some: list[Column[L]], widths: Mapping[str, int], width: int) -> None:
    """Remove columns of *some* from *left*, lowest ``keep`` first, until the rest fits."""
    for column in sorted(some, key=lambda each: each.keep or 0):
        if _total([widths[each.head] for each in left]) > width:
            left.remove(column)


def _narrow(
    some: Sequence[Column[L]],
    left: Sequence[Column[L]],
    widths: dict[str, int],
    least: Mapping[str, int],
    width: int,
) -> None:
    """Narrow the columns of *some* in their order until all fit, each at most to its *least* width."""
    for column in some:
        room = width - _total([widths[each.head] for each in left])
        if room < 0:
            at_least = min(widths[column.head], least.get(column.head, TINY))
            widths[column.head] = max(at_least, widths[column.head] + room)


def _total(widths: Sequence[int]) -> int:
    return sum(widths) + GAP * (len(widths) - 1)
