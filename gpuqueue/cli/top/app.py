"""The screen of ``gpuqueue top``: polls the site and maps keys to calls of the client.

The keys with their help come first, then the screen, then what keys do with jobs, and the question before it.
"""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Callable, Sequence
from typing import ClassVar

from textual import work
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Footer, Input, Static
from textual.worker import get_current_worker

from gpuqueue.cli.options.own_queue import how_to_start
from gpuqueue.cli.output.queue_table import Line
from gpuqueue.cli.top import lines
from gpuqueue.cli.top.job_pane import About, FittedTable, JobPane, key_of, reported
from gpuqueue.cli.top.lines import Snapshot, take
from gpuqueue.client import Client
from gpuqueue.errors import GpuQueueError
from gpuqueue.model.job import JobState
from gpuqueue.text.sanitize import in_one_line, plain, short

#: The keys with the actions of the screen.
BINDINGS: list[BindingType] = [
    Binding("question_mark", "help", "Help", key_display="?"),
    Binding("slash", "filter", "Filter", key_display="/"),
    Binding("space", "mark", "Mark"),
    Binding("c", "cancel", "Cancel"),
    Binding("h", "hold", "Hold"),
    Binding("r", "retry", "Retry"),
    Binding("plus,equals_sign", "priority(1)", show=False),
    Binding("minus", "priority(-1)", show=False),
    Binding("s", "sort", show=False),
    Binding("u", "mine", show=False),
    Binding("e", "ended", show=False),
    Binding("l", "pane('log')", "Log"),
    Binding("w", "pane('why')", "Why"),
    Binding("d", "pane('details')", show=False),
    Binding("t", "tall", show=False),
    Binding("q", "quit", "Quit"),
    Binding("escape", "close", show=False),
    Binding("pageup", "page(-1)", show=False, priority=True),  # the pane's border names the keys
    Binding("pagedown", "page(1)", show=False, priority=True),
    Binding("ctrl+c", "quit", show=False, priority=True),  # as in other full-screen programs
]
#: Key and action, in the order of the list.
KEYS = (
    ("↑ ↓", "select a job"),
    ("space", "mark the job, or remove its mark"),
    ("c", "cancel it"),
    ("h", "hold or release it"),
    ("+ -", "raise or lower its priority"),
    ("r", "retry it, if it has ended"),
    ("", "c, h, r, + and - act on the marked jobs, if there are any"),
    ("l  w  d", "log, why it waits, details: open or close the pane"),
    ("t", "give the pane the whole screen, or take it back"),
    ("PgUp PgDn", "scroll the pane, or without one the jobs"),
    ("/", "show only jobs with these words; Enter keeps the filter"),
    ("e", "show the jobs that ended last, or hide them"),
    ("u", "show only your own jobs, or all"),
    ("s", "sort by id, memory, time or user"),
    ("Esc", "close the pane, then remove filter and marks"),
    ("q", "quit; the jobs go on"),
)
#: Signals that end the program.
ENDS = (signal.SIGTERM, signal.SIGHUP)
#: Columns of the screen that the pane and the legend cannot use.
PANE_BESIDE = LEGEND_BESIDE = 2
#: Changes the job of a line and returns the result in a few words.
Act = Callable[[Client, Line], str]
#: Longest list of jobs in a message, in columns.
LISTED = 40


class Help(ModalScreen[None]):
    """Shows the keys until Escape, ? or q."""

    CSS = """
    Help { align: center middle; }
    Help > VerticalScroll { width: auto; max-width: 96%; height: auto; max-height: 96%; background: $surface; }
    Help > VerticalScroll { border: round $primary; padding: 0 1; }
    Help Static { width: auto; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,question_mark,q", "dismiss", "Close")]

    def compose(self) -> ComposeResult:
        """Show the keys in the middle of the screen."""
        with VerticalScroll():
            yield Static("\n".join(f"{key:<10} {action}" for key, action in KEYS), markup=False)


class Top(App[None]):
    """Shows devices above, jobs below, and a pane about the job under the cursor."""

    TITLE = "gpuqueue top"
    ENABLE_COMMAND_PALETTE = False
    CSS = """
    #head { height: 1; background: $primary-background; padding: 0 1; text-wrap: nowrap; text-overflow: ellipsis; }
    #devices { height: auto; max-height: 40%; overflow-x: hidden; }
    #legend { height: auto; max-height: 5; color: $text-muted; padding: 0 1; }
    #jobs { height: 1fr; overflow-x: hidden; }
    #pane { height: 45%; border-top: solid $primary; display: none; padding: 0 1; text-wrap: nowrap; }
    #filter { height: 1; border: none; padding: 0 1; display: none; }
    #message { height: auto; max-height: 3; padding: 0 1; color: $warning; }
    #head:nocolor, #jobs:nocolor > .datatable--cursor { text-style: reverse; }
    .tall #devices, .tall #legend, .tall #jobs { display: none; }
    .tall #pane { height: 1fr; }
    """
    BINDINGS: ClassVar[list[BindingType]] = BINDINGS

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
        self._with_ended = False
        self._filter_text = ""
        self._marked_keys: frozenset[str] = frozenset()
        self._snapshot: Snapshot | None = None
        self._away = True
        self._changing = threading.Lock()
        # References instead of queries: an update may arrive while the screen is being removed.
        self._head = Static("reading …", id="head", markup=False)
        self._devices = FittedTable(id="devices", show_cursor=False)
        self._legend = Static(lines.LEGEND, id="legend", markup=False)
        self._jobs = FittedTable(id="jobs", cursor_type="row")
        self._pane = JobPane()
        self._filter_line = Input(placeholder="words of the jobs to show", id="filter", select_on_focus=False)
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
        yield self._legend
        yield self._jobs
        yield self._pane
        yield self._filter_line
        yield self._message
        yield Footer()

    def on_mount(self) -> None:
        """Start polling; the tables get their columns with the first snapshot."""
        self._jobs.focus()
        self.set_interval(self._interval_s, self._read_again)
        self._read_again()

    @work(thread=True, exclusive=True, group="read")
    def _read_again(self) -> None:
        """Ask the store in a thread, because it may be slow to answer."""
        worker = get_current_worker()
        try:
            snapshot = take(self._client, user=self._user, ended=self._with_ended)
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
            remedy = how_to_start(self._client.settings)
            self._show_message("" if snapshot.devices else f"{lines.NO_WORKER}: {remedy}")
        self._draw()

    def _draw(self) -> None:
        """Draw the last snapshot with the present order, filter and marks."""
        snapshot = self._snapshot
        if snapshot is None:
            return
        shown = lines.job_lines(snapshot, self._order, self._filter_text)
        self._marked_keys &= {key_of(line) for line in shown}  # an action must not change a job that is out of sight
        more = [f"{len(self._marked_keys)} marked"] if self._marked_keys else []
        more += [f"filter: {self._filter_text}"] if self._filter_text.strip() else []
        self._head.update(" · ".join([*more, lines.head_line(snapshot, self._order, self._user)]))
        width = self.size.width
        self._devices.show_devices(lines.device_rows(snapshot, self._client.settings.heartbeat_s), width)
        self._legend.update(lines.legend(snapshot, width - LEGEND_BESIDE))
        self._jobs.show_jobs(shown, self._marked_keys, width)
        self._fill()

    def on_resize(self) -> None:
        """Fit the tables to the new size."""
        self._draw()

    def _shown(self) -> list[Line]:
        snapshot = self._snapshot
        return [] if snapshot is None else lines.job_lines(snapshot, self._order, self._filter_text)

    def _chosen(self) -> Line | None:
        """Return the line under the cursor."""
        chosen = self._jobs.chosen_key
        return next((line for line in self._shown() if key_of(line) == chosen), None)

    def _meant(self) -> list[Line]:
        """Return the marked lines, or without marks the line under the cursor."""
        marked = [line for line in self._shown() if key_of(line) in self._marked_keys]
        chosen = self._chosen()
        return marked or ([chosen] if chosen is not None else [])

    def _report_away(self, why: str) -> None:
        self._away = True
        self._show_message(f"{why} (this is the last known state)" if self._snapshot else why)

    def _show_message(self, words: str) -> None:
        self._message.update(in_one_line(words))

    def action_help(self) -> None:
        """Show the keys."""
        self.push_screen(Help())

    def action_sort(self) -> None:
        """Sort the jobs by the next order."""
        self._order = self._order.next
        self._draw()

    def action_mine(self) -> None:
        """Toggle between the user's own jobs and all jobs."""
        self._user = None if self._user == self._me else self._me
        self._read_again()

    def action_ended(self) -> None:
        """Show the jobs that ended last, or hide them."""
        self._with_ended = not self._with_ended
        self._read_again()

    def action_mark(self) -> None:
        """Mark the job under the cursor or remove its mark, and go to the next job."""
        chosen = self._jobs.chosen_key
        if chosen is not None:
            self._marked_keys ^= {chosen}
            self._jobs.action_cursor_down()
            self._draw()

    def action_filter(self) -> None:
        """Open the line in which the filter is typed."""
        self._filter_line.display = True
        self._filter_line.focus()

    def on_input_changed(self, event: Input.Changed) -> None:
        """Show only the jobs that have the words typed so far."""
        self._filter_text = event.value
        self._draw()

    def on_input_submitted(self) -> None:
        """Keep the filter and return to the jobs."""
        self._filter_line.display = False
        self._jobs.focus()

    def action_close(self) -> None:
        """Undo one thing: what is typed in the filter's line, else the open pane, else the filter, else the marks."""
        if self._pane.about is not None and not self._filter_line.has_focus:
            self.action_pane(self._pane.about.value)
        elif self._filter_text or self._filter_line.has_focus:
            self._filter_line.value = ""
            self.on_input_submitted()
        else:
            self._marked_keys = frozenset()
            self._draw()

    def action_pane(self, kind: str) -> None:
        """Open the pane with the content *kind* for the job under the cursor; close it if it shows that already."""
        self._pane.toggle(About(kind))
        if self._pane.about is None:
            self.screen.remove_class("tall")
            self._jobs.focus()
        self._fill()

    def action_tall(self) -> None:
        """Give the pane the whole screen, or take it back. Without a pane the log is opened."""
        if self._pane.about is None:
            self.action_pane(About.LOG.value)
        self.screen.toggle_class("tall")
        if not self.screen.has_class("tall"):
            self._jobs.focus()

    def on_data_table_row_highlighted(self) -> None:
        """Show the job under the cursor in the pane."""
        self._fill()

    def on_data_table_row_selected(self) -> None:
        """Toggle the details of the job on Enter."""
        self.action_pane(About.DETAILS.value)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Enable the page keys of the pane only while it is open; otherwise they scroll the table."""
        return self._pane.about is not None if action == "page" else super().check_action(action, parameters)

    def action_page(self, by: int) -> None:
        """Scroll the pane by a page."""
        self._pane.page(by)

    def _fill(self) -> None:
        chosen = self._chosen()
        wanted = None if chosen is None else self._pane.wanted(chosen.job.id)
        if wanted is not None:
            self._read(*wanted)

    @work(thread=True, exclusive=True, group="pane")
    def _read(self, job_id: int, about: About) -> None:
        text = reported(self._client, job_id, about, self.size.width - PANE_BESIDE)
        if not get_current_worker().is_cancelled:
            self.call_from_thread(self._pane.write, text, (job_id, about))

    def action_cancel(self) -> None:
        """Cancel the jobs after a confirmation."""
        self._confirmed("Cancel", cancel, self._meant())

    def action_hold(self) -> None:
        """Hold each job, or release it if it is held."""
        self._change(self._meant(), hold)

    def action_retry(self) -> None:
        """Submit ended jobs again; several only after a confirmation."""
        meant = self._meant()
        if len(meant) > 1:
            self._confirmed("Retry", retry, meant)
        else:
            self._change(meant, retry)

    def action_priority(self, by: int) -> None:
        """Change the priority of the waiting jobs by one step."""
        self._change(self._meant(), raise_priority(by))

    def _confirmed(self, verb: str, act: Act, meant: list[Line]) -> None:
        def answered(yes: bool | None) -> None:  # noqa: FBT001 - as Textual calls it
            if yes:
                self._change(meant, act)

        if meant:
            self.push_screen(Ask(question(verb, meant)), answered)

    @work(thread=True, group="change")
    def _change(self, meant: list[Line], act: Act) -> None:
        """Call *act* on the jobs *meant* in a thread, report the result, and read again."""
        if meant:
            with self._changing:
                words = change(self._client, meant, act)
            self.call_from_thread(self._show_message, words)
            self.call_from_thread(self._read_again)


def cancel(client: Client, line: Line) -> str:
    """Cancel the job; a line of an array stands for the whole array."""
    return str(client.jobs.cancel(line.job.id).state)


def hold(client: Client, line: Line) -> str:
    """Hold the job, or release it if it is held."""
    act = client.jobs.release if line.state is JobState.HELD else client.jobs.hold
    return str(act(line.job.id).state)


def retry(client: Client, line: Line) -> str:
    """Submit the request of an ended job again."""
    return f"submitted again as {client.jobs.retry(line.job.id).label}"


def raise_priority(by: int) -> Act:
    """Return the act that changes the priority by *by* steps. The store checks the permission."""

    def act(client: Client, line: Line) -> str:
        now = client.jobs.get(line.job.id)  # the snapshot may lack an earlier key press
        priority = lines.priority_beside(now, by)
        if priority is None:
            return f"priority {now.spec.priority}, and there is none {'above' if by > 0 else 'below'}"
        return f"priority {client.jobs.edit(line.job.id, priority=priority).spec.priority}"

    return act


def change(client: Client, chosen: Sequence[Line], act: Act) -> str:
    """Do *act* to each job, and return what happened; jobs with the same result are named together."""
    results: dict[str, list[str]] = {}
    for line in {line.job.id: line for line in chosen}.values():
        try:
            results.setdefault(f": {act(client, line)}", []).append(line.job.label)
        except GpuQueueError as error:
            results.setdefault(f" is unchanged: {error}" if len(chosen) > 1 else str(error), []).append(line.job.label)
    messages = []
    for result, labels in results.items():
        named = result.startswith((":", " "))
        messages.append(f"job {short(', '.join(labels), LISTED)}{result}" if named else result)
    return "; ".join(messages)


def question(verb: str, chosen: Sequence[Line]) -> str:
    """Return the question whether to *verb* these jobs."""
    if len(chosen) > 1:
        return f"{verb} {len(chosen)} jobs: {short(', '.join(line.job.label for line in chosen), LISTED)}?"
    job = chosen[0].job
    which = job.label if job.spec.array is None else f"{job.label} with all its members"
    return f"{verb} job {which} ({plain(job.spec.name)}, {plain(job.spec.account.name)}, {job.state})?"


class Ask(ModalScreen[bool]):
    """A dialog that ends with True for y, and with False for n, Escape and q."""

    CSS = """
    Ask { align: center middle; }
    Ask > Vertical { width: auto; max-width: 90%; height: auto; background: $surface; }
    Ask > Vertical { border: round $warning; padding: 1 2; }
    Ask Static { width: auto; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("y", "answer(True)", "yes"),
        Binding("n,escape,q", "answer(False)", "no"),
    ]

    def __init__(self, question: str) -> None:
        super().__init__()
        self._question = question

    def compose(self) -> ComposeResult:
        """Show the question in the middle of the screen."""
        with Vertical():
            yield Static(self._question, markup=False)
            yield Static("\ny: yes    n: no", markup=False)

    def action_answer(self, answer: bool) -> None:  # noqa: FBT001 - Textual passes the binding's argument
        """Close the dialog with *answer*."""
        self.dismiss(answer)
