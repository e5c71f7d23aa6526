"""Tests of the step that resolves the name of a job's environment on its host."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from factories import make_spec

from gpuqueue.model.job_spec import JobSpec
from gpuqueue.model.run import RunDevice
from gpuqueue.queue.evidence import NO_EVIDENCE
from workers.measure.active_runs import LiveRun
from workers.run.directory import Held, RunDir
from workers.runner import choose_python
from workers.steps.conclusion import NotStarted


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
