from __future__ import annotations

from gpuqueue.cli.output.render import DRAWN_BYTES, last_lines, log_lines, table
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


def test_the_end_of_a_log_is_what_a_terminal_shows() -> None:
    """A bar that is redrawn is one line, and a tab is as wide as on a terminal.

    Regression: a tab was shown as a character that is not valid.
    """
    written = b"step\tloss\r\n1\t0.5\n 50%|#    |\r100%|#####|\n"

    assert ["step    loss", "1       0.5", "100%|#####|"] == log_lines(written)


def test_the_last_lines_of_a_log_are_what_a_terminal_shows() -> None:
    """Regression: three lines of a job with progress bars were 4.6 MB."""
    bars = b"".join(b"epoch 1: %6d/90000 %s\r" % (step, b"#" * 80) for step in range(90_000))
    log = b"begin\n" + bars + b"\nloss 0.5\n"
    chunks = [log[at : at + 100_000] for at in range(0, len(log), 100_000)]

    assert len(log) > 2 * DRAWN_BYTES
    shown = b"begin\nepoch 1:  89999/90000 " + b"#" * 80 + b"\nloss 0.5\n"
    assert shown == b"".join(last_lines(chunks, 3))
    assert shown.partition(b"\n")[2] == b"".join(last_lines(chunks, 2))


def test_the_last_lines_that_nothing_overwrites_stay_as_they_are() -> None:
    """Programs read logs too: bytes that are no text, colours and line ends of other systems stay."""
    log = b"\x1b[31mred\x1b[0m\r\n\xff\tx\n" * 500_000

    assert [log] == [b"".join(last_lines([log[:7_000_000], log[7_000_000:]], 1_000_000))]
    assert b"1/2 \xff\n" == b"".join(last_lines([b"0/2 \xff\r1/", b"2\n"], 1))
