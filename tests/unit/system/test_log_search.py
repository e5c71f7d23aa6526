"""The search in a log: its lines, their numbers and places, and how it goes on."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuqueue.system import logs
from gpuqueue.system.logs import search


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
