"""A modal confirmation dialog."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import Static


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
