from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpuqueue import logs
from gpuqueue.logs import LogTail
from gpuqueue.units import MIB


def last(path: Path, lines: int) -> bytes:
    """Return what a reader gets who asks for the last lines."""
    tail = LogTail()
    tail.turn_to(path)
    tail.skip_to_last(lines)
    return b"".join(tail.rest())


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=st.text(alphabet="ab\n\r", max_size=60).map(str.encode), lines=st.integers(0, 30))
def test_the_last_lines_are_those_of_tail(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: bytes, lines: int
) -> None:
    """As tail(1): a line that is not ended counts, and a carriage return ends none."""
    monkeypatch.setattr(logs, "CHUNK_BYTES", 7)
    (tmp_path / "log").write_bytes(text)

    whole = re.findall(rb"[^\n]*\n|[^\n]+", text)
    assert b"".join(whole[len(whole) - min(lines, len(whole)) :]) == last(tmp_path / "log", lines)


def test_nobody_reads_through_what_was_cut_out(tmp_path: Path) -> None:
    """A hole of a terabyte is not searched for lines; what stands behind it is all there is."""
    log = tmp_path / "log"
    with log.open("wb") as file:
        file.write(b"begin\n" * 1000)
        file.seek(2**40)
        file.write(b"x\n" * MIB + b"y\n")

    assert b"x\ny\n" == last(log, 2)
    assert b"x\n" * MIB + b"y\n" == last(log, 2**30)


def test_what_cannot_be_read_is_left_to_the_reading(tmp_path: Path) -> None:
    """There is nothing to skip, and nothing raised."""
    assert b"" == last(tmp_path / "missing", 3)
    tail = LogTail()
    tail.skip_to_last(3)
    assert tail.path is None
