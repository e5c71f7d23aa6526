"""The screen of `gpuqueue top`: looks again and again, and passes what keys ask for on to the client."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from rich.text import Text
from textual import work
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.widgets import DataTable, Footer, Static
from textual.worker import get_current_worker

from gpuqueue.cli import render
from gpuqueue.cli.screen import lines
from gpuqueue.cli.screen.about import About, told
from gpuqueue.cli.screen.ask import Ask
from gpuqueue.cli.screen.snapshot import Snapshot, take
from gpuqueue.client import Client
from gpuqueue.errors import GpuQueueError
from gpuqueue.job import Job, JobState
from gpuqueue.words import in_one_line, plain

#: Mark in a memory bar -> colour.
COLOURS = {
    lines.HELD: "green",
    lines.PROMISED: "cyan",
    lines.STRANGERS: "red",
    lines.HEADROOM: "grey50",
    lines.FREE: "grey50",
}


class Top(App[None]):
    """Devices above, jobs below; a pane for the log of the job under the cursor."""

    TITLE = "gpuqueue top"
    ENABLE_COMMAND_PALETTE = False
    CSS = """
    #head { height: 1; background: $primary-background; padding: 0 1; text-wrap: nowrap; text-overflow: ellipsis; }
    #devices { height: auto; max-height: 40%; overflow-x: hidden; }
    #legend { height: 1; color: $text-muted; padding: 0 1; }
    #jobs { height: 1fr; overflow-x: hidden; }
    #pane { height: 45%; border-top: solid $primary; display: none; padding: 0 1; text-wrap: nowrap; }
    #said { height: auto; max-height: 3; padding: 0 1; color: $warning; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("c", "cancel", "Cancel"),
        Binding("h", "hold", "Hold/release"),
        Binding("s", "sort", "Sort"),
        Binding("u", "mine", "Mine/all"),
        Binding("l", "pane('log')", "Log"),
        Binding("w", "pane('why')", "Why"),
        Binding("d", "pane('story')", "Details"),
        Binding("q", "quit", "Quit"),
    ]

    def __init__(self, client: Client, *, user: str | None = None, interval_s: float = 1.0) -> None:
        super().__init__()
        self._client = client
        self._user = user
        self._me = client.account.name
        self._interval_s = interval_s
        self._order = lines.Order.ID
        self._snapshot: Snapshot | None = None
        self._away = True
        self._about: About | None = None

    def compose(self) -> ComposeResult:
        """Lay out the screen."""
        yield Static("looking …", id="head", markup=False)
        devices: DataTable[Text] = DataTable(id="devices", show_cursor=False)
        devices.can_focus = False
        yield devices
        yield Static(lines.LEGEND, id="legend", markup=False)
        yield DataTable(id="jobs", cursor_type="row")
        yield Static("", id="pane", markup=False)
        yield Static("", id="said", markup=False)
        yield Footer()

    def on_mount(self) -> None:
        """Name the columns and begin to look."""
        self._table("devices").add_columns(*lines.DEVICE_HEAD)
        self._table("jobs").add_columns(*lines.JOB_HEAD)
        self._table("jobs").focus()
        self.set_interval(self._interval_s, self._look)
        self._look()

    def _table(self, name: str) -> DataTable[Text]:
        return self.query_one(f"#{name}", DataTable)

    @work(thread=True, exclusive=True, group="look")
    def _look(self) -> None:
        """Ask the store, away from the screen: it may be slow to answer."""
        worker = get_current_worker()
        try:
            snapshot = take(self._client, user=self._user)
        except GpuQueueError as error:
            if not worker.is_cancelled:
                self.call_from_thread(self._tell_away, str(error))
            return
        if not worker.is_cancelled:
            self.call_from_thread(self._show, snapshot)

    def _show(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        if self._away:
            self._away = False
            self._say("" if snapshot.devices else "no worker has announced a device: start one with gpuqueue up")
        self.query_one("#head", Static).update(lines.head_line(snapshot, self._order, self._user))
        devices = self._table("devices")
        devices.clear()
        for row in lines.device_rows(snapshot, self._client.settings.beat_s):
            devices.add_row(*(_coloured(cell) for cell in row))
        self._show_jobs(snapshot)
        self._fill()

    def _show_jobs(self, snapshot: Snapshot) -> None:
        """Write the jobs anew; the cursor stays on its job, or in its place if that has gone."""
        table = self._table("jobs")
        chosen, place = self._chosen_id(), table.cursor_row
        table.clear()
        jobs = lines.ordered(snapshot, self._order)
        for job in jobs:
            cells = lines.job_row(job, snapshot)
            style = render.COLOURS.get(job.state, "")
            table.add_row(*(Text(cell, style=style if i == 3 else "") for i, cell in enumerate(cells)), key=str(job.id))  # noqa: PLR2004 - the state's column
        places = {job.id: i for i, job in enumerate(jobs)}
        if jobs:
            table.move_cursor(row=places.get(chosen, min(place, len(jobs) - 1)) if chosen is not None else 0)

    def _chosen_id(self) -> int | None:
        table = self._table("jobs")
        if not table.row_count:
            return None
        return int(table.coordinate_to_cell_key(table.cursor_coordinate).row_key.value or 0) or None

    def _chosen(self) -> Job | None:
        chosen = self._chosen_id()
        jobs = self._snapshot.jobs if self._snapshot is not None else ()
        return next((job for job in jobs if job.id == chosen), None)

    def _tell_away(self, why: str) -> None:
        self._away = True
        self._say(f"{why} (shown is what was last seen)" if self._snapshot else why)

    def _say(self, words: str) -> None:
        self.query_one("#said", Static).update(in_one_line(words))

    def action_sort(self) -> None:
        """Sort the jobs in another way."""
        self._order = self._order.next
        if self._snapshot is not None:
            self._show(self._snapshot)

    def action_mine(self) -> None:
        """Show only one's own jobs, or all again."""
        self._user = None if self._user == self._me else self._me
        self._look()

    def action_pane(self, kind: str) -> None:
        """Open the pane with what *kind* says of the job under the cursor; close it if it shows that already."""
        wanted = About(kind)
        self._about = None if self._about is wanted else wanted
        self.query_one("#pane", Static).display = self._about is not None
        self._fill()

    def on_data_table_row_highlighted(self) -> None:
        """Tell of the job that the cursor has come to."""
        self._fill()

    def on_data_table_row_selected(self) -> None:
        """Tell the whole story of the job on Enter."""
        self.action_pane(About.STORY.value)

    def _fill(self) -> None:
        chosen = self._chosen_id()
        if self._about is not None and chosen is not None:
            self._read(chosen, self._about)

    @work(thread=True, exclusive=True, group="pane")
    def _read(self, job_id: int, about: About) -> None:
        said = told(self._client, job_id, about)
        if not get_current_worker().is_cancelled:
            self.call_from_thread(self._write, said, about)

    def _write(self, said: str, about: About) -> None:
        """Show a log's end and a story's beginning, as far as there is room."""
        pane = self.query_one("#pane", Static)
        rows = max(1, pane.content_size.height)
        written = said.split("\n")
        pane.update("\n".join(written[-rows:] if about is About.LOG else written[:rows]))

    def action_cancel(self) -> None:
        """Ask, and cancel the job under the cursor."""
        job = self._chosen()
        if job is None:
            return

        def answered(yes: bool | None) -> None:  # noqa: FBT001 - as Textual calls it
            if yes:
                self._change(job, self._client.cancel)

        self.push_screen(
            Ask(f"Cancel job {job.id} ({plain(job.spec.name)}, {plain(job.spec.account.name)}, {job.state})?"), answered
        )

    def action_hold(self) -> None:
        """Hold a job that waits, release one that is held."""
        job = self._chosen()
        if job is not None:
            self._change(job, self._client.release if job.state is JobState.HELD else self._client.hold)

    @work(thread=True, group="change")
    def _change(self, job: Job, act: Callable[[int], JobState]) -> None:
        """Do it away from the screen, tell how it went, and look again."""
        try:
            words = f"job {job.id}: {act(job.id)}"
        except GpuQueueError as error:
            words = str(error)
        self.call_from_thread(self._say, words)
        self.call_from_thread(self._look)


def _coloured(cell: str) -> Text:
    """Return a cell; in a bar each kind of memory has its colour."""
    text = Text(cell)
    for i, mark in enumerate(cell):
        if mark in COLOURS:
            text.stylize(COLOURS[mark], i, i + 1)
    return text
