"""Words made fit to be shown: cut where a word ends, and never wider than there is room."""

from __future__ import annotations

import inspect
from dataclasses import fields

import pytest

from gpuqueue.client import Client
from gpuqueue.client.editing import Edit
from gpuqueue.words import in_words

LINE = "job 12 waits for memory, 30s so far; 2 jobs before it"


@pytest.mark.parametrize(
    ("width", "cut"),
    [
        (len(LINE), LINE),
        (len(LINE) - 1, "job 12 waits for memory, 30s so far; 2 jobs before …"),
        (38, "job 12 waits for memory, 30s so far …"),
        (5, "job …"),
        (3, "jo…"),
    ],
)
def test_a_line_is_cut_between_two_words(width: int, cut: str) -> None:
    """The waiting line of `run` ended in the middle of one at 80 columns."""
    assert cut == in_words(LINE, width)
    assert len(cut) <= width


def test_edit_says_all_that_can_be_changed() -> None:
    """A program's editor and mypy see each thing by its name and type; they saw ``**changes: Any``."""
    named = inspect.signature(Client.edit).parameters
    told = {each.name: each.type for each in fields(Edit)}

    assert told == {name: each.annotation for name, each in named.items() if name not in {"self", "job_id"}}
