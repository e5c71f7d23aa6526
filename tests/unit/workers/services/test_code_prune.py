"""Tests of the deletion of code directories that fails."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from gpuqueue.clock import SystemClock
from gpuqueue.settings.settings import Settings
from workers.run import deliveries
from workers.run.deliveries import Delivery
from workers.services.prune import Pruner, delete_code

NEVER = threading.Event()


def test_the_manifest_goes_with_the_files(tmp_path: Path) -> None:
    """The list of the files is deleted with them, and so is the directory of both, but not before a delivery."""
    run = tmp_path / "1" / "1.a"
    (run / "code" / "tree" / "deep").mkdir(parents=True)
    (run / "code" / "manifest").touch()
    os.utime(run, (0, 0))

    assert 0 == delete_code(tmp_path, 1.0, None, NEVER, set(), lambda *name: name == ("1", "1.a"))
    assert 1 == delete_code(tmp_path, 1.0, None, NEVER, set(), lambda *_: False)

    assert [] == [*run.iterdir()]


def test_directories_of_a_job_are_deleted_however_closed_and_deep_they_are(tmp_path: Path) -> None:
    """Some programs make directories that nobody may change, and any job can nest them."""
    run = tmp_path / "1" / "1.a"
    (run / "code" / "tree" / "package").mkdir(parents=True)
    (run / "code" / "tree" / "package" / "file").touch()
    fd = os.open(run / "code" / "tree", os.O_RDONLY)
    for _ in range(1500):
        os.mkdir("deeper", dir_fd=fd)
        above, fd = fd, os.open("deeper", os.O_RDONLY, dir_fd=fd)
        os.close(above)
    os.close(fd)
    (run / "code" / "tree" / "package").chmod(0o500)
    (run / "code" / "tree").chmod(0)
    os.utime(run, (0, 0))

    assert 1 == delete_code(tmp_path, 1.0, None, NEVER, set(), lambda *_: False)

    assert [] == [*run.iterdir()]


def test_code_that_is_not_delivered_yet_stays(tmp_path: Path) -> None:
    """The code of a run goes once its kept files are delivered, and not before."""
    environ = {"GPUQUEUE_STATE_DIR": str(tmp_path), "GPUQUEUE_CONFIG": os.devnull, "GPUQUEUE_KEEP_CODE": "1h"}
    settings = Settings.load(environ)
    for job in ("1", "2"):
        run = settings.runs_dir / job / "1.a"
        (run / "code").mkdir(parents=True)
        os.utime(run, (0, 0))
    waiting = Delivery(job_id=1, token="1.a", keep=("*.pt",))
    deliveries.add(settings, waiting)
    pruner = Pruner(settings, SystemClock())

    def left() -> list[str]:
        pruner.round(NEVER)
        return [each.parent.parent.name for each in settings.runs_dir.glob("*/*/code")]

    left()  # the first round only records the clocks
    assert ["1"] == left()
    deliveries.remove(settings, waiting)
    assert [] == left()


def test_code_that_cannot_be_deleted_is_logged_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Each round tries again. The failure is logged once for each run directory, with the reason."""
    environ = {"GPUQUEUE_STATE_DIR": str(tmp_path), "GPUQUEUE_CONFIG": os.devnull, "GPUQUEUE_KEEP_CODE": "1h"}
    settings = Settings.load(environ)
    for job in ("1", "2"):
        run = settings.runs_dir / job / "1.a"
        run.mkdir(parents=True)
        (run / "code").touch()
        os.utime(run, (0, 0))
    pruner = Pruner(settings, SystemClock())

    for _ in range(4):  # the first round only records the clocks
        pruner.round(NEVER)

    assert [f"the code of the run {job}/1.a of uid {os.geteuid()} cannot be deleted" for job in ("1", "2")] == [
        each.partition(":")[0] for each in caplog.messages
    ]
    assert all(each.endswith("Not a directory") for each in caplog.messages)
