"""``up`` shows what is wrong before it writes anything, and what a worker wrote last that does not come up."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path

import pytest
from factories import make_device, make_offer, serve
from own_store import OwnStore

from gpuqueue.cli.commands import up
from gpuqueue.codec.wire import to_plain
from gpuqueue.embedded import device_list, machine
from gpuqueue.embedded.device_list import DeviceList
from gpuqueue.embedded.machine import Machine
from gpuqueue.errors import BadRequest, GpuQueueError, Refused
from gpuqueue.queue.jobqueue import JobQueue
from gpuqueue.system import process as process_module
from gpuqueue.system.process import DetachedProcess


@pytest.fixture
def logs(own_store: OwnStore) -> Path:
    """Return the directory of the workers' logs. The store is open."""
    queue = JobQueue(own_store.url)
    queue.recovery.open(0)
    queue.close()
    own_store.settings.logs_dir.mkdir(parents=True, exist_ok=True)
    return own_store.settings.logs_dir


def test_the_last_line_of_a_worker_that_does_not_come_up_is_shown(
    own_store: OwnStore, logs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Regression: under a wrong rule of the store, ``up`` said only that the workers did not come up within 60 s."""
    monkeypatch.setattr(machine, "READY_S", 0.2)
    (logs / "gpu-0.log").write_text("starting\nNOPERM this user has no permissions to run the 'subscribe' command\n")
    host = DetachedProcess(["/bin/sleep", "60"], log=logs / "host.log")
    try:
        with pytest.raises(GpuQueueError, match=r"did not come up within 0 s: NOPERM this user .*gpu-0\.log"):
            Machine(own_store.settings).wait_ready(host, [make_device("gpu-0")], since_ms=0)
    finally:
        os.kill(host.pid, signal.SIGKILL)
        host.wait()


def test_the_last_line_of_a_host_process_that_ended_is_shown(own_store: OwnStore, logs: Path) -> None:
    """The workers cannot come up any more, so ``up`` does not wait."""
    host = DetachedProcess(["/bin/sh", "-c", "echo no such device: gpu-0 >&2; exit 1"], log=logs / "host.log")

    with pytest.raises(GpuQueueError, match="the workers did not start: no such device: gpu-0"):
        Machine(own_store.settings).wait_ready(host, [make_device("gpu-0")], since_ms=0)


@pytest.mark.parametrize(
    ("kind", "is_warned"),
    [*((each, True) for each in ("nfs4", "cifs", "fuse.sshfs", "lustre", "gpfs", "beegfs")), ("ext4", False)],
)
def test_a_network_disk_is_warned_of_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, *, is_warned: bool
) -> None:
    """The person can still stop. Afterwards a store would be there, and jobs in it."""
    state = tmp_path / "home" / "state"
    monkeypatch.setenv("GPUQUEUE_STATE_DIR", str(state))
    monkeypatch.setattr(up, "filesystem_of", lambda _path: kind)
    monkeypatch.setattr(up, "print_message", lambda _program, words: said.append(words))
    said: list[str] = []

    def goes_on(_machine: Machine) -> None:
        assert not state.parent.exists()
        raise Refused("enough")

    monkeypatch.setattr(Machine, "alone", goes_on)
    with pytest.raises(Refused, match="enough"):
        up.up.main([], standalone_mode=False)

    assert is_warned is any(f"{state}: it is on a network disk ({kind}): " in words for words in said)


def test_a_device_without_a_worker_does_not_keep_the_others_back(
    own_store: OwnStore, logs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The devices that are ready are returned, and those whose workers did not come up in time."""
    monkeypatch.setattr(machine, "READY_S", 0.2)
    host = DetachedProcess(["/bin/sleep", "60"], log=logs / "host.log")
    queue = JobQueue(own_store.url)
    serve(queue, make_offer("gpu-0", host=own_store.settings.host))
    queue.close()
    late = make_device("gpu-1")
    try:
        ready, others = Machine(own_store.settings).wait_ready(host, [late, make_device("gpu-0")], since_ms=0)
    finally:
        os.kill(host.pid, signal.SIGKILL)
        host.wait()

    assert (["gpu-0"], (late,)) == ([each.device.uuid for each in ready], others)


# ---- The list of a machine's devices is read from a process that may fail, take too long, or never end ---------------

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
