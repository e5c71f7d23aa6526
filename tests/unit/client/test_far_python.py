"""Tests of the Python of a script whose code travels to another machine. The snapshots are real."""

from __future__ import annotations

from pathlib import Path

import pytest
from factories import make_spec

from gpuqueue.client.remote.snapshots import python_line, with_host_python
from gpuqueue.errors import BadRequest
from gpuqueue.files.take import take_snapshot
from gpuqueue.model.job_request import JobRequest
from gpuqueue.model.job_spec import JobSpec


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a home directory of the submitter, who has no active environment."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for variable in ("VIRTUAL_ENV", "CONDA_PREFIX"):
        monkeypatch.delenv(variable, raising=False)
    return tmp_path / "home"


@pytest.fixture
def project(home: Path) -> Path:
    """Return a directory with a script."""
    root = home / "proj"
    root.mkdir(parents=True)
    (root / "train.py").touch()
    return root


def of_script(project: Path, script: str = "train.py", *, cwd: str = ".", **request: str) -> JobSpec:
    """Return the spec of a script, with its Python on a host."""
    python = request.get("python", "python3")
    argv, directory = (python, script, "--lr", "1"), project / cwd
    fields = {"argv": argv, "cwd": str(directory), "script": script, "interpreter": python}
    spec = make_spec(**fields, environment=request.get("environment"))
    return with_host_python(JobRequest(script, **request), spec, take_snapshot(directory, root=project))  # type: ignore[arg-type]


def locked(folder: Path) -> None:
    """Make a uv project in *folder*."""
    folder.mkdir(exist_ok=True, parents=True)
    for name in ("uv.lock", "pyproject.toml"):
        (folder / name).touch()


def test_a_script_has_the_python_of_the_host(project: Path) -> None:
    """Without a lock, an environment or a path, the host's own Python runs the script."""
    (project / "pyproject.toml").touch()

    found = of_script(project)

    assert ("python3", "train.py", "--lr", "1") == found.argv
    assert "python: python3 of the host" == python_line(found)


def test_a_project_with_a_lock_runs_with_uv(project: Path) -> None:
    """The lock is taken as it is. The arguments of the script stay."""
    locked(project)

    found = of_script(project)

    assert ("uv", "run", "--frozen", "python", "train.py", "--lr", "1") == found.argv
    assert ("uv run", "python: uv run (uv.lock)") == (found.interpreter, python_line(found))


def test_what_the_user_names_comes_before_the_lock(project: Path) -> None:
    """A lock does not change a job whose submitter has said what runs it."""
    locked(project)

    by_path = of_script(project, python="/opt/t/bin/python")
    by_name = of_script(project, environment="torch-2.6")

    assert ("/opt/t/bin/python", "train.py", "--lr", "1") == by_path.argv
    assert "python: /opt/t/bin/python of the host" == python_line(by_path)
    assert ("python3", "train.py", "--lr", "1") == by_name.argv
    assert "python: environment torch-2.6" == python_line(by_name)


@pytest.mark.parametrize(
    ("cwd", "script", "locks", "projects", "option"),
    [
        (".", "src/t.py", ["."], [], None),
        ("src", "t.py", ["."], [], None),
        ("src", "../lib/t.py", ["."], [], None),
        (".", "src/t.py", ["src"], [], "--project=src"),
        ("lib", "../src/t.py", ["src"], [], "--project=../src"),
        (".", "src/t.py", ["lib"], [], ""),
        (".", "src/deep/t.py", ["src"], ["src/deep"], "--project=src/deep"),
        (".", "src/t.py", ["."], ["src"], None),
        ("src", "t.py", ["."], ["src"], None),
        ("lib", "../src/t.py", ["src", "lib"], [], None),
    ],
    ids=str,
)
def test_the_project_of_the_script_counts(
    project: Path, cwd: str, script: str, locks: list[str], projects: list[str], option: str | None
) -> None:
    """It is the one that uv finds from the working directory, else that of the script, which an option names."""
    for each in ("src/deep", "lib"):
        (project / each).mkdir(parents=True)
    (project / cwd / script).touch()
    for each in locks:
        locked(project / each)
    for each in projects:
        (project / each / "pyproject.toml").touch()

    found = of_script(project, script, cwd=cwd)

    words = ("python3",) if option == "" else ("uv", "run", "--frozen", *([option] if option else []), "python")
    assert (*words, script, "--lr", "1") == found.argv


def test_a_lock_that_does_not_travel_does_not_count(project: Path) -> None:
    """A project without its pyproject.toml, or a lock that is left out, is nothing that uv could run."""
    locked(project)
    (project / ".gpuqueueignore").write_text("uv.lock\n")
    assert "python3" == of_script(project).argv[0]
    (project / ".gpuqueueignore").write_text("pyproject.toml\n")
    assert "python3" == of_script(project).argv[0]


def test_a_python_of_this_machine_is_refused(
    home: Path, project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The refusal says where the Python lies, and what to do. The host would only find that it is missing."""
    monkeypatch.setenv("VIRTUAL_ENV", str(tmp_path / "venv"))
    monkeypatch.setenv("CONDA_PREFIX", str(tmp_path / "conda"))
    mine = home / "envs" / "bin" / "python"
    mine.parent.mkdir(parents=True)
    mine.symlink_to("/usr/bin/env")
    (tmp_path / "link").symlink_to(home / "envs")

    for python, place in (
        (tmp_path / "venv/bin/python", tmp_path / "venv"),
        (tmp_path / "conda/bin/python", tmp_path / "conda"),
        (project / ".venv/bin/python", project),
        (".venv/bin/python", project),
        (mine, home),
        (tmp_path / "link/bin/python", home),
    ):
        said = rf"{python} is a Python of this machine, in {place}, and does not travel: .* --environment, .* --python"
        with pytest.raises(BadRequest, match=said):
            of_script(project, python=str(python))
    with pytest.raises(BadRequest, match=r"\.\./x/python does not travel with the code: name an environment"):
        of_script(project, python="../x/python")


def test_a_python_that_hosts_may_have_is_accepted(home: Path, project: Path) -> None:
    """What the hosts have is not known: a path that is nothing of this machine's may be there, as may a program."""
    (project / "tool").touch()

    for python in ("/opt/t/bin/python", f"{home}/envs/there/bin/python", "python3.11", "./tool", "/usr/bin/python3"):
        assert python == of_script(project, python=python).argv[0]


def test_a_command_names_its_own_python(project: Path) -> None:
    """Neither a command nor an executable file gets another one, and there is nothing to say about it."""
    locked(project)
    spec = make_spec(argv=("torchrun", "train.py"), cwd=str(project))
    request = JobRequest(["torchrun", "train.py"])

    assert spec is with_host_python(request, spec, take_snapshot(project, root=project))
    assert None is python_line(spec)
