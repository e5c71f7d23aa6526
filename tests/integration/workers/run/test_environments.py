"""The Python of a job: environments by name on real hosts, and code that travels to a service with a worker."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from becoming import becoming
from bounded import until
from site_of_one import BIN, Site

from gpuqueue.model.job import JobState

#: Prints the first word of the PATH, and the arguments.
SCRIPT = "import os, sys\nprint(os.environ['PATH'].split(':')[0], *sys.argv[1:])\n"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Return a directory with a script."""
    root = tmp_path / "project"
    root.mkdir()
    (root / "train.py").write_text(SCRIPT)
    return root


@pytest.fixture
def python(tmp_path: Path) -> Path:
    """Return the Python of an environment, whose directory no other Python is in."""
    path = tmp_path / "torch" / "bin" / "python"
    path.parent.mkdir(parents=True)
    return becoming(path, sys.executable)


@pytest.fixture
def host(site: Site, python: Path, tmp_path: Path) -> Site:
    """Return a site with a worker that has an environment, and one whose program is missing."""
    site.environ["HOME"] = str(tmp_path / "home")
    site.environ["GPUQUEUE_ENVIRONMENTS"] = f"torch-2.6={python} gone={python.parent}/gone"
    site.start_recorder()
    site.start_worker()
    return site


def submitted(site: Site, project: Path, *words: str) -> int:
    """Submit the script of the project."""
    done = site.cli("submit", "train.py", "--mem", "1M", "--cwd", str(project), *words)
    return int(done.stdout)


def output(site: Site, job: int) -> str:
    """Return the output of a job that succeeds."""
    assert JobState.SUCCEEDED is site.until_recorded(job).job.state, site.cli("logs", str(job), check=False)
    return site.cli("logs", str(job)).stdout.strip()


def test_a_job_runs_in_its_environment(host: Site, project: Path, python: Path) -> None:
    """The host knows the path. `show`, JSON, `gpus`, a retry and the members of an array have the name."""
    first = submitted(host, project, "--environment", "torch-2.6", "--", "7")
    assert f"{python.parent} 7" == output(host, first)
    assert "python     environment torch-2.6" in host.cli("show", str(first)).stdout
    assert "torch-2.6" == json.loads(host.cli("show", "--json", str(first)).stdout)["job"]["spec"]["environment"]

    again = int(host.cli("retry", str(first), "--", "8").stdout.split()[-1])
    assert f"{python.parent} 8" == output(host, again)
    array = submitted(host, project, "--environment", "torch-2.6", "--array", "1-2", "--", "{index}")
    host.until_recorded(array)
    for each in (1, 2):
        assert f"{python.parent} {each}" == host.cli("logs", f"{array}_{each}").stdout.strip()

    assert f"environments of {host.settings.host}: gone, torch-2.6" in host.cli("gpus").stdout
    assert ["gone", "torch-2.6"] == json.loads(host.cli("gpus", "--json").stdout)[0]["environments"]


def test_a_name_that_no_host_has_is_refused(host: Site, project: Path) -> None:
    """The refusal has the names, and no job is made. Two options that contradict each other are refused too."""
    words = ("submit", "train.py", "--mem", "1M", "--cwd", str(project), "--environment")
    refused = host.cli(*words, "torch-2.7", check=False)
    both = host.cli(*words, "torch-2.6", "--python", sys.executable, check=False)

    assert (2, "") == (refused.returncode, refused.stdout)
    assert "no host has the environment torch-2.7. Did you mean torch-2.6? There are gone, torch-2.6" in refused.stderr
    assert "--python and --environment exclude each other" in both.stderr
    assert [] == host.client.jobs.list()


@pytest.mark.full
def test_an_environment_whose_program_is_missing_holds_the_job(host: Site, project: Path, python: Path) -> None:
    """`why` names the program. Once it is there, a release runs the job, also a command of the environment."""
    job = submitted(host, project, "--environment", "gone")
    because = str(host.until_state(job, JobState.HELD).because)
    reason = f"the environment gone is missing: there is no {python.parent}/gone"
    assert f"no host can start it: {host.settings.host}: {reason}" == because
    assert reason in host.cli("why", str(job)).stdout

    shutil.copy(python, python.parent / "gone")
    host.cli("release", str(job))
    assert str(python.parent) == output(host, job)
    command = int(host.cli("submit", "--mem", "1M", "--environment", "gone", "--", "gone", "-c", "print(3)").stdout)
    assert "3" == output(host, command)


@pytest.mark.full
def test_jobs_go_to_the_host_that_has_the_environment(host: Site, project: Path, tmp_path: Path, python: Path) -> None:
    """A host without it gives each job back, which costs the job nothing. Each host has a path of its own."""
    elsewhere = tmp_path / "jax" / "bin" / "python"
    shutil.copytree(python.parent, elsewhere.parent)
    changes = {
        "GPUQUEUE_DATABASE_URL": host.settings.database_url,
        "GPUQUEUE_ENVIRONMENTS": f"jax={elsewhere} torch-2.6={elsewhere}",
    }
    other = Site(tmp_path / "other", host.settings.redis_url, **changes)
    try:
        other.start_worker()
        jobs = [submitted(host, project, "--environment", "jax", "--", str(each)) for each in range(10)]
        anywhere = submitted(host, project, "--environment", "torch-2.6")

        assert [f"{elsewhere.parent} {each}" for each in range(10)] == [output(other, each) for each in jobs]
        assert {(other.settings.host, 1)} == {
            (run.job.host, run.job.attempt) for run in (other.until_recorded(each) for each in jobs)
        }
        assert JobState.SUCCEEDED is host.until_recorded(anywhere).job.state
    finally:
        other.stop()


@pytest.fixture
def far(host: Site, tmp_path: Path) -> Site:
    """Return a site whose commands use its service over TCP, as those of another machine do."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    path, token = tmp_path / "api.sock", tmp_path / "token"
    listen = ("--socket", str(path), "--listen", f"127.0.0.1:{port}")
    host.spawn_command([str(BIN / "gpuqueue"), "serve", *listen])
    host.environ["GPUQUEUE_URL"] = f"unix://{path}"
    until(lambda: host.cli("queue", check=False).returncode == 0, what="the service")
    token.write_text(host.cli("token", "create").stdout)
    token.chmod(0o600)
    host.environ |= {"GPUQUEUE_URL": f"http://127.0.0.1:{port}", "GPUQUEUE_TOKEN_FILE": str(token)}
    return host


@pytest.mark.full
def test_the_python_of_code_that_travels(far: Site, project: Path, python: Path) -> None:
    """One line says what runs. A Python of this machine is refused at submit, with what to do."""
    words = ("submit", "train.py", "--mem", "1M", "--cwd", str(project))
    default = far.cli(*words)
    named = far.cli(*words, "--environment", "torch-2.6", "--", "1")
    refused = far.cli(*words, "--python", ".venv/bin/python", check=False)
    unknown = far.cli(*words, "--environment", "x", check=False)

    assert "gpuqueue: python: python3 of the host" == default.stderr.splitlines()[-1]
    assert "gpuqueue: python: environment torch-2.6" == named.stderr.splitlines()[-1]
    assert f"{python.parent} 1" == output(far, int(named.stdout))
    assert f".venv/bin/python is a Python of this machine, in {project}, and does not travel" in refused.stderr
    assert "no host has the environment x. There are gone, torch-2.6" in unknown.stderr
    assert [2, 2] == [refused.returncode, unknown.returncode]
    assert "code: " not in refused.stderr + unknown.stderr  # nothing was sent


@pytest.mark.full
def test_a_host_without_uv_is_excluded(
    site: Site, project: Path, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """A project with a lock does not run with another Python than the one that its author chose."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python3").symlink_to(sys.executable)
    site.environ["PATH"] = str(tmp_path / "bin")
    far: Site = request.getfixturevalue("far")
    for name in ("uv.lock", "pyproject.toml"):
        (project / name).touch()

    job = submitted(far, project)

    assert "cannot start uv: No such file or directory" in str(far.until_state(job, JobState.HELD).because)


@pytest.mark.full
def test_uv_runs_a_project_with_a_lock(site: Site, project: Path, request: pytest.FixtureRequest) -> None:
    """The first process makes the environment of the project in the copy, without network, and keeps the arguments."""
    uv = shutil.which("uv", path=site.environ["PATH"])
    if uv is None:
        pytest.skip("uv is not installed: pip install uv")
    (project / "pyproject.toml").write_text(
        '[project]\nname = "p"\nversion = "1"\nrequires-python = ">=3.9"\ndependencies = []\n'
    )
    (project / "train.py").write_text("import sys\nprint(sys.prefix, *sys.argv[1:])\n")
    subprocess.run([uv, "lock", "--offline", "--quiet"], cwd=project, check=True)
    far: Site = request.getfixturevalue("far")
    far.environ["UV_OFFLINE"] = "1"

    done = far.cli("submit", "train.py", "--mem", "1M", "--cwd", str(project), "--", "7")
    job = int(done.stdout)

    assert "gpuqueue: python: uv run (uv.lock)" == done.stderr.splitlines()[-1]
    prefix, argument = output(far, job).splitlines()[-1].split()
    assert ("7", True) == (argument, prefix.endswith("/code/tree/.venv"))
    assert Path(prefix).is_relative_to(far.settings.runs_dir)
    again = int(far.cli("retry", str(job), "--", "8").stdout.split()[-1])
    assert "8" == output(far, again).split()[-1]
    assert "uv run --frozen python train.py 8" in far.cli("show", str(again)).stdout
