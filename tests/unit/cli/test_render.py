from __future__ import annotations

from gpuqueue.cli.output.render import table
from gpuqueue.text.sanitize import plain, short


def test_nothing_that_a_job_is_called_reaches_the_terminal_as_a_command() -> None:
    """A job's name cannot control the terminal.

    Escapes, newlines, right-to-left marks and undecodable bytes each become one replacement character.
    """
    nasty = "a\x1b[31mb\nc\u202ed\udc80e\x9b"

    assert "a\ufffd[31mb\ufffdc\ufffdd\ufffde\ufffd" == plain(nasty)


def test_columns_are_aligned_and_long_names_cut() -> None:
    """The columns are aligned, and a long name is cut."""
    assert "A    B\nxx   1\ny   22" == table(("A", "B"), [("xx", "1"), ("y", "22")], right=(1,))
    assert "abcdefg…" == short("abcdefghij", 8)
