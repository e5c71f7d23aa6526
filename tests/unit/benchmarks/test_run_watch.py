"""When a worker may start a run: never told before the store has answered it."""

from __future__ import annotations

import time
from contextlib import closing
from pathlib import Path

import pytest

from benchmarks.measure.run_watch import RunWatch
from workers.run.files import put


def claimed(runs: Path) -> Path:
    """Make the directory of a run as a worker does that has claimed its job."""
    directory = runs / "7" / "token"
    directory.mkdir(parents=True)
    put(directory / "job", "{}")
    put(directory / "claim", "{}")
    (directory / "lock").touch()
    (runs / "live").mkdir()
    (runs / "live" / "7.token").touch()
    return directory


def test_a_run_may_start_when_its_worker_has_written_what_to_run(tmp_path: Path) -> None:
    """It was the store's stamp within the script: before the disk's wait and the answer, cut to milliseconds."""
    with closing(RunWatch(tmp_path)) as watch:
        directory = claimed(tmp_path)
        with pytest.raises(TimeoutError):
            watch.may_start(timeout_s=0)
        with pytest.raises(TimeoutError):  # nor by what the directories had when they were found
            watch.may_start(timeout_s=0)
        answered = time.time()
        put(directory / "spec", "{}")

        assert watch.may_start() >= answered


def test_one_that_is_over_before_anybody_looks_is_seen(tmp_path: Path) -> None:
    """On a busy machine; of a run that has ended only the log is left."""
    with closing(RunWatch(tmp_path)) as watch:
        (tmp_path / "7" / "token").mkdir(parents=True)
        (tmp_path / "7" / "token" / "log").touch()
        looked = time.time()

        assert watch.may_start(timeout_s=0) >= looked


def test_who_cannot_watch_says_so(tmp_path: Path) -> None:
    """A place that is not there."""
    with pytest.raises(FileNotFoundError):
        RunWatch(tmp_path / "none")
