"""Tests of `RunWatch`: a run may start only after the store has answered its worker."""

from __future__ import annotations

import time
from contextlib import closing
from pathlib import Path

import pytest

from benchmarks.measure.run_watch import RunWatch
from workers.run.files import put


def claimed(runs: Path) -> Path:
    """Create the directory of a run as a worker does when it has claimed the job."""
    directory = runs / "7" / "token"
    directory.mkdir(parents=True)
    put(directory / "job", "{}")
    put(directory / "claim", "{}")
    (directory / "lock").touch()
    (runs / "live").mkdir()
    (runs / "live" / "7.token").touch()
    return directory


def test_a_run_may_start_when_its_worker_has_written_what_to_run(tmp_path: Path) -> None:
    """A run may start when its worker has written the spec.

    Regression: the stamp was taken inside the script, before the disk write and the answer, and was cut to
    milliseconds.
    """
    with closing(RunWatch(tmp_path)) as watch:
        directory = claimed(tmp_path)
        with pytest.raises(TimeoutError):
            watch.may_start(timeout_s=0)
        with pytest.raises(TimeoutError):  # the files that were there already do not count either
            watch.may_start(timeout_s=0)
        answered = time.time()
        put(directory / "spec", "{}")

        assert watch.may_start() >= answered


def test_a_run_that_ends_before_the_first_poll_is_seen(tmp_path: Path) -> None:
    """A run that ended before the first check is seen. This happens on a busy machine, and only the log is left."""
    with closing(RunWatch(tmp_path)) as watch:
        (tmp_path / "7" / "token").mkdir(parents=True)
        (tmp_path / "7" / "token" / "log").touch()
        asked = time.time()

        assert watch.may_start(timeout_s=0) >= asked


def test_who_cannot_watch_says_so(tmp_path: Path) -> None:
    """A missing directory raises `FileNotFoundError`."""
    with pytest.raises(FileNotFoundError):
        RunWatch(tmp_path / "none")
