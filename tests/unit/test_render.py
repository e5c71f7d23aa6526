from __future__ import annotations

from gpuqueue.cli.render import table
from gpuqueue.words import plain, short


def test_nothing_that_a_job_is_called_reaches_the_terminal_as_a_command() -> None:
    """Escapes, newlines, right-to-left marks and undecodable bytes are shown as one sign each."""
    nasty = "a\x1b[31mb\nc\u202ed\udc80e\x9b"

    assert "a\ufffd[31mb\ufffdc\ufffdd\ufffde\ufffd" == plain(nasty)


def test_columns_are_aligned_and_long_names_cut() -> None:
    """A table is read by its columns."""
    assert "A    B\nxx   1\ny   22" == table(("A", "B"), [("xx", "1"), ("y", "22")], right=(1,))
    assert "abcdefg…" == short("abcdefghij", 8)
