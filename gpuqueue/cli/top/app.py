"""The screen of ``gpuqueue top``: polls the site and maps keys to calls of the client."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

from rich.text import Text
from textual import work
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.widgets import DataTable, Footer, Static
from textual.worker import get_current_worker

from gpuqueue.cli.output import render, terminal_width
from gpuqueue.cli.output.fitted_table import cell
from gpuqueue.cli.output.queue_table import STATE, Column, Line, columns_for
from gpuqueue.cli.output.terminal_width import fit
from gpuqueue.cli.top import lines
from gpuqueue.cli.top.job_pane import About, reported
from gpuqueue.cli.top.prompt import Ask
from gpuqueue.cli.top.snapshot import Snapshot, take
from gpuqueue.client import Client
from gpuqueue.errors import GpuQueueError
from gpuqueue.model.job import Job, JobState
from gpuqueue.text.sanitize import in_one_line, plain, short

#: Mark in a memory bar -> colour.
COLOURS = {
    lines.HELD: "green",
    lines.ALLOCATED: "cyan",
    lines.EXTERNAL_PROCESSES: "red",
    lines.HEADROOM: "grey50",
    lines.FREE: "grey50",
}


#: Signals that end the program.
ENDS = (signal.SIGTERM, signal.SIGHUP)
#: Columns of the screen that a table cannot use: the padding of its outer cells, and a scroll bar.
BESIDE = 4
#: Columns of the screen that the pane cannot use.
PANE_BESIDE = 2


class Top(App[None]):
    """Shows devices above, jobs below, and a pane about the job under the cursor."""

    TITLE = "gpuqueue top"
    ENABLE_COMMAND_PALETTE = False
    CSS = """
    #head { height: 1; background: $primary-background; padding: 0 1; text-wrap: nowrap; text-overflow: ellipsis; }
    #devices { height: auto; max-height: 40%; overflow-x: hidden; }
    #legend { height: 1; color: $text-muted; padding: 0 1; }
    #jobs { height: 1fr; overflow-x: hidden; }
    #pane { height: 45%; border-top: solid $primary; display: none; padding: 0 1; text-wrap: nowrap; }
    #message { height: auto; max-height: 3; padding: 0 1; color: $warning; }
    #head:nocolor, #jobs:nocolor > .datatable--cursor { text-style: reverse; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("c", "cancel", "Cancel"),
        Binding("h", "hold", "Hold"),
        Binding("plus,equals_sign", "priority(1)", "Priority", key_display="+ -"),
        Binding("minus", "priority(-1)", "Lower", show=False),
        Binding("s", "sort", "Sort"),
        Binding("u", "mine", "Mine"),
        Binding("l", "pane('log')", "Log"),
        Binding("w", "pane('why')", "Why"),
        Binding("d", "pane('story')", "Details"),
        Binding("q", "quit", "Quit"),
        Binding("pageup", "page(-1)", show=False, priority=True),  # the pane's border names the keys
        Binding("pagedown", "page(1)", show=False, priority=True),
        Binding("ctrl+c", "quit", show=False, priority=True),  # as in other full-screen programs
    ]

    def __init__(self, client: Client, *, user: str | None = None, interval_s: float = 1.0) -> None:
        if os.environ.get("NO_COLOR"):
            super().__init__(ansi_color=True)  # otherwise Textual uses greys, which are colours too
        else:
            os.environ.pop("NO_COLOR", None)  # Textual would obey an empty value
            super().__init__()
        self._client = client
        self._user = user
        self._me = client.account.name
        self._interval_s = interval_s
        self._order = lines.Order.ID
        self._snapshot: Snapshot | None = None
        self._away = True
        self._about: About | None = None
        #: Job and content of the pane, its lines, and how many lines it is scrolled from its initial position.
        self._pane_of: tuple[int, About] | None = None
        self._reported: list[str] = []
        self._scrolled = 0
        self._heads: dict[DataTable[Text], dict[str, int]] = {}
        self._changing = threading.Lock()
        # References instead of queries: an update may arrive while the screen is being removed.
        self._head = Static("reading …", id="head", markup=False)
        self._devices: DataTable[Text] = DataTable(id="devices", show_cursor=False)
        self._jobs: DataTable[Text] = DataTable(id="jobs", cursor_type="row")
        self._pane = Static("", id="pane", markup=False)
        self._message = Static("", id="message", markup=False)

    def on_load(self) -> None:
        """Exit cleanly after a signal, so that the terminal is restored."""
        loop = asyncio.get_running_loop()
        for number in ENDS:
            loop.add_signal_handler(number, self._end, 128 + number)

    def _end(self, code: int) -> None:
        self.exit(return_code=code)

    def compose(self) -> ComposeResult:
        """Lay out the screen."""
        yield self._head
        self._devices.can_focus = False
        yield self._devices
        yield Static(lines.LEGEND, id="legend", markup=False)
        yield self._jobs
        yield self._pane
        yield self._message
        yield Footer()

    def on_mount(self) -> None:
        """Start polling; the tables get their columns with the first snapshot."""
        self._jobs.focus()
        self.set_interval(self._interval_s, self._read_again)
        self._read_again()

    @work(thread=True, exclusive=True, group="read")
    def _read_again(self) -> None:
        """Ask the store, away from the screen: it may be slow to answer."""
        worker = get_current_worker()
        try:
            snapshot = take(self._client, user=self._user)
        except GpuQueueError as error:
            if not worker.is_cancelled:
                self.call_from_thread(self._report_away, str(error))
            return
        if not worker.is_cancelled:
            self.call_from_thread(self._show, snapshot)

    def _show(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        if self._away:
            self._away = False
            self._show_message(
                "" if snapshot.devices else "no worker has announced a device: start one with gpuqueue up"
            )
        self._head.update(lines.head_line(snapshot, self._order, self._user))
        self._show_devices(snapshot)
        self._show_jobs(snapshot)
        self._fill()

    def _show_devices(self, snapshot: Snapshot) -> None:
        rows = lines.device_rows(snapshot, self._client.settings.heartbeat_s)
        columns, widths = fit(lines.DEVICE_COLUMNS, rows, self.size.width - BESIDE)
        self._name_columns(self._devices, columns, widths)
        for row in rows:
            self._devices.add_row(*(_coloured(cell(column, row, widths[column.head]), column) for column in columns))

    def _show_jobs(self, snapshot: Snapshot) -> None:
        """Rewrite the table of jobs; the cursor stays on its job, or on its row if the job is gone."""
        table = self._jobs
        chosen, place = self._chosen_key(), table.cursor_row
        jobs = lines.job_lines(snapshot, self._order)
        columns, widths = fit(columns_for(jobs), jobs, self.size.width - BESIDE)
        self._name_columns(table, columns, widths)
        for line in jobs:
            table.add_row(*(_cell(column, line, widths[column.head]) for column in columns), key=_key(line))
        places = {_key(line): i for i, line in enumerate(jobs)}
        if jobs:
            table.move_cursor(row=places.get(chosen, min(place, len(jobs) - 1)) if chosen is not None else 0)

    def _name_columns(
        self, table: DataTable[Text], columns: Sequence[terminal_width.Column[Any]], widths: Mapping[str, int]
    ) -> None:
        """Clear *table*, and recreate its columns if their heads or widths have changed."""
        heads = {column.head: widths[column.head] for column in columns}
        known = self._heads.get(table)
        table.clear(columns=heads != known)
        if heads != known:
            self._heads[table] = heads
            for column in columns:
                table.add_column(_text(short(column.head, heads[column.head]), column), width=heads[column.head])

    def on_resize(self) -> None:
        """Fit the tables to the new size."""
        if self._snapshot is not None:
            self._show(self._snapshot)

    def _chosen_key(self) -> str | None:
        table = self._jobs
        if not table.row_count:
            return None
        return table.coordinate_to_cell_key(table.cursor_coordinate).row_key.value

    def _chosen(self) -> Line | None:
        chosen = self._chosen_key()
        shown = lines.job_lines(self._snapshot, self._order) if self._snapshot is not None else []
        return next((line for line in shown if _key(line) == chosen), None)

    def _report_away(self, why: str) -> None:
        self._away = True
        self._show_message(f"{why} (this is the last known state)" if self._snapshot else why)

    def _show_message(self, words: str) -> None:
        self._message.update(in_one_line(words))

    def action_sort(self) -> None:
        """Sort the jobs by the next order."""
        self._order = self._order.next
        if self._snapshot is not None:
            self._show(self._snapshot)

    def action_mine(self) -> None:
        """Toggle between the user's own jobs and all jobs."""
        self._user = None if self._user == self._me else self._me
        self._read_again()

    def action_pane(self, kind: str) -> None:
        """Open the pane with the content *kind* for the job under the cursor; close it if it shows that already."""
        wanted = About(kind)
        self._about = None if self._about is wanted else wanted
        self._pane.display = self._about is not None
        self._pane_of = None
        self._fill()

    def on_data_table_row_highlighted(self) -> None:
        """Show the job under the cursor in the pane."""
        self._fill()

    def on_data_table_row_selected(self) -> None:
        """Toggle the details of the job on Enter."""
        self.action_pane(About.STORY.value)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Enable the page keys of the pane only while it is open; otherwise they scroll the table."""
        return self._about is not None if action == "page" else super().check_action(action, parameters)

    def action_page(self, by: int) -> None:
        """Scroll the pane by its height less one line: -1 towards the beginning of the text, 1 towards its end."""
        step = by * max(1, self._pane.content_size.height - 1)
        self._scrolled = max(0, self._scrolled + (-step if self._about is About.LOG else step))
        self._draw_pane()

    def _fill(self) -> None:
        chosen = self._chosen()
        if self._about is None or chosen is None:
            return
        wanted = (chosen.job.id, self._about)
        if wanted != self._pane_of:
            self._pane_of, self._scrolled = wanted, 0
        if not (self._scrolled and self._about is About.LOG):  # a scrolled log must not move when it grows
            self._read(*wanted)

    @work(thread=True, exclusive=True, group="pane")
    def _read(self, job_id: int, about: About) -> None:
        text = reported(self._client, job_id, about, self.size.width - PANE_BESIDE)
        if not get_current_worker().is_cancelled:
            self.call_from_thread(self._write, text, (job_id, about))

    def _write(self, text: str, of: tuple[int, About]) -> None:
        if of == self._pane_of:
            self._reported = text.split("\n")
            self._draw_pane()

    def _draw_pane(self) -> None:
        """Draw the text at the scroll position: initially the end of a log, or the beginning of other text."""
        rows, count = max(1, self._pane.content_size.height), len(self._reported)
        most = max(0, count - rows)
        self._scrolled = min(self._scrolled, most)
        first = most - self._scrolled if self._about is About.LOG else self._scrolled
        self._pane.update("\n".join(self._reported[first : first + rows]))
        self._pane.border_title = f"{first + 1} to {first + rows} of {count} lines, PgUp PgDn" if most else ""

    def action_cancel(self) -> None:
        """Cancel the job under the cursor after a confirmation; any line of an array stands for the whole array."""
        line = self._chosen()
        if line is None:
            return
        job = line.job
        which = job.label if job.spec.array is None else f"{job.label} with all its members"
        who = f"{plain(job.spec.name)}, {plain(job.spec.account.name)}, {job.state}"

        def answered(yes: bool | None) -> None:  # noqa: FBT001 - as Textual calls it
            if yes:
                self._change(job, lambda job_id: self._client.jobs.cancel(job_id).state)

        self.push_screen(Ask(f"Cancel job {which} ({who})?"), answered)

    def action_hold(self) -> None:
        """Hold the job under the cursor, or release it if it is held."""
        line = self._chosen()
        if line is not None:
            act = self._client.jobs.release if line.state is JobState.HELD else self._client.jobs.hold
            self._change(line.job, lambda job_id: act(job_id).state)

    def action_priority(self, by: int) -> None:
        """Change the priority of the waiting job under the cursor by one step. The store checks the permission."""
        line = self._chosen()

        def edited(job_id: int) -> str:
            now = self._client.jobs.get(job_id)  # the snapshot may lack an earlier key press
            priority = lines.priority_beside(now, by)
            if priority is None:
                return f"priority {now.spec.priority}, and there is none {'above' if by > 0 else 'below'}"
            return f"priority {self._client.jobs.edit(job_id, priority=priority).spec.priority}"

        if line is not None:
            self._change(line.job, edited)

    @work(thread=True, group="change")
    def _change(self, job: Job, act: Callable[[int], JobState | str]) -> None:
        """Do it away from the screen, report the result, and read again."""
        try:
            with self._changing:
                words = f"job {job.label}: {act(job.id)}"
        except GpuQueueError as error:
            words = str(error)
        self.call_from_thread(self._show_message, words)
        self.call_from_thread(self._read_again)


def _key(line: Line) -> str:
    """Return a unique key of a line; an array may have two lines, for waiting and for held members."""
    return f"{line.job.id} {line.state}" if line.job.tally is not None else str(line.job.id)


def _text(words: str, column: terminal_width.Column[Any], style: str = "") -> Text:
    return Text(words, style=style, justify="right" if column.right else "left", no_wrap=True)


def _cell(column: Column, line: Line, width: int) -> Text:
    style = render.COLOURS.get(line.state, "") if column is STATE else ""
    return _text(short(column.cell(line, width), width), column, style)


def _coloured(words: str, column: terminal_width.Column[Any]) -> Text:
    """Return a cell in which each mark of a memory bar has its colour."""
    text = _text(words, column)
    for i, mark in enumerate(words):
        if mark in COLOURS:
            text.stylize(COLOURS[mark], i, i + 1)
    return text
