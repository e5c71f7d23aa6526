"""Tests of the reading of a run's output, for its progress."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest
from factories import make_spec

from gpuqueue.model.progress import Progress, Reading
from gpuqueue.model.run import RunDevice
from gpuqueue.system import progress_file
from workers.measure import output as module
from workers.measure.active_runs import LiveRun
from workers.run.directory import Held, RunDir

HELD = Held(job_id=7, token="1.ab", devices=(RunDevice(uuid="GPU-0", lease_bytes=1),))


@pytest.fixture
def directory(tmp_path: Path) -> RunDir:
    """Return the directory of a run."""
    return RunDir.create(tmp_path / "runs", HELD)


def live(directory: RunDir, *argv: str) -> LiveRun:
    """Return the run, which has started at 100 s on the host's clock."""
    return LiveRun(held=HELD, directory=directory, since_s=100.0, spec=make_spec(argv=argv or ("true",)))


def write(directory: RunDir, text: str, name: str = "log") -> None:
    """Append *text* to an output of the run."""
    with (directory.path / name).open("a") as file:
        file.write(text)


def test_the_progress_is_beside_the_log(directory: RunDir) -> None:
    """It is what the output shows now, and what an earlier part of it has shown counts on."""
    run = live(directory)
    run.read_output(101.0)
    assert progress_file.read(directory.path) is None

    write(directory, "Epoch 3/4\n")
    run.read_output(102.0)
    write(directory, "50/100 ━━━━━━━━━━ 3s 35ms/step\n")
    run.read_output(103.0)

    assert Reading(Progress(share=0.625, counts="epoch 3/4")) == progress_file.read(directory.path)
    directory.settle()
    assert not (directory.path / "progress").exists()


def test_both_outputs_and_the_arguments_count_together(directory: RunDir) -> None:
    """Bars are on standard error, and the number of epochs may be among the arguments."""
    run = live(directory, "python", "train.py", "--epochs", "4")
    write(directory, "Epoch 2\n")
    write(directory, "\r 50%|##   | 5/10 [00:01<00:01]", "stderr")
    run.read_output(101.0)
    write(directory, "\r 60%|##   | 6/10 [00:01<00:01]", "stderr")
    run.read_output(102.0)
    run.read_output(103.0)

    assert Reading(Progress(share=0.4, counts="epoch 2/4")) == progress_file.read(directory.path)


def test_a_progress_that_is_unknown_again_is_removed(directory: RunDir) -> None:
    """Regression: the bar of an epoch was shown as that of the job."""
    run = live(directory)
    for second, percent in enumerate((10, 90, 10, 20)):
        write(directory, f"{percent}/100 ━━━━━━━━━━ 3s 35ms/step\n")
        run.read_output(101.0 + second)
        assert (second < 2) is (directory.path / "progress").exists()


def test_of_much_output_a_part_is_read(directory: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    """A job that writes megabytes a second costs no more than one that writes some kilobytes."""
    read: list[int] = []
    pread = os.pread
    monkeypatch.setattr(os, "pread", lambda fd, size, at: read.append(size) or pread(fd, size, at))
    write(directory, "epoch 1/4 loss 0.1\n" + "hello\n" * 1_000_000 + "epoch 3/4 loss 0.1\n")
    run = live(directory)
    run.read_output(101.0)

    assert Reading(Progress(share=0.5, counts="epoch 3/4")) == progress_file.read(directory.path)
    assert module.BEGIN_BYTES + module.END_BYTES == sum(read)
    run.read_output(102.0)
    assert module.BEGIN_BYTES + module.END_BYTES == sum(read)


@pytest.mark.parametrize("what", ["none", "pipe", "directory", "link", "shortened"])
def test_an_output_that_is_none_shows_nothing(directory: RunDir, what: str) -> None:
    """A job may replace its log."""
    log = directory.path / "log"
    run = live(directory)
    write(directory, "epoch 2/4 loss 0.1\n" * 9)
    run.read_output(101.0)
    log.unlink()
    if what == "pipe":
        os.mkfifo(log)
    elif what == "directory":
        log.mkdir()
    elif what == "link":
        log.symlink_to("claim")
    elif what == "shortened":
        log.write_text("epoch 4/4 loss 0.1\n")
    run.read_output(102.0)

    assert Reading(Progress(share=0.25, counts="epoch 2/4")) == progress_file.read(directory.path)


def test_a_worker_that_adopts_the_run_reads_on(directory: RunDir) -> None:
    """It reads no line again, so a bar does not seem to begin anew. Without the figures it reads from the start."""
    first = live(directory)
    for second, done in enumerate((10, 50, 80)):
        write(directory, f"step {done}/100\n")
        first.read_output(101.0 + second)
    directory.keep_meters(first.figures())

    second_run = LiveRun(held=HELD, directory=directory, since_s=104.0)
    second_run.resume()
    write(directory, "step 90/100\n")
    second_run.read_output(104.0)

    assert Reading(Progress(share=0.9, counts="step 90/100"), is_sure=False) == progress_file.read(directory.path)
    kept = json.loads((directory.path / "meters").read_text())
    directory.keep_meters({**kept, "output": {"offsets": {}, "reader": {"counters": 3}}})
    third = LiveRun(held=HELD, directory=directory, since_s=104.0)
    third.resume()
    third.read_output(105.0)
    assert Reading(Progress(share=0.9, counts="step 90/100"), is_sure=False) == progress_file.read(directory.path)


def test_the_time_left_falls_between_two_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """For as long as the worker may take to write it again: a worker that is gone says nothing more."""
    clock_s = [900.0, 1100.0, 1004.0, 1000.0, 1000.0]
    monkeypatch.setattr(time, "monotonic", clock_s.pop)
    (tmp_path / "progress").write_text(progress_file.written(Reading(Progress(share=0.5, counts="5/10", left_s=60.0))))
    found = []
    while clock_s:
        reading = progress_file.read(tmp_path)
        assert reading is not None
        found.append(reading.progress.left_s)

    assert [60, 56, 50, 60] == found


@pytest.mark.parametrize("text", ["", "[]", "{}", "x" * 5000, '{"share": -1, "counts": "", "at_s": 0}'])
def test_a_damaged_file_is_no_progress(tmp_path: Path, text: str) -> None:
    """A job may have written to it."""
    (tmp_path / "progress").write_text(text)
    assert progress_file.read(tmp_path) is None
