"""Starts shims: a process beside each worker that has loaded the shim already, and forks one for each run.

Started as ``python -I -S forkserver.py SOCKET``; standard library only, one thread, no file of its own. An
interpreter of its own for each shim took 40 ms and half of that in processor time; a fork takes one.

A request is one message: the run directory, with the run's lock and the end of a pipe; or none, with a socket: then it
is a shim in waiting (:mod:`workers.shim.warm`). The answer is the shim's pid
with its pidfd, or the number of the error that kept it from being made. The shim is in a session of its own from then
on, holds the lock, and writes its exit code into the pipe when it leaves. It outlives this process, which ends as soon
as its worker has ended: the socket says so, also after a kill -9.
"""

from __future__ import annotations

import contextlib
import errno
import gc
import os
import signal
import socket
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any
if __name__ == "__main__" and not TYPE_CHECKING:  # isolated: only the standard library is on the path, and stays first
    sys.path.append(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))

# All of it is loaded before the fork, so that every shim is of this version, whatever is installed later.
from workers.shim import attached_terminal, pseudo_terminal, supervisor, warm  # noqa: E402, F401

#: Longest path of a run directory, in bytes: PATH_MAX.
MOST_BYTES = 4096
#: The lock (or the socket) and the pipe.
DESCRIPTORS = 2
#: In place of a run directory: for a run that is still to come.
IN_WAITING = b"\0"
#: Exit code of a shim in waiting that became that of no run.
NO_RUN = os.EX_TEMPFAIL
#: How the process is called in lists of processes.
NAME = "gpuqueue-shim"


def serve(worker: socket.socket) -> None:
    """Fork a shim for each request, until the worker is gone."""
    signal.signal(signal.SIGCHLD, collect)
    while True:
        message, fds, _, _ = socket.recv_fds(worker, MOST_BYTES, DESCRIPTORS, socket.MSG_CMSG_CLOEXEC)
        if not message:
            return
        pid, pidfd = forked(worker, message, fds)
        for fd in fds:  # first: who hears that there is no shim tries the lock
            os.close(fd)
        with contextlib.suppress(OSError):  # a shim whose pidfd cannot be sent has its lock: it is found by that
            socket.send_fds(worker, [str(pid).encode()], [pidfd] if pid > 0 else [])
        if pid > 0:
            os.close(pidfd)


def forked(worker: socket.socket, message: bytes, fds: list[int]) -> tuple[int, int]:
    """Fork what *message* asks for; return its pid and pidfd, or minus the number of the error and nothing."""
    if len(fds) < DESCRIPTORS:  # there was no room for them
        return -errno.EMFILE, -1
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})  # collected, its number could be another's
    try:
        pid = os.fork()
        if pid == 0:
            worker.close()
            become_shim(message, *fds)
        return pid, os.pidfd_open(pid)
    except OSError as error:
        return -(error.errno or errno.EAGAIN), -1
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})


def become_shim(message: bytes, given: int, told: int) -> None:  # pragma: no cover - in a fork
    """Be the shim that *message* asks for, and never return. It keeps the run's lock for as long as it lives."""
    code = 1
    try:
        os.setsid()
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.set_inheritable(given, False)
        os.set_inheritable(told, False)
        if message == IN_WAITING:
            wait_for_a_run(given)
        else:
            supervisor.main(os.fsdecode(message))
        code = 0
    except SystemExit as leaving:
        code = leaving.code if isinstance(leaving.code, int) else 1
    finally:
        try:
            os.write(told, bytes([code]))
        finally:  # nobody listens any more: the worker is gone
            os._exit(code)


def wait_for_a_run(fd: int) -> None:  # pragma: no cover - in a fork
    """Be a shim in waiting, and then that of the run which comes over the socket *fd*."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})
    with socket.socket(fileno=fd) as worker:
        found = warm.hold(worker)
    if found is None:
        sys.exit(NO_RUN)  # the worker may have sent one that we did not read: with 0 it would count as begun, and lost
    run_dir, _lock, spare = found
    supervisor.main(run_dir, spare)


def collect(_number: int, _frame: Any) -> None:
    """Collect the shims that have ended; whoever waits for them has their pidfd."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0] != 0:
            pass


def main(fd: int) -> None:
    """Serve the worker at the other end of the socket *fd*."""
    with contextlib.suppress(OSError), open("/proc/self/comm", "w", encoding="ascii") as name:
        name.write(NAME)
    os.set_inheritable(fd, False)
    gc.collect()
    gc.freeze()  # what is loaded stays shared with all shims
    with contextlib.suppress(ConnectionError):
        serve(socket.socket(fileno=fd))


if __name__ == "__main__":
    main(int(sys.argv[1]))
