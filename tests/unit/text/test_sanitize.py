"""Tests of text for the terminal: it is cut between words, and never wider than the available columns."""

from __future__ import annotations

import pytest

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
    """A line is cut between two words.

    Regression: the waiting line of `run` ended in the middle of a word at 80 columns.
    """
    assert cut == in_words(LINE, width)
    assert len(cut) <= width


@pytest.mark.parametrize(
    ("text", "taken"),
    [
        ("train", 5),
        ("\u8bad\u7ec3", 4),
        ("caf\u00e9", 4),
        ("cafe\u0301", 4),
        ("\uff34", 2),
        ("\u0e17\u0e35\u0e48", 1),  # Thai marks, whose combining class is 0
        ("\U0001f680 run", 6),
        ("\u2764\ufe0f", 2),
        ("\U0001f680\ufe0f", 2),
        ("1\ufe0f\u20e3", 2),
    ],
)
def test_a_terminal_gives_a_wide_character_two_columns(text: str, taken: int) -> None:
    """A wide character takes two terminal columns, and a mark takes none, except the one that makes an emoji."""
    assert cells(text) == taken


@pytest.mark.parametrize("width", range(1, 12))
def test_a_wide_name_is_cut_to_the_columns_that_there_are(width: int) -> None:
    """A wide name is cut to the available columns.

    Regression: it was cut by its number of characters and took twice the room.
    """
    assert cells(short("\u8bad\u7ec3" * 8, width)) <= width
    assert cells(in_words("\u8bad \u7ec3 " * 8, width)) <= width


def test_marks_take_no_room_of_the_name_below_them() -> None:
    """A name with marks is cut to the same columns as one without."""
    assert "\u0e17\u0e35" * 5 + "…" == short("\u0e17\u0e35" * 9, 6)
    assert "\u0e17\u0e35" * 6 == short("\u0e17\u0e35" * 6, 6)


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
    """A text is wrapped between words, and within a word only if the word is longer than the line."""
    assert lines == wrapped(text, width)
