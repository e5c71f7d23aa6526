"""The keys of ``gpuqueue top``, and the list of them that ``?`` shows."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Static

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
