"""How much room there is for what is printed, and how a table is made to fit into it.

What does not fit is left out in a set order, and what is left of it is made narrower. A pipe has no width: it gets
everything.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Generic, TypeVar

from gpuqueue.lazy.frozen import dataclass
from gpuqueue.text.sanitize import cells, wrapped

#: What a line of the table is about.
L = TypeVar("L")

#: Wide enough for whatever a cell may hold.
NO_LIMIT = 1_000_000
GAP = 2
#: The narrowest that a cell is cut to.
TINY = 4


def terminal_width() -> int | None:
    """Return the columns of the terminal that standard output is, None where it is none; ``COLUMNS`` goes before."""
    if not os.isatty(1):
        return None
    said = os.environ.get("COLUMNS", "")
    if said.isascii() and said.isdigit() and int(said):
        return int(said)
    try:
        return os.get_terminal_size(1).columns or 80
    except OSError:
        return 80


def is_dumb() -> bool:
    """Return whether the terminal knows nothing but lines: one in an editor, or on paper."""
    return os.environ.get("TERM") in {"dumb", "unknown"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Column(Generic[L]):
    """One column. ``cell`` returns what it holds in so many characters; it is never made narrower than ``least``.

    Those with the lowest ``keep`` are left out first; None: it always stays. ``is_extra``: it is left out before any
    other is made narrower than ``enough``. Those with the lowest ``narrows`` are made narrower first; None: never.
    """

    head: str
    cell: Callable[[L, int], str]
    least: int = 0
    right: bool = False
    enough: int = 0
    keep: int | None = None
    is_extra: bool = False
    narrows: int | None = None
    #: What a pipe gets in place of the whole cell.
    piped: Callable[[L], str] | None = None


def hanging(line: str, width: int | None) -> list[str]:
    """Return *line*, broken where a terminal so *wide* has no room: what goes on stands below where its words began.

    The words of ``start  by noon`` begin behind the two spaces.
    """
    if width is None or cells(line) <= width:
        return [line]
    begin, gap, words = line.partition(" " * GAP)
    begin, words = (f"{begin}{gap}", words) if gap else ("", line)
    indent = cells(begin) or GAP
    first, *more = wrapped(words, max(TINY, width - indent))
    return [f"{begin}{first}", *(" " * indent + each for each in more)]


def fit(columns: Sequence[Column[L]], lines: Sequence[L], width: int) -> tuple[list[Column[L]], dict[str, int]]:
    """Return which *columns* fit into *width* characters, and how wide each of them is."""
    wanted = {column.head: max((cells(column.cell(line, NO_LIMIT)) for line in lines), default=0) for column in columns}
    left = [column for column in columns if wanted[column.head]]
    widths = {column.head: max(len(column.head), wanted[column.head]) for column in left}
    least = {column.head: min(widths[column.head], column.least or NO_LIMIT) for column in left}
    enough = {column.head: min(widths[column.head], column.enough or NO_LIMIT) for column in left}
    _drop(left, [column for column in left if column.is_extra], enough, width)
    _drop(left, [column for column in left if column.keep is not None], least, width)
    giving = sorted((column for column in left if column.narrows is not None), key=lambda each: each.narrows or 0)
    _narrow(giving, left, widths, least, width)
    _narrow(giving[::-1], left, widths, {}, width)  # a terminal of a few characters
    return left, widths


def _drop(left: list[Column[L]], some: list[Column[L]], widths: Mapping[str, int], width: int) -> None:
    """Take *some* columns out of *left*, in their order, until what is left fits."""
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
    """Take what is too much from *some* columns, in their order, down to the *least* of each."""
    for column in some:
        room = width - _total([widths[each.head] for each in left])
        if room < 0:
            at_least = min(widths[column.head], least.get(column.head, TINY))
            widths[column.head] = max(at_least, widths[column.head] + room)


def _total(widths: Sequence[int]) -> int:
    return sum(widths) + GAP * (len(widths) - 1)
