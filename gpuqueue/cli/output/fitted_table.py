"""Tables fitted to the terminal. Pure. For a pipe, nothing is omitted or cut."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from gpuqueue.cli.output import render
from gpuqueue.cli.output.terminal_width import NO_LIMIT, Column, fit
from gpuqueue.text.sanitize import short

#: Type of a line of the table.
L = TypeVar("L")


def table_of(columns: Sequence[Column[L]], lines: Sequence[L], width: int | None = None) -> str:
    """Return *lines* as a table of *columns*, *width* columns wide; None: for a pipe."""
    shown, widths = list(columns), {column.head: NO_LIMIT for column in columns}
    if width is not None:
        shown, widths = fit(columns, lines, width)
    body = [[cell(column, line, widths[column.head]) for column in shown] for line in lines]
    head = [short(column.head, widths[column.head]) for column in shown]
    return render.table(head, body, right=[place for place, column in enumerate(shown) if column.right])


def cell(column: Column[L], line: L, width: int) -> str:
    """Return the cell of *line* in *column*, cut to *width* columns of a terminal."""
    return short(column.cell(line, width), width)
