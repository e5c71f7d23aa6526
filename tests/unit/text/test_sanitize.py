"""Tests of text for the terminal: it is cut between words, and never wider than the available columns."""

from __future__ import annotations

import pytest
import sqlalchemy as sa

from gpuqueue.errors import HistoryUnreachable, StoreUnreachable
from gpuqueue.history.connect import open_engine, shown
from gpuqueue.queue.connect import connect
from gpuqueue.text.sanitize import cells, in_words, plain, short, terminal_lines, without_password, wrapped

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


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("one\ntwo\n", ["one", "two"]),
        ("one\r\ntwo\r\n", ["one", "two"]),
        ("a\n\nb", ["a", "", "b"]),
        ("", [""]),
        ("10%|#  | 1/3\r 66%|## | 2/3\r100%|###| 3/3\nloss 1.0\n", ["100%|###| 3/3", "loss 1.0"]),
        ("saving the model\rdone\n", ["doneng the model"]),
        ("saving the model\r\x1b[Kdone\n", ["done"]),
        ("saving the model\x1b[2K\rdone", ["done"]),
        ("1/3\b\b\b2/3", ["2/3"]),
        ("abc\r\x1b[1Kx", ["xbc"]),
        ("\x1b[31mred\x1b[0m\n", ["\x1b[31mred\x1b[0m"]),
        ("\x1b[31m10 %\x1b[0m\r\x1b[32m20 %\x1b[0m", ["20 %"]),
        ("epochs 0/2\n steps 1/3\x1b[A\n steps 2/3\x1b[A\repochs 1/2\n steps 1/3", ["epochs 1/2", " steps 1/3"]),
        ("a\x1b[9Ab", ["ab"]),
        ("训练 1\r训练 2", ["训练 2"]),
    ],
)
def test_a_line_of_a_log_is_what_a_terminal_shows(text: str, lines: list[str]) -> None:
    """What a program overwrites is not there: a bar that is redrawn is one line, and not megabytes.

    Also in two lines, as nested bars of tqdm. Lines that nothing overwrites keep their colours.
    """
    assert lines == terminal_lines(text)


def test_a_tab_is_a_space() -> None:
    """Regression: a tab in a name or a command was shown as a character that is not valid."""
    assert "a b\ufffdc" == plain("a\tb\x1bc")


@pytest.mark.parametrize(
    ("url", "safe"),
    [
        ("redis://:hunter2@h:6379/0", "redis://:***@h:6379/0"),
        ("redis://ada:hunter2@h", "redis://ada:***@h"),
        ("redis://:hun/t@er2@h/0", "redis://:***@h/0"),
        ("postgresql://ada:hun?ter2@h/db", "postgresql://ada:***@h/db"),
        ("postgresql://ada:hun://ter2@h/db", "postgresql://ada:***@h/db"),
        ("unix://ada:hunter2@/x/y?db=1&password=hunter2", "unix://ada:***@/x/y?db=1&password=***"),
        ("postgresql://ada@h/db?sslpassword=hunter2&x=1", "postgresql://ada@h/db?sslpassword=***&x=1"),
        ("postgresql://h/db?password=hun@ter2", "postgresql://h/db?password=***"),
        # Typing errors: no host after the account, no scheme, an invalid port.
        ("redis://ada:hunter2", "redis://ada:***"),
        ("ada:hunter2@h:6379", "ada:***@h:6379"),
        ("postgresql://ada:hunter2@h:port/db", "postgresql://ada:***@h:port/db"),
    ],
)
def test_a_password_is_never_shown(url: str, safe: str) -> None:
    """A password is hidden wherever it is, whatever it contains, and however malformed the address is."""
    assert safe == without_password(url)


@pytest.mark.parametrize(
    "url",
    [
        "unix:///tmp/a@b.sock",
        "sqlite:////home/a@b/history.db",
        "redis://[::1]:6379/0",
        "redis://h:6379/0",
        "postgresql://ada@h:5432/db",
        "localhost:6379",
        "",
    ],
)
def test_an_address_without_one_is_shown_whole(url: str) -> None:
    """An address without a password is shown unchanged, because the user needs it."""
    assert url == without_password(url)


def test_a_refused_store_address_quotes_no_password() -> None:
    """The error for an invalid store address contains no password.

    Regression: the redis library took the password for a port and quoted it.
    """
    with pytest.raises(StoreUnreachable, match="no usable address") as caught:
        connect("redis://ada:hunter2")

    assert "hunter2" not in str(caught.value)


def test_a_port_that_is_no_number_is_no_traceback() -> None:
    """An invalid port gives no traceback. SQLAlchemy raises a different error for it than for other bad addresses."""
    with pytest.raises(HistoryUnreachable, match="cannot be read"):
        open_engine("postgresql://ada:hunter2@h:port/db")


def test_the_history_address_shows_no_key_file_password() -> None:
    """Both password parameters of the PostgreSQL driver are hidden."""
    assert "hunter2" not in shown(sa.make_url("postgresql://h/db?sslpassword=hunter2&password=hunter2"))
