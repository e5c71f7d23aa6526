"""The fork server: a process beside each worker that has the shim's code loaded and forks one shim for each run.

Started as ``python -I -S forkserver.py SOCKET``. Standard library only, one thread, no files. A new interpreter for
each shim took 40 ms, half of that CPU time; a fork takes 1 ms.

Every shim waits first (:mod:`workers.shim.warm`): a request is one message with one end of a socket as its descriptor,
and the answer is the shim's pid with its pidfd, or a negative errno. The worker keeps the other end of the socket, and
gives the shim a run through it: the run directory, and the run's lock. The shim has its own session and sends its exit
code through the socket when it ends. One that has a run outlives worker and fork server. One that has none ends with
its worker, as the fork server does, even after a kill -9, because their sockets are then closed.
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

#: The text of a request.
SHIM = b"shim"
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
        message, fds, _, _ = socket.recv_fds(worker, len(SHIM), 1)
        if not message:
            return
        pid, pidfd = forked(worker, fds)
        for fd in fds:  # before the answer: the socket of a shim that could not be forked is then closed
            os.close(fd)
        with contextlib.suppress(OSError):  # without the answer, the worker closes the shim's socket, and it ends
            socket.send_fds(worker, [str(pid).encode()], [pidfd] if pid > 0 else [])
        if pid > 0:
            os.close(pidfd)


def forked(worker: socket.socket, fds: list[int]) -> tuple[int, int]:
    """Fork a shim with the socket in *fds*; return its pid and pidfd, or a negative errno and -1."""
    if not fds:  # this process had no free descriptor to receive it
        return -errno.EMFILE, -1
    # If collect() reaped the shim before pidfd_open, its pid could already belong to another process.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
    try:
        pid = os.fork()
        if pid == 0:
            worker.close()
            become_shim(fds[0])
        return pid, os.pidfd_open(pid)
    except OSError as error:
        return -(error.errno or errno.EAGAIN), -1
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})


def become_shim(fd: int) -> None:  # pragma: no cover - in a fork
    """Wait as a shim for a run over the socket *fd*, own the run, and never return.

    The shim holds the run's lock until it ends.
    """
    code = 1
    try:
        os.setsid()
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})
        os.set_inheritable(fd, False)
        worker = socket.socket(fileno=fd)
        ordered = warm.hold(worker)
        # Not 0: the worker may have sent a run that was never read, and 0 would count it as started and lost.
        code = NO_RUN
        if ordered is not None:
            code = 1
            supervisor.main(*ordered)
            code = 0
    except SystemExit as leaving:
        code = leaving.code if isinstance(leaving.code, int) else 1
    finally:
        try:
            os.write(fd, bytes([code]))
        finally:  # the write fails if the worker is gone
            os._exit(code)


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
