from __future__ import annotations

import time
from pathlib import Path

import pytest

from workers.run.directory import RunDir
from workers.shim.preempt_request import NEVER
from workers.shim.supervisor import TimeLimit


def test_a_shim_reads_the_limit_that_a_worker_has_extended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A signal that was sent is due again before the new end, unless that is so near that it would come at once."""
    run = RunDir(tmp_path)
    (tmp_path / "claim").touch()
    monkeypatch.chdir(tmp_path)
    limit, now = TimeLimit({"time_limit_s": 100.0, "signal": [10, 60.0]}), time.monotonic()
    limit.read(now)
    first = limit.end
    assert (60.0, pytest.approx(now + 100, abs=5)) == (first - limit.early, first)

    limit.early = NEVER  # it was sent
    run.extend(130.0)
    limit.read(first - 30)
    assert (30.0, NEVER) == (pytest.approx(limit.end - first), limit.early)
    run.extend(1100.0)
    limit.read(first)
    assert (1000.0, 940.0) == (pytest.approx(limit.end - first), pytest.approx(limit.early - first))


def test_a_shim_ignores_what_is_no_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "time_limit").symlink_to("soon")
    limit = TimeLimit({"time_limit_s": None, "signal": None})

    limit.read(0.0)

    assert (NEVER, NEVER) == (limit.end, limit.early)
