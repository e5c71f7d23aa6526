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
from workers.shim.client import Shim, Shims
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


def waiting_of(ours: Shims) -> ProcessIdentity:
    """Return the shim that waits for the next run."""
    server = server_of(ours)
    children = Path(f"/proc/{server.pid}/task/{server.pid}/children")
    (pid,) = until(lambda: children.read_text().split(), what="a shim waits")
    until(lambda: select.select([ours._socket], [], [], 0)[0], what="the fork server has said so")
    identity = ProcessIdentity.of(int(pid))
    assert identity is not None
    return identity


def test_ended_shims_leave_no_zombie(forkserver: Shims, tmp_path: Path) -> None:
    """The fork server collects ended shims, because they are not the worker's children. Only one waits."""
    server = server_of(forkserver)
    for number in range(1, 4):
        directory, lock = a_run(tmp_path, number, "exit 0")
        ended(forkserver.start(directory.path, lock))
        os.close(lock)

    children = Path(f"/proc/{server.pid}/task/{server.pid}/children")
    until(lambda: 1 == len(children.read_text().split()), what="all are collected")


# ---- kill -9 at each step of the hand-over of a run ------------------------------------------------------------------


def test_a_waiting_shim_that_was_killed_is_replaced(forkserver: Shims, tmp_path: Path) -> None:
    """The run goes to the next shim, and the start does not fail."""
    waiting = waiting_of(forkserver)
    waiting.send(signal.SIGKILL)
    assert waiting.wait(10)
    directory, lock = a_run(tmp_path, 1, "exit 5")

    shim = forkserver.start(directory.path, lock)
    os.close(lock)

    assert 0 == ended(shim)
    assert "exit 5" == str(directory.exit().ending)  # type: ignore[union-attr]


def test_a_shim_killed_before_it_reads_its_run_starts_nothing(forkserver: Shims, tmp_path: Path) -> None:
    """The kernel frees the lock that was on its way to it, and no identity says that the run began."""
    waiting = waiting_of(forkserver)
    waiting.send(signal.SIGSTOP)
    directory, lock = a_run(tmp_path, 1, f"touch {tmp_path}/effect")
    shim = forkserver.start(directory.path, lock)
    os.close(lock)
    assert not is_free(directory)

    waiting.send(signal.SIGKILL)

    assert ended(shim) is None
    assert (True, None, False) == (is_free(directory), directory.shim(), (tmp_path / "effect").exists())


def test_a_shim_that_waits_outlives_the_fork_server_and_takes_its_run(forkserver: Shims, tmp_path: Path) -> None:
    """A fork server that is killed takes no waiting shim with it. The next run is another fork server's."""
    waiting, server = waiting_of(forkserver), server_of(forkserver)
    server.kill()
    server.wait()
    shims = []
    for number in (1, 2):
        directory, lock = a_run(tmp_path, number, f"exit {number}")
        shims.append(forkserver.start(directory.path, lock))
        os.close(lock)
        assert 0 == ended(shims[-1])
        assert f"exit {number}" == str(directory.exit().ending)  # type: ignore[union-attr]

    assert waiting.pid == shims[0].pid
    assert server.pid != server_of(forkserver).pid


@pytest.mark.parametrize("given", [False, True], ids=["no run", "a run"])
def test_after_the_worker_is_killed_a_waiting_shim_has_its_run_or_ends(tmp_path: Path, *, given: bool) -> None:
    """Without a run it ends, also if it was stopped. A run that was sent to it is still there, and starts once."""
    directory, lock = a_run(tmp_path, 1, f"echo run >> {tmp_path}/effects; exit 7")
    script = (
        "import sys, time; from pathlib import Path; from workers.shim.client import Shims; ours = Shims();"
        "ours.prepare(); print(ours._server.pid, flush=True); sys.stdin.readline();"
        f"{given} and ours.start(Path(sys.argv[1]), int(sys.argv[2])); print(flush=True); time.sleep(60)"
    )
    words = [sys.executable, "-c", script, str(directory.path), str(lock)]
    with subprocess.Popen(
        words, pass_fds=(lock,), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
    ) as worker:
        os.close(lock)
        assert worker.stdin is not None
        assert worker.stdout is not None
        server = int(worker.stdout.readline())
        children = Path(f"/proc/{server}/task/{server}/children")
        waiting = ProcessIdentity.of(int(until(lambda: children.read_text().split(), what="a shim waits")[0]))
        assert waiting is not None
        waiting.send(signal.SIGSTOP)
        worker.stdin.write("\n")
        worker.stdout.readline()
        worker.kill()
        worker.wait()

    assert given is not is_free(directory)
    waiting.send(signal.SIGCONT)

    assert waiting.wait(30)
    assert is_free(directory)
    end = directory.exit()
    assert ("exit 7" if given else None) == (end and str(end.ending))
    assert given is (tmp_path / "effects").exists()
    if given:
        assert ["run"] == (tmp_path / "effects").read_text().split()


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


def test_a_fork_server_that_does_not_answer_is_replaced(
    forkserver: Shims, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fork server that does not answer is ended. It never has a run's lock, so another one can take its place."""
    server, waiting = server_of(forkserver), waiting_of(forkserver)
    server.send_signal(signal.SIGSTOP)
    for number in (1, 2):
        directory, lock = a_run(tmp_path, number, f"exit {number}")
        shim = forkserver.start(directory.path, lock)
        os.close(lock)
        assert 0 == ended(shim)
        assert f"exit {number}" == str(directory.exit().ending)  # type: ignore[union-attr]
        if number == 1:
            with monkeypatch.context() as patch, pytest.raises(OSError, match="gave no answer"):
                patch.setattr(client, "ANSWER_S", 0.2)
                forkserver._waiting()

    assert server.poll() is not None
    assert waiting.wait(10)


def test_a_host_without_descriptors_says_so(forkserver: Shims, tmp_path: Path) -> None:
    """A fork server without file descriptors returns the error number and keeps no lock."""
    server = server_of(forkserver)
    directory, lock = a_run(tmp_path, 1, "exit 0")
    forkserver._waiting().end()
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
    plan = {"python": "true", "program": "/bin/true", "cwd": "/", "env": {}, "modules": ""}

    shim = forkserver.start_warm(json.dumps(plan).encode())

    assert NO_RUN == ended(shim)


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
