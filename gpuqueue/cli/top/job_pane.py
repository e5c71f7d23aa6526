"""The pane about one job, and the tables of devices and jobs above it, whose columns are fitted to the screen."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum
from typing import TypeVar

import click
from rich.text import Text
from textual.widgets import DataTable, Static

from gpuqueue.cli.output import job_story, render
from gpuqueue.cli.output.devices import Row
from gpuqueue.cli.output.queue_table import STATE, Line, columns_for
from gpuqueue.cli.output.render import LOG_BYTES, Column, cell, fit, log_lines
from gpuqueue.cli.output.why_text import why_text
from gpuqueue.cli.top import lines
from gpuqueue.client import Client
from gpuqueue.errors import GpuQueueError
from gpuqueue.text.sanitize import plain, short

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


class About(str, Enum):
    """Content of the pane."""

    #: The end of the job's log.
    LOG = "log"
    #: Why the job waits, as in ``gpuqueue why``.
    WHY = "why"
    #: All details, as in ``gpuqueue show``.
    DETAILS = "details"


def reported(client: Client, job_id: int, about: About, width: int | None = None) -> str:
    """Return the text of the pane, wrapped to *width* columns, or the error message if there is none."""
    try:
        if about is About.WHY:
            return click.unstyle(why_text(client.jobs.why(job_id), width))
        if about is About.DETAILS:
            record = client.jobs.show(job_id)
            return click.unstyle(job_story.story(record, job_story.live_of(client, record.job), width))
        return "\n".join(log_lines(_log_end(client, job_id))) or "nothing was written yet"
    except GpuQueueError as error:
        return plain(str(error))


class JobPane(Static):
    """Shows the log, the wait or the details of a job, from the end of a log or the beginning of another text."""

    def __init__(self) -> None:
        super().__init__("", id="pane", markup=False)
        self.about: About | None = None
        #: Job and content, the lines of the content, and how many lines it is scrolled from its initial position.
        self._of: tuple[int, About] | None = None
        self._reported: list[str] = []
        self._scrolled = 0

    def toggle(self, about: About | None) -> None:
        """Open the pane with the content *about*; close it for None, or if it shows that already."""
        self.about = None if self.about is about else about
        self.display = self.about is not None
        self._of = None

    def wanted(self, job_id: int) -> tuple[int, About] | None:
        """Return what to read for the job under the cursor; None if the pane is closed, or its log was scrolled."""
        if self.about is None:
            return None
        if (job_id, self.about) != self._of:
            self._of, self._scrolled = (job_id, self.about), 0
        return None if self._scrolled and self.about is About.LOG else self._of

    def write(self, text: str, of: tuple[int, About]) -> None:
        """Show *text*, unless the pane shows something else by now."""
        if of == self._of:
            self._reported = text.split("\n")
            self.draw()

    def page(self, by: int) -> None:
        """Scroll by the height less one line: -1 towards the beginning of the text, 1 towards its end."""
        step = by * max(1, self.content_size.height - 1)
        self._scrolled = max(0, self._scrolled + (-step if self.about is About.LOG else step))
        self.draw()

    def on_resize(self) -> None:
        """Fill the new height."""
        self.draw()

    def draw(self) -> None:
        """Draw the text at the scroll position."""
        rows, count = max(1, self.content_size.height), len(self._reported)
        most = max(0, count - rows)
        self._scrolled = min(self._scrolled, most)
        first = most - self._scrolled if self.about is About.LOG else self._scrolled
        self.update("\n".join(self._reported[first : first + rows]))
        self.border_title = f"{first + 1} to {first + rows} of {count} lines, PgUp PgDn" if most else ""


def _log_end(client: Client, job_id: int) -> bytes:
    """Return the end of the newest run's log.

    Raises:
        Refused: there is no log, or it cannot be read from here.

    """
    newest = client.jobs.newest(job_id)
    client.logs.turn(client.logs.tail(), newest)  # raises if there is none
    return client.logs.end(newest, LOG_BYTES)


class FittedTable(DataTable[Text]):
    """A table that is rewritten with each snapshot; the cursor stays on its line."""

    _fitted_heads: dict[str, int] | None = None

    def show_devices(self, rows: Sequence[Row], width: int) -> None:
        """Show a line for each device."""
        self._rewrite(lines.device_columns(rows), rows, width, _device_cell)

    def show_jobs(self, shown: Sequence[Line], marked: frozenset[str], width: int) -> None:
        """Show a line for each job, with a mark at those in *marked*."""
        columns = list(columns_for(shown))
        if marked:
            columns.insert(0, Column(head=" ", cell=lambda line, _: MARK if key_of(line) in marked else ""))
        chosen, place = self.chosen_key, self.cursor_row
        self._rewrite(columns, shown, width, _job_cell, key_of)
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
                self.add_column(_cell_text(short(column.head, heads[column.head]), column), width=heads[column.head])
        for row in rows:
            self.add_row(*(shown(column, row, heads[column.head]) for column in left), key=key(row) if key else None)


def key_of(line: Line) -> str:
    """Return a unique key of a line; an array may have two lines, for waiting and for held members."""
    return f"{line.job.id} {line.state}" if line.job.tally is not None else str(line.job.id)


def _cell_text(words: str, column: Column[L], style: str = "") -> Text:
    return Text(words, style=style, justify="right" if column.right else "left", no_wrap=True)


def _job_cell(column: Column[Line], line: Line, width: int) -> Text:
    return _cell_text(cell(column, line, width), column, render.COLOURS.get(line.state, "") if column is STATE else "")


def _device_cell(column: Column[Row], row: Row, width: int) -> Text:
    """Return a cell in which each mark of a memory bar has its colour."""
    words = cell(column, row, width)
    text = _cell_text(words, column)
    for i, mark in enumerate(words):
        if mark in COLOURS:
            text.stylize(COLOURS[mark], i, i + 1)
    return text
