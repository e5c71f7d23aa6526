from __future__ import annotations

import re
from datetime import datetime, timezone
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpuqueue.system import logs
from gpuqueue.system.logs import STDERR, LogTail, search
from gpuqueue.text.units import MIB


def last(path: Path, lines: int) -> bytes:
    """Return the last *lines* as a reader gets them."""
    tail = LogTail()
    tail.turn_to(path)
    tail.skip_to_last(lines)
    return b"".join(tail.rest())


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=st.text(alphabet="ab\n\r", max_size=60).map(str.encode), lines=st.integers(0, 30))
def test_the_last_lines_are_those_of_tail(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: bytes, lines: int
) -> None:
    """The last lines are those of tail(1): an unfinished line counts, and a carriage return ends no line."""
    monkeypatch.setattr(logs, "CHUNK_BYTES", 7)
    (tmp_path / "log").write_bytes(text)

    whole = re.findall(rb"[^\n]*\n|[^\n]+", text)
    assert b"".join(whole[len(whole) - min(lines, len(whole)) :]) == last(tmp_path / "log", lines)


def test_nobody_reads_through_what_was_cut_out(tmp_path: Path) -> None:
    """A hole of a terabyte is not searched for lines. Only the part after it counts."""
    log = tmp_path / "log"
    with log.open("wb") as file:
        file.write(b"begin\n" * 1000)
        file.seek(2**40)
        file.write(b"x\n" * MIB + b"y\n")

    assert b"x\ny\n" == last(log, 2)
    assert b"x\n" * MIB + b"y\n" == last(log, 2**30)


def test_what_cannot_be_read_is_left_to_the_reading(tmp_path: Path) -> None:
    """A missing log has nothing to skip and raises no error."""
    assert b"" == last(tmp_path / "missing", 3)
    tail = LogTail()
    tail.skip_to_last(3)
    assert tail.path is None


def since(path: Path, at_s: float, stream: str = "log") -> tuple[bool, bytes]:
    """Return the log since *at_s*, after a flag that says whether that position is known."""
    tail = LogTail(stream)
    tail.turn_to(path)
    known = tail.skip_to_time(datetime.fromtimestamp(at_s, timezone.utc))
    return known, b"".join(tail.rest())


@pytest.mark.parametrize(
    ("at_s", "wanted"),
    [
        (50.0, b"one\ntwo\nthree\n"),
        (100.0, b"two\nthree\n"),
        (100.9, b"two\nthree\n"),
        (101.0, b"two\nthree\n"),
        (200.5, b""),
    ],
)
def test_what_was_written_since_then(tmp_path: Path, at_s: float, wanted: bytes) -> None:
    """The output starts at the beginning of the line that was being written.

    The times file has the length of the log at each time.
    """
    (tmp_path / "log").write_bytes(b"one\ntwo\nthree\n")
    (tmp_path / "log.times").write_text("100.0 4\n101.0 6\n200.0 14\nno\n2")

    assert (True, wanted) == since(tmp_path / "log", at_s)


def test_a_log_of_which_nothing_was_noted_is_shown_whole(tmp_path: Path) -> None:
    """A log without a times file is shown whole, and the caller learns that. A log that does not exist yet is empty."""
    assert (True, b"") == since(tmp_path / "log", 0.0)
    (tmp_path / "log").write_bytes(b"one\n")
    assert (False, b"one\n") == since(tmp_path / "log", 100.0)


def test_bytes_that_were_cut_meanwhile_are_skipped(tmp_path: Path) -> None:
    """A log can become shorter where the file system has no holes. Only the rest is shown."""
    (tmp_path / "log").write_bytes(b"begin\nend\n")
    (tmp_path / "log.times").write_text("100.0 500\n102.0 10\n")

    assert (True, b"") == since(tmp_path / "log", 103.0)
    assert (True, b"") == since(tmp_path / "log", 101.0)
    assert (True, b"begin\nend\n") == since(tmp_path / "log", 99.0)


def test_standard_error_is_read_beside_the_log(tmp_path: Path) -> None:
    """A separate standard error is read in the same way. Without one there is nothing to read."""
    (tmp_path / "log").write_bytes(b"out\n")
    assert (True, b"") == since(tmp_path / "log", 0.0, STDERR)
    (tmp_path / "stderr").write_bytes(b"err\nend\n")
    (tmp_path / "stderr.times").write_text("100.0 4\n102.0 8\n")
    assert (True, b"end\n") == since(tmp_path / "log", 101.0, STDERR)


def test_a_job_that_writes_faster_than_one_reads_keeps_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A read stops at the end that the log had at its start.

    Regression: ``logs --tail 5`` ran for as long as the job wrote.
    """
    monkeypatch.setattr(logs, "CHUNK_BYTES", 8)
    log = tmp_path / "log"
    log.write_bytes(b"line 1\nline 2\n")
    tail = LogTail()
    tail.turn_to(log)

    seen = b""
    for chunk in tail.rest():
        seen += chunk
        assert len(seen) < MIB, "it never ends"
        with log.open("ab") as file:
            file.write(b"more\n" * 2)

    assert b"line 1\nline 2\n" == seen
    assert b"more\n" * 4 == b"".join(tail.rest()), "the next look goes on there"


# ---- The search in a log: its lines, their numbers and places, and how it goes on ------------------------------------


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """Return a log with colours, a progress bar, and a last line without an end."""
    path = tmp_path / "log"
    path.write_bytes(
        b"epoch 1\n\x1b[31mError\x1b[0m: no memory\n 10%|# | 1/9\r 90%|#########| 8/9 error rate 2\nlast ERROR"
    )
    return path


def test_lines_are_found_in_any_case_and_without_colours(log: Path) -> None:
    """Each match has the number of its line, and the byte where the line begins."""
    found, content = search(log, "log", "error"), log.read_bytes()
    assert [
        (2, content.index(b"\x1b[31m"), "Error: no memory"),
        (3, content.index(b" 10%"), " 90%|#########| 8/9 error rate 2"),
        (4, content.index(b"last"), "last ERROR"),
    ] == [(each.line, each.offset, each.text) for each in found.matches]
    assert (True, len(content)) == (found.ended, found.next_offset)


def test_a_search_goes_on_where_it_stopped(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One answer has a bound, and the next one begins behind it."""
    monkeypatch.setattr(logs, "MOST_MATCHES", 1)
    first = search(log, "log", "error")
    rest = search(log, "log", "error", offset=first.next_offset, line=first.next_line)
    assert ([2], False, [3]) == (
        [each.line for each in first.matches],
        first.ended,
        [each.line for each in rest.matches],
    )


def test_lines_across_pieces_are_found_once(tmp_path: Path) -> None:
    """A log is read in pieces, and a line may lie in two of them."""
    path = tmp_path / "log"
    path.write_bytes(b"".join(b"line %d%s\n" % (at, b" needle" if at % 20_000 == 0 else b"") for at in range(100_000)))
    found = search(path, "log", "NEEDLE")
    assert [1, 20_001, 40_001, 60_001, 80_001] == [each.line for each in found.matches]


def test_an_empty_log_has_no_match(tmp_path: Path) -> None:
    """Nor has one that is not there yet."""
    assert ((), True) == (search(tmp_path / "log", "log", "x").matches, search(tmp_path / "log", "log", "x").ended)
