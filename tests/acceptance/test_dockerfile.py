"""Tests of the Dockerfile, as far as possible without Docker."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
import zipfile
from fnmatch import fnmatch
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def instructions() -> list[tuple[str, str]]:
    """Return each instruction of the Dockerfile with its arguments, with continued lines joined."""
    lines = [line for line in (ROOT / "Dockerfile").read_text().splitlines() if not line.startswith("#")]
    joined = re.sub(r"\\\n\s*", "", "\n".join(lines))
    return [(line.split()[0], line.split(maxsplit=1)[1]) for line in joined.splitlines() if line.strip()]


def of(kind: str) -> list[str]:
    """Return the arguments of each instruction of one kind."""
    return [rest for name, rest in instructions() if name == kind]


def copied() -> list[str]:
    """Return the paths that are copied from the repository into the build."""
    return [source for rest in of("COPY") if "--from" not in rest for source in shlex.split(rest)[:-1]]


def test_every_instruction_is_known() -> None:
    """The file has only instructions that these tests understand, and the two expected stages."""
    assert {name for name, _ in instructions()} == {"FROM", "WORKDIR", "COPY", "RUN", "ARG", "USER", "ENV", "CMD"}
    assert of("FROM") == ["python:3.12-slim AS build", "python:3.12-slim"]


def test_copied_files_exist_and_reach_the_build() -> None:
    """Each source of a COPY is in the repository, and .dockerignore includes it and excludes the rest."""
    rules = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if line and not line.startswith("#")]

    assert [source for source in copied() if not (ROOT / source).exists()] == []
    assert rules[0] == "*"
    assert {rule.removeprefix("!") for rule in rules if rule.startswith("!")} == set(copied())
    assert not any(fnmatch(source, rule) for source in copied() for rule in rules[1:] if not rule.startswith("!"))


@pytest.mark.parametrize("step", of("RUN"))
def test_run_step_is_shell(step: str) -> None:
    """A shell can parse each RUN step, and a mount names a stage that exists."""
    mounts = re.findall(r"--mount=\S+", step)
    script = re.sub(r"--mount=\S+\s*", "", step)
    done = subprocess.run(["bash", "-n"], input=script, capture_output=True, text=True, check=False)  # noqa: S607

    assert (done.returncode, done.stderr) == (0, "")
    assert all("from=build," in mount for mount in mounts)


def test_jobs_do_not_run_as_root() -> None:
    """The last stage ends as an ordinary user who owns the state directory, and has no torch by default."""
    useradd = next(step for step in of("RUN") if "useradd" in step)

    assert of("USER") == ["gpuqueue"]
    assert "-o gpuqueue -g gpuqueue -m 0700 /var/lib/gpuqueue" in useradd
    assert 'EXTRA_PIP=""' in of("ARG")
    assert not any("torch" in rest for _, rest in instructions())


@pytest.mark.full
def test_wheel_can_be_built_from_what_is_copied(tmp_path: Path) -> None:
    """The build stage's own command builds one wheel from the copied files, and the last stage uses it.

    The wheel has the page: with its third-party parts where npm can bring them, as the build stage does.
    """
    source, wheels = tmp_path / "src", tmp_path / "wheels"
    source.mkdir()
    for name in copied():
        path = ROOT / name
        if path.is_dir():
            shutil.copytree(path, source / name, ignore=shutil.ignore_patterns("__pycache__", "vendor"))
        else:
            shutil.copy(path, source / name)
    pip, *arguments = shlex.split(next(step for step in of("RUN") if step.startswith("pip wheel")))
    command = [sys.executable, "-m", pip, *(str(wheels) if word == "/wheels" else word for word in arguments)]
    done = subprocess.run(command, cwd=source, capture_output=True, text=True, check=False, timeout=300)

    assert done.returncode == 0, done.stderr
    (wheel,) = wheels.glob("gpuqueue_server-*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert "gpuqueue/web/index.html" in names
    assert (shutil.which("npm") is not None) == ("gpuqueue/web/vendor/preact.js" in names)
    assert any("npm" in step for step in of("RUN"))
    assert any("/wheels/gpuqueue_server-*.whl" in step for step in of("RUN"))
