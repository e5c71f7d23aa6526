"""The width of the terminal, and the fitting of a table to it.

Columns that do not fit are omitted in a set order, then the other columns are narrowed. A pipe has no width, and gets
everything.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Generic, TypeVar

from gpuqueue.lazy.frozen import dataclass
from gpuqueue.text.sanitize import cells, wrapped

#: Type of a line of the table.
L = TypeVar("L")

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
