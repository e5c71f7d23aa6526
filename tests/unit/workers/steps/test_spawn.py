"""Tests of a run whose shim cannot be started."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from factories import make_spec

from gpuqueue.model.job_spec import JobSpec
from gpuqueue.model.run import RunDevice
from gpuqueue.queue.evidence import NO_EVIDENCE
from gpuqueue.settings.settings import Settings
from workers.measure.active_runs import LiveRun
from workers.run.directory import Held, RunDir
from workers.runner import check_limits, choose_python
from workers.shim.client import Shim
from workers.shim.output_link import make_links
from workers.steps.conclusion import NotStarted
from workers.steps.spawn import Spawn, Unanswered


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


# ---- Tests of the step that refuses jobs whose limits this host cannot set -------------------------------------------


def test_a_host_without_a_launcher_is_excluded_for_a_job_with_limits(tmp_path: Path) -> None:
    """The job has not failed: another host may have a launcher. Jobs without limits run."""
    held = Held(job_id=1, token="1.a", devices=(RunDevice(uuid="dev-0", lease_bytes=1),))
    run = LiveRun(held=held, directory=RunDir.create(tmp_path / "runs", held), since_s=0.0, spec=make_spec())
    assert run is check_limits(run, None)

    for limits in ({"cpus": 2}, {"cpu_mem_bytes": 2**30}):
        run.spec = make_spec(**limits)
        assert run is check_limits(run, "/run/launcher.sock")
        with pytest.raises(NotStarted, match="this host cannot limit host memory and processors of jobs") as refused:
            check_limits(run, None)
        assert (NO_EVIDENCE, False) == (refused.value.host_lacks, refused.value.host_failed)


# ---- Tests of the step that resolves the name of a job's environment on its host -------------------------------------


def run_of(tmp_path: Path, spec: JobSpec | None) -> LiveRun:
    """Return a claimed run with *spec*."""
    held = Held(job_id=1, token="1.a", devices=(RunDevice(uuid="dev-0", lease_bytes=1),))
    return LiveRun(held=held, directory=RunDir.create(tmp_path / "runs", held), since_s=0.0, spec=spec)


def chosen(tmp_path: Path, spec: JobSpec, **programs: str) -> JobSpec:
    """Return *spec* as this host starts it with its *programs*."""
    found = choose_python(run_of(tmp_path, spec), programs).spec
    assert found is not None
    return found


def test_a_script_runs_with_the_program_of_this_host(tmp_path: Path) -> None:
    """The path comes from the settings of the host. Its directory is first on PATH, for what the script starts."""
    env = {"PATH": "/usr/bin", "VIRTUAL_ENV": "/home/ada/.venv", "LR": "1"}
    spec = make_spec(argv=("python3", "t.py"), script="t.py", interpreter="python3", environment="torch", env=env)

    found = chosen(tmp_path, spec, torch=sys.executable)

    assert (sys.executable, "t.py") == found.argv
    assert sys.executable == found.interpreter
    assert {"PATH": f"{Path(sys.executable).parent}:/usr/bin", "LR": "1"} == found.env


def test_a_command_is_found_in_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A command such as torchrun stays as it is, and is looked up in the environment first."""
    monkeypatch.setenv("PATH", "/worker/bin")

    found = chosen(tmp_path, make_spec(argv=("torchrun", "t.py"), environment="torch", env={}), torch=sys.executable)

    assert ("torchrun", "t.py") == found.argv
    assert f"{Path(sys.executable).parent}:/worker/bin" == found.env["PATH"]


@pytest.mark.parametrize(
    ("programs", "why"),
    [
        ({}, r"this host has no environment torch \(setting environments\)"),
        ({"torch": "/nowhere/bin/python"}, "the environment torch is missing: there is no /nowhere/bin/python"),
        ({"torch": f"{sys.executable}/python"}, "the environment torch is missing"),
    ],
)
def test_a_host_without_the_environment_is_excluded(tmp_path: Path, programs: dict[str, str], why: str) -> None:
    """The job has not failed, and another host may have the environment."""
    with pytest.raises(NotStarted, match=why) as refused:
        chosen(tmp_path, make_spec(environment="torch"), **programs)

    assert (NO_EVIDENCE, False) == (refused.value.host_lacks, refused.value.host_failed)


def test_other_runs_stay_as_they_are(tmp_path: Path) -> None:
    """A job without an environment, and a run that another worker started, need no program."""
    spec = make_spec()

    assert spec is choose_python(run_of(tmp_path, spec), {}).spec
    assert None is choose_python(run_of(tmp_path / "adopted", None), {}).spec
