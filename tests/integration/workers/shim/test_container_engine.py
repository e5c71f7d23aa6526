"""A shim and a program in place of Docker: what the engine is asked, and what happens if it answers otherwise."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from bounded import until
from one_shim import RUN_TOKEN, Shim

from gpuqueue.model.run import EndingKind
from workers.run.environment import TOKEN

#: Knows one image, writes down each of its command lines, and runs the command behind the image as ``docker run`` does.
DOCKER = """#!/bin/sh
echo "$@" >> "$0.asked"
case $1 in
image) [ "$5" = team/torch ] || { echo "Error: No such image: $5" >&2; exit 1; }
       echo PYTHONPATH=/opt/lib;;
rm) touch "$0.removed";;
run) while [ "$1" != team/torch ]; do shift; done; shift
     trap 'kill -TERM $child; wait $child; exit 143' TERM
     "$@" & child=$!; wait $child;;
esac
"""


@pytest.fixture
def docker(tmp_path: Path) -> str:
    """Return the program in place of Docker."""
    path = tmp_path / "docker"
    path.write_text(DOCKER)
    path.chmod(0o755)
    return str(path)


@pytest.fixture
def in_docker(shims: Callable[..., Shim], docker: str, tmp_path: Path) -> Callable[..., Shim]:
    """Return a function that runs words of a shell in a container."""

    def start(words: str, image: str = "team/torch", *binds: str, **changes: object) -> Shim:
        fields = {"engine": "docker", "program": docker, "image": image, "binds": binds, "devices": ["GPU-a"]}
        env = {"PATH": "/usr/bin:/bin", TOKEN: RUN_TOKEN, "GPUQUEUE_JOB_ID": "7", "HF_TOKEN": "a secret"}
        cwd = str(tmp_path)
        return shims("sh", "-c", words, container={**fields, "outside": ["PATH"]}, env=env, cwd=cwd, **changes)

    return start


def asked(docker: str) -> list[str]:
    """Return the command lines that the engine got."""
    return Path(f"{docker}.asked").read_text().splitlines()


def test_the_job_runs_by_the_engine(in_docker: Callable[..., Shim], docker: str, tmp_path: Path) -> None:
    """The image is asked for first, and the exit code is that of the job."""
    end = in_docker("pwd; exit 7").ended()

    assert 7 == end.ending.exit_code
    first, run = asked(docker)
    assert first.startswith("image inspect")
    assert first.endswith("team/torch")
    assert f"--name=gpuqueue-7-{RUN_TOKEN}" in run
    assert run.endswith("team/torch sh -c pwd; exit 7")
    assert '--gpus="device=GPU-a"' in run
    assert f"target={tmp_path}" in run
    assert f"--user={os.getuid()}:{os.getgid()}" in run
    assert "--env=HF_TOKEN" in run
    assert "a secret" not in run
    assert "--env=PATH" not in run


def test_a_missing_image_starts_nothing(in_docker: Callable[..., Shim], docker: str) -> None:
    """The host is excluded for the job. Nothing is pulled."""
    end = in_docker("true", "team/missing").ended()

    assert (EndingKind.REFUSED, True) == (end.ending.kind, end.host_lacks)
    assert "the image team/missing is not on this host: docker pull team/missing" in end.ending.detail
    assert 1 == len(asked(docker))


def test_a_missing_bind_starts_nothing(in_docker: Callable[..., Shim], tmp_path: Path) -> None:
    """Docker would make it, as root."""
    end = in_docker("true", "team/torch", f"{tmp_path}/missing:/mnt").ended()

    assert (EndingKind.REFUSED, True) == (end.ending.kind, end.host_lacks)
    assert f"cannot bind {tmp_path}/missing: No such file or directory" in end.ending.detail


def test_an_engine_that_is_gone_starts_nothing(in_docker: Callable[..., Shim], docker: str) -> None:
    """It was removed after the worker had found it."""
    Path(docker).unlink()

    end = in_docker("true").ended()

    assert (EndingKind.REFUSED, True) == (end.ending.kind, end.host_lacks)
    assert "cannot start its container" in end.ending.detail


def test_the_warning_goes_to_the_engine_alone(in_docker: Callable[..., Shim], tmp_path: Path) -> None:
    """It passes SIGTERM on, so the job gets it once."""
    words = "trap 'echo warned; exit 3' TERM; echo up; while :; do sleep 0.1; done"
    run = in_docker(words, kill_grace_s=20.0)
    until(lambda: "up" in run.log(), what="the job")

    run.directory.ask_end(EndingKind.CANCELLED)

    assert EndingKind.CANCELLED is run.ended().ending.kind
    assert ["up", "warned"] == run.log().split()
    assert not (tmp_path / "docker.removed").exists()


def test_a_killed_engine_is_asked_to_remove_its_container(in_docker: Callable[..., Shim], tmp_path: Path) -> None:
    """Its daemon may have the processes of the job."""
    run = in_docker("trap '' TERM; echo up; while :; do sleep 0.1; done", kill_grace_s=0.2)
    until(lambda: "up" in run.log(), what="the job")
    pids = until(lambda: [each.pid for each in run.directory.processes()[1:] if each is not None], what="its process")

    os.kill(pids[0], 9)

    assert 9 == run.ended().ending.signal
    assert (tmp_path / "docker.removed").exists()
