from __future__ import annotations

import errno
import json
import os
import resource
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from bounded import until

from gpuqueue.model.run import RunDevice
from gpuqueue.system.process import ProcessIdentity
from workers.run.directory import Held, RunDir, ShimSpec
from workers.shim import client
from workers.shim.client import Shim, Shims, Unanswered
from workers.shim.forkserver import NO_RUN
from workers.shim.start import LogFile, become
from workers.shim.warm import WarmInterpreter


@pytest.fixture
def forkserver() -> Iterator[Shims]:
    """Return the worker's end of a fork server."""
    ours = Shims()
    yield ours
    ours.close()


def server_of(ours: Shims) -> subprocess.Popen[bytes]:
    """Return the fork server's process."""
    ours.prepare()
    assert ours._server is not None
    return ours._server


def a_run(runs: Path, number: int, script: str) -> tuple[RunDir, int]:
    """Return the directory of a run that may start, and its lock."""
    directory = RunDir.create(runs, Held(job_id=number, token="1.abc", devices=(RunDevice(uuid="G", lease_bytes=1),)))
    directory.write_spec(
        ShimSpec(
            argv=("sh", "-c", script),
            cwd="/",
            env={"PATH": os.environ["PATH"]},
            time_limit_s=None,
            kill_grace_s=1.0,
            start_before=time.monotonic() + 60,
            umask=0o022,
        )
    )
    directory.renew(time.monotonic() + 60)
    directory.close()
    lock = directory.try_lock()
    assert lock is not None
    return directory, lock


def is_free(directory: RunDir) -> bool:
    """Return whether the lock of a run is free."""
    lock = directory.try_lock()
    if lock is not None:
        os.close(lock)
    return lock is not None


def ended(shim: Shim) -> int | None:
    """Wait for the end of a shim and return its exit code."""
    poll = select.poll()
    poll.register(shim.handle, select.POLLIN)
    assert poll.poll(30_000)
    code = shim.code()
    os.close(shim.handle)
    shim.close()
    return code


def test_many_shims_come_from_one_process_and_none_holds_what_is_anothers(forkserver: Shims, tmp_path: Path) -> None:
    """The lock of a run is free when its own shim has ended, even while other shims run."""
    gate = tmp_path / "gate"
    long, long_lock = a_run(tmp_path, 1, f"while [ ! -e {gate} ]; do sleep 0.02; done; exit 3")
    short, short_lock = a_run(tmp_path, 2, "exit 4")
    waiting = forkserver.start(long.path, long_lock)
    quick = forkserver.start(short.path, short_lock)
    os.close(long_lock)
    os.close(short_lock)

    assert 0 == ended(quick)
    assert (True, False) == (is_free(short), is_free(long))
    gate.touch()
    assert 0 == ended(waiting)
    assert is_free(long)
    assert ("exit 3", "exit 4") == tuple(str(each.exit().ending) for each in (long, short))  # type: ignore[union-attr]


def test_no_run_keeps_another_ones_descriptors(forkserver: Shims, tmp_path: Path) -> None:
    """A job has its three streams and no descriptor of gpuqueue: no lock, no socket, no pipe."""
    directory, lock = a_run(tmp_path, 1, "ls -l /proc/self/fd")

    shim = forkserver.start(directory.path, lock)
    os.close(lock)

    assert 0 == ended(shim)
    shown = directory.log.read_text().splitlines()
    assert 5 == len(shown), shown  # the header, the three streams, and the listing itself


def test_ended_shims_leave_no_zombie(forkserver: Shims, tmp_path: Path) -> None:
    """The fork server collects ended shims, because they are not the worker's children."""
    server = server_of(forkserver)
    for number in range(1, 4):
        directory, lock = a_run(tmp_path, number, "exit 0")
        ended(forkserver.start(directory.path, lock))
        os.close(lock)

    children = Path(f"/proc/{server.pid}/task/{server.pid}/children")
    until(lambda: not children.read_text(), what="all are collected")


def test_a_fork_server_that_was_killed_is_started_again(forkserver: Shims, tmp_path: Path) -> None:
    """A killed fork server is started again before the next run."""
    server = server_of(forkserver)
    server.kill()
    server.wait()
    directory, lock = a_run(tmp_path, 1, "exit 5")

    shim = forkserver.start(directory.path, lock)
    os.close(lock)

    assert 0 == ended(shim)
    assert "exit 5" == str(directory.exit().ending)  # type: ignore[union-attr]


def test_a_shim_outlives_who_forked_it(forkserver: Shims, tmp_path: Path) -> None:
    """A shim outlives the fork server and writes the exit code itself."""
    gate = tmp_path / "gate"
    directory, lock = a_run(tmp_path, 1, f"while [ ! -e {gate} ]; do sleep 0.02; done; exit 6")
    shim = forkserver.start(directory.path, lock)
    os.close(lock)

    server_of(forkserver).kill()
    gate.touch()

    assert 0 == ended(shim)
    assert "exit 6" == str(directory.exit().ending)  # type: ignore[union-attr]


def test_a_fork_server_that_does_not_answer_is_ended_and_holds_no_lock(
    forkserver: Shims, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fork server that does not answer is ended, and holds no lock.

    Only the lock of the run tells then whether there is a shim.
    """
    monkeypatch.setattr(client, "ANSWER_S", 0.2)
    server = server_of(forkserver)
    server.send_signal(signal.SIGSTOP)
    directory, lock = a_run(tmp_path, 1, "exit 0")

    with pytest.raises(Unanswered):
        forkserver.start(directory.path, lock)

    os.close(lock)
    assert server.poll() is not None
    assert is_free(directory)


def test_a_host_without_descriptors_says_so(forkserver: Shims, tmp_path: Path) -> None:
    """A fork server without file descriptors returns the error number and keeps no lock."""
    server = server_of(forkserver)
    directory, lock = a_run(tmp_path, 1, "exit 0")
    resource.prlimit(server.pid, resource.RLIMIT_NOFILE, (4, 4))  # the server can open no further descriptor

    with pytest.raises(OSError, match="Too many open files"):
        forkserver.start(directory.path, lock)

    os.close(lock)
    assert is_free(directory)


def test_the_fork_server_ends_with_its_worker_and_the_shims_do_not(tmp_path: Path) -> None:
    """After SIGKILL of the worker the fork server ends, because its socket closes; its shims go on."""
    gate = tmp_path / "gate"
    directory, lock = a_run(tmp_path, 1, f"while [ ! -e {gate} ]; do sleep 0.02; done; exit 7")
    script = (
        "import sys, time; from pathlib import Path; from workers.shim.client import Shims; ours = Shims();"
        "shim = ours.start(Path(sys.argv[1]), int(sys.argv[2])); print(ours._server.pid, flush=True); time.sleep(60)"
    )
    words = [sys.executable, "-c", script, str(directory.path), str(lock)]
    with subprocess.Popen(words, pass_fds=(lock,), stdout=subprocess.PIPE, text=True) as worker:
        os.close(lock)
        assert worker.stdout is not None
        server = ProcessIdentity.of(int(worker.stdout.readline()))
        assert server is not None
        worker.kill()

    assert server.wait(10)
    assert not is_free(directory)
    gate.touch()
    shim = until(directory.shim, what="the shim has said who it is")
    assert shim.wait(30)
    assert "exit 7" == str(directory.exit().ending)  # type: ignore[union-attr]


def test_a_shim_in_waiting_that_came_to_no_run_says_so(forkserver: Shims) -> None:
    """A waiting shim that never started a run exits with `NO_RUN`.

    Its interpreter may end at the moment in which the worker gives it a run. With exit code 0 the worker would take the
    job for begun and count the run as lost; with `NO_RUN` the claim is released, and is no attempt.
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.send(json.dumps({"python": "true", "program": "/bin/true", "cwd": "/", "env": {}, "modules": ""}).encode())

    shim = forkserver.start_waiting(theirs.fileno())
    theirs.close()

    assert NO_RUN == ended(shim)
    assert b"unfit: it ended by itself" == ours.recv(100)
    ours.close()


def test_a_host_without_descriptors_makes_a_job_start_without_its_interpreter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without file descriptors a job starts without its warm interpreter.

    The shim used to die after it had written its pid file, so that the run was lost although the job had not begun.
    """
    monkeypatch.chdir(tmp_path)
    to, its = socket.socketpair()
    with its:
        waiting = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])

    def no_pipe() -> tuple[int, int]:
        raise OSError(errno.ENFILE, os.strerror(errno.ENFILE))

    with monkeypatch.context() as patch:
        patch.setattr(os, "pipe", no_pipe)
        pid = become(WarmInterpreter(waiting.pid, to), {"start_before": time.monotonic() + 60}, LogFile(1))

    assert pid is None
    assert "cold: Too many open files in system" == (tmp_path / "start").read_text()
    assert not Path(f"/proc/{waiting.pid}").exists()
    waiting.wait()
