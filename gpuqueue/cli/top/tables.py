"""A table whose columns are fitted to the screen, as in the other commands."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from rich.text import Text
from textual.widgets import DataTable

from gpuqueue.cli.output import render
from gpuqueue.cli.output.device_table import Row
from gpuqueue.cli.output.fitted_table import cell
from gpuqueue.cli.output.queue_table import STATE, Line, columns_for
from gpuqueue.cli.output.terminal_width import Column, fit
from gpuqueue.cli.top import lines
from gpuqueue.text.sanitize import short

L = TypeVar("L")

#: Mark in a memory bar -> colour.
COLOURS = {
    lines.HELD: "green",
    lines.ALLOCATED: "cyan",
    lines.EXTERNAL_PROCESSES: "red",
    lines.HEADROOM: "grey50",
    lines.FREE: "grey50",
}
#: Columns of the screen that a table cannot use: the padding of its outer cells, and a scroll bar.
BESIDE = 4
#: Mark of a job that the next action changes.
MARK = "●"


class FittedTable(DataTable[Text]):
    """A table that is rewritten with each snapshot; the cursor stays on its line."""

    _fitted_heads: dict[str, int] | None = None

    def show_devices(self, rows: Sequence[Row], width: int) -> None:
        """Show a line for each device."""
        self._rewrite(lines.device_columns(rows), rows, width, _coloured)

    def show_jobs(self, shown: Sequence[Line], marked: frozenset[str], width: int) -> None:
        """Show a line for each job, with a mark at those in *marked*."""
        columns = list(columns_for(shown))
        if marked:
            columns.insert(0, Column(head=" ", cell=lambda line, _: MARK if key_of(line) in marked else ""))
        chosen, place = self.chosen_key, self.cursor_row
        self._rewrite(columns, shown, width, _of_job, key_of)
        places = {key_of(line): i for i, line in enumerate(shown)}
        if shown:
            self.move_cursor(row=places.get(chosen, min(place, len(shown) - 1)) if chosen is not None else 0)

    @property
    def chosen_key(self) -> str | None:
        """Return the key of the line under the cursor, or None if there is no line."""
        return self.coordinate_to_cell_key(self.cursor_coordinate).row_key.value if self.row_count else None

    def _rewrite(
        self,
        columns: Sequence[Column[L]],
        rows: Sequence[L],
        width: int,
        shown: Callable[[Column[L], L, int], Text],
        key: Callable[[L], str] | None = None,
    ) -> None:
        """Clear the table and fill it; its columns are recreated if their heads or widths have changed."""
        left, widths = fit(columns, rows, width - BESIDE)
        heads = {column.head: widths[column.head] for column in left}
        self.clear(columns=heads != self._fitted_heads)
        if heads != self._fitted_heads:
            self._fitted_heads = heads
            for column in left:
                self.add_column(_text(short(column.head, heads[column.head]), column), width=heads[column.head])
        for row in rows:
            self.add_row(*(shown(column, row, heads[column.head]) for column in left), key=key(row) if key else None)


def key_of(line: Line) -> str:
    """Return a unique key of a line; an array may have two lines, for waiting and for held members."""
    return f"{line.job.id} {line.state}" if line.job.tally is not None else str(line.job.id)


def _text(words: str, column: Column[L], style: str = "") -> Text:
    return Text(words, style=style, justify="right" if column.right else "left", no_wrap=True)


def _of_job(column: Column[Line], line: Line, width: int) -> Text:
    return _text(cell(column, line, width), column, render.COLOURS.get(line.state, "") if column is STATE else "")


def _coloured(column: Column[Row], row: Row, width: int) -> Text:
    """Return a cell in which each mark of a memory bar has its colour."""
    words = cell(column, row, width)
    text = _text(words, column)
    for i, mark in enumerate(words):
        if mark in COLOURS:
            text.stylize(COLOURS[mark], i, i + 1)
    return text
