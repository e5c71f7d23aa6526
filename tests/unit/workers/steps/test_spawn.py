"""Tests of a run whose shim cannot be started."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from factories import make_spec

from gpuqueue.model.run import RunDevice
from gpuqueue.settings.settings import Settings
from workers.measure.active_runs import LiveRun
from workers.run.directory import Held, RunDir
from workers.shim.client import Shim, Unanswered
from workers.shim.output_link import make_links
from workers.steps.spawn import Spawn


class Failing:
    """A replacement for the shim starter that fails. With *late* it fails after a shim exists and holds the lock."""

    def __init__(self, error: Exception, *, late: bool) -> None:
        self.error = error
        self.late = late
        self.held = -1

    def start(self, _run_dir: Path, lock: int) -> Shim:
        """Raise the error."""
        if self.late:
            self.held = os.dup(lock)
        raise self.error


@pytest.mark.parametrize(
    "error", [OSError("no room"), Unanswered("?"), MemoryError(), UnicodeEncodeError("utf-8", "\udc80", 0, 1, "no")]
)
@pytest.mark.parametrize("late", [False, True], ids=["no shim", "a shim"])
def test_after_any_error_the_lock_shows_whether_there_is_a_shim(
    tmp_path: Path, error: Exception, *, late: bool
) -> None:
    """After any error the lock shows whether a shim exists.

    Regression: an unexpected error left the worker's own lock open, which looked like a shim, so the run never ended.
    """
    held = Held(job_id=1, token="1.a", devices=(RunDevice(uuid="dev-0", lease_bytes=1),))
    directory = RunDir.create(tmp_path, held)
    run = LiveRun(held=held, directory=directory, since_s=0.0)
    lock = directory.try_lock()
    assert lock is not None
    spawn = Spawn.__new__(Spawn)
    shims = Failing(error, late=late)
    spawn._shims = shims  # type: ignore[assignment]

    with pytest.raises(Unanswered if late else OSError):
        spawn._shim_of(run, make_spec(), {}, lock)

    assert late is (run.lock_fd is None)
    os.close(shims.held if run.lock_fd is None else run.lock_fd)
    free = directory.try_lock()
    assert free is not None
    os.close(free)


def test_a_retry_on_another_host_replaces_the_link_of_the_earlier_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Regression: in a home that hosts share, the link went on showing the earlier run."""
    monkeypatch.chdir(tmp_path)
    Path("out.txt").symlink_to("/runs/1/1.a/log")
    held = Held(job_id=1, token="2.b", devices=())
    run = LiveRun(held=held, directory=RunDir.create(tmp_path / "runs", held), since_s=0.0)
    spawn = Spawn.__new__(Spawn)
    environ = {"GPUQUEUE_CONFIG": os.devnull, "GPUQUEUE_STATE_DIR": "/s", "GPUQUEUE_HOST": "gpu2"}
    spawn._settings = Settings.load(environ)

    outputs = spawn._outputs(run, make_spec(output="out.txt"))

    assert outputs is not None
    make_links(outputs, {"GPUQUEUE_JOB_ID": "1", "GPUQUEUE_RUN_DIR": "/runs/1/2.b"})
    assert "/runs/1/2.b/log" == str(Path("out.txt").readlink())
    assert ["the link to its output leads to its log on gpu2; elsewhere gpuqueue logs shows it"] == [*run.notes]


@pytest.mark.parametrize(
    ("settings", "devices", "names"),
    [
        ({}, 1, {"threads", "open_files"}),
        ({"GPUQUEUE_LIMIT_THREADS": "false"}, 1, {"open_files"}),
        ({}, None, {"open_files"}),  # the driver did not answer
        ({"GPUQUEUE_RUN_AS": "submitter"}, 1, {"threads"}),  # the launcher or a session has the other one
    ],
)
def test_what_is_known_of_the_limits_of_a_run_is_recorded(
    settings: dict[str, str], devices: int | None, names: set[str]
) -> None:
    """The number of threads can be turned off for a site."""
    spawn = Spawn.__new__(Spawn)
    spawn._settings = Settings.load({"GPUQUEUE_CONFIG": os.devnull, "GPUQUEUE_STATE_DIR": "/s", **settings})
    spawn._host_devices = devices

    assert names == spawn.limits(make_spec()).keys()
