"""The list of a machine's devices is read from a process that may fail, take too long, or never end."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from factories import make_device

from gpuqueue.codec.wire import to_plain
from gpuqueue.embedded import device_list
from gpuqueue.embedded.device_list import DeviceList
from gpuqueue.errors import BadRequest, GpuQueueError
from gpuqueue.system import process as process_module

LIST = json.dumps(to_plain((make_device(),)))


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the path of the program that is run. Each test writes the program."""
    path = tmp_path / "gpuqueue-worker"
    monkeypatch.setattr(device_list, "installed", lambda _: str(path))
    return path


def write(path: Path, *lines: str) -> None:
    path.write_text("\n".join(("#!/bin/sh", *lines, "")))
    path.chmod(0o755)


def test_the_list_of_a_program_that_does_not_end_is_used(program: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A driver call that never returns keeps the program from ending, also after SIGKILL."""
    write(program, f"echo '{LIST}'", "exec sleep 100")
    killed: list[subprocess.Popen[bytes]] = []
    kill = subprocess.Popen.kill
    monkeypatch.setattr(subprocess.Popen, "kill", lambda each: killed.append(each))  # noqa: PLW0108 - a method of a list is bound
    monkeypatch.setattr(process_module, "KILLED_S", 0.1)

    devices = DeviceList("gpu").wait()

    process = killed[0]
    assert process.poll() is None
    kill(process)
    process.wait()
    assert (make_device(),) == devices


@pytest.mark.parametrize(
    ("code", "error"), [(BadRequest.exit_code, BadRequest), (1, GpuQueueError)], ids=["bad request", "other"]
)
def test_a_program_that_fails_gives_its_last_line(program: Path, code: int, error: type[GpuQueueError]) -> None:
    """The error has the last line of the program, without its name."""
    write(program, "echo a warning >&2", "echo 'gpuqueue-worker: no such devices' >&2", f"exit {code}")

    with pytest.raises(error, match=r"^no such devices$"):
        DeviceList("odd").wait()


def test_a_program_that_lists_nothing_is_given_up(program: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After the time limit the message says that the driver hangs."""
    write(program, "exec sleep 100")
    monkeypatch.setattr(device_list, "LIST_S", 0.2)

    with pytest.raises(GpuQueueError, match=r"within 0\.2 s: the driver hangs"):
        DeviceList("gpu").wait()
