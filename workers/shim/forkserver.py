"""The fork server: a process beside each worker that has the shim's code loaded and forks one shim for each run.

Started as ``python -I -S forkserver.py SOCKET``. Standard library only, one thread, no files. A new interpreter for
each shim took 40 ms, half of that CPU time; a fork takes 1 ms.

A request is one message with two descriptors. For a run it holds the path of the run directory, the run's lock and the
write end of a pipe. For a waiting shim (:mod:`workers.shim.warm`) it holds a NUL byte, a socket and the pipe. The
answer is the shim's pid with its pidfd, or a negative errno. The shim has its own session, holds the lock, and writes
its exit code into the pipe when it ends. It outlives the fork server. The fork server ends as soon as its worker ends,
even after a kill -9, because the socket is then closed.
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

# Everything is loaded before the fork, so every shim runs this version even if another one is installed later.
from workers.shim import (  # noqa: E402
    attached_terminal,  # noqa: F401
    host_memory,
    master_port,
    pseudo_terminal,  # noqa: F401
    supervisor,
    warm,
)
from workers.shim.preempt_request import SHIELDED  # noqa: E402 - as above

#: Longest path of a run directory, in bytes: PATH_MAX.
MOST_BYTES = 4096
#: Descriptors in a request: the lock (or the socket) and the pipe.
DESCRIPTORS = 2
#: Replaces the run directory in a request for a waiting shim.
IN_WAITING = b"\0"
#: Exit code of a waiting shim that never received a run.
NO_RUN = os.EX_TEMPFAIL
#: The process name, as ps and top show it.
NAME = "gpuqueue-shim"


def serve(worker: socket.socket) -> None:
    """Fork a shim for each request, and return when the worker is gone."""
    signal.signal(signal.SIGCHLD, collect)
    if SHIELDED in os.environ:
        signal.signal(signal.SIGTERM, lambda *_: None)  # it ends with its worker
    while True:
        message, fds, _, _ = socket.recv_fds(worker, MOST_BYTES, DESCRIPTORS, socket.MSG_CMSG_CLOEXEC)
        if not message:
            return
        pid, pidfd = forked(worker, message, fds)
        for fd in fds:  # before the answer: a worker that gets an error tries the lock next
            os.close(fd)
        with contextlib.suppress(OSError):  # without the answer, the run's lock shows that the shim exists
            socket.send_fds(worker, [str(pid).encode()], [pidfd] if pid > 0 else [])
        if pid > 0:
            os.close(pidfd)


def forked(worker: socket.socket, message: bytes, fds: list[int]) -> tuple[int, int]:
    """Fork the shim that *message* requests; return its pid and pidfd, or a negative errno and -1."""
    if len(fds) < DESCRIPTORS:  # this process had no free descriptors to receive them
        return -errno.EMFILE, -1
    # If collect() reaped the shim before pidfd_open, its pid could already belong to another process.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
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


def become_shim(message: bytes, given: int, code_pipe: int) -> None:  # pragma: no cover - in a fork
    """Run as the shim that *message* requests, and never return. The shim holds the run's lock until it ends."""
    code = 1
    try:
        os.setsid()
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.set_inheritable(given, False)
        os.set_inheritable(code_pipe, False)
        if message == IN_WAITING:
            wait_for_a_run(given)
        else:
            supervisor.main(os.fsdecode(message))
        code = 0
    except SystemExit as leaving:
        code = leaving.code if isinstance(leaving.code, int) else 1
    finally:
        try:
            os.write(code_pipe, bytes([code]))
        finally:  # the write fails if the worker is gone
            os._exit(code)


def wait_for_a_run(fd: int) -> None:  # pragma: no cover - in a fork
    """Run as a waiting shim, and then as the shim of the run that arrives over the socket *fd*."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})
    with socket.socket(fileno=fd) as worker:
        found = warm.hold(worker)
    if found is None:
        # Not 0: the worker may have sent a run that was never read, and 0 would count it as started and lost.
        sys.exit(NO_RUN)
    run_dir, _lock, warm_interpreter = found
    supervisor.main(run_dir, warm_interpreter)


def collect(_number: int, _frame: Any) -> None:
    """Reap the shims that have ended. Workers wait for a shim by its pidfd."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0] != 0:
            pass


def main(fd: int) -> None:
    """Serve the worker at the other end of the socket *fd*."""
    with contextlib.suppress(OSError), open("/proc/self/comm", "w", encoding="ascii") as name:
        name.write(NAME)
    os.set_inheritable(fd, False)
    master_port.candidates()
    host_memory.opened()
    gc.collect()
    gc.freeze()  # keeps the loaded objects in memory pages that all shims share
    with contextlib.suppress(ConnectionError):
        serve(socket.socket(fileno=fd))


if __name__ == "__main__":
    main(int(sys.argv[1]))
