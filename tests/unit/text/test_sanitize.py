"""Words made fit to be shown: cut where a word ends, and never wider than there is room."""

from __future__ import annotations

import inspect
from dataclasses import fields

import pytest

from gpuqueue.client import Client
from gpuqueue.client.editing import Edit
from gpuqueue.text.sanitize import cells, in_words, short, wrapped

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


@pytest.mark.parametrize(
    ("text", "taken"), [("train", 5), ("\u8bad\u7ec3", 4), ("caf\u00e9", 4), ("cafe\u0301", 4), ("\uff34", 2)]
)
def test_a_terminal_gives_a_wide_character_two_columns(text: str, taken: int) -> None:
    """A mark that stands on another character takes none."""
    assert cells(text) == taken


@pytest.mark.parametrize("width", range(1, 12))
def test_a_wide_name_is_cut_to_the_columns_that_there_are(width: int) -> None:
    """It was cut to so many characters, and took twice the room."""
    assert cells(short("\u8bad\u7ec3" * 8, width)) <= width
    assert cells(in_words("\u8bad \u7ec3 " * 8, width)) <= width


@pytest.mark.parametrize(
    ("text", "width", "lines"),
    [
        ("one two three", 7, ["one two", "three"]),
        ("one two three", 80, ["one two three"]),
        ("a nodeA.example.org b", 6, ["a", "nodeA.", "exampl", "e.org", "b"]),
        ("\u8bad\u7ec3 \u8bad", 4, ["\u8bad\u7ec3", "\u8bad"]),
        ("\u8bad\u7ec3", 1, ["\u8bad", "\u7ec3"]),
        ("", 5, [""]),
    ],
)
def test_a_text_is_broken_between_words(text: str, width: int, lines: list[str]) -> None:
    """Within one only where a line is too short for it."""
    assert lines == wrapped(text, width)


def test_edit_says_all_that_can_be_changed() -> None:
    """A program's editor and mypy see each thing by its name and type; they saw ``**changes: Any``."""
    named = inspect.signature(Client.edit).parameters
    told = {each.name: each.type for each in fields(Edit)}

    assert told == {name: each.annotation for name, each in named.items() if name not in {"self", "job"}}
