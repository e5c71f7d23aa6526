"""A waiting shim, perhaps with a warm interpreter as its child. Standard library only.

The worker sends a run directory with the run's lock over a socket, and the process becomes that run's shim. If the
worker ends before that, the process ends too.

Before that, the worker may send which warm interpreter it wants, and receives ``ready`` or why it is unusable. The
interpreter is a child of the waiting shim, ends with it, and becomes the job's first process. If it cannot, the shim
kills it before any code of the job has run, and starts the job cold.

The shim and the warm interpreter also share a socket; see :mod:`workers.inside.warm_start`.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import socket

from workers.shim.tree import begin_child, end_child, raise_open_files

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

#: A placeholder environment variable. The warm interpreter later overwrites its memory, and that of a placeholder
#: argument of the same size, with the job's values; see :mod:`workers.inside.proc_files`.
ROOM = "GPUQUEUE_WARM_ROOM"
ROOM_BYTES = 6000
#: Longest message, in bytes. The longest one holds an environment. A longer message may exceed the socket's
#: send buffer.
MOST_BYTES = 128 * 1024
#: The script that the warm interpreter runs.
SCRIPT = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "inside", "warm_start.py")
WRAPPER = "unfit: {} is a wrapper, which may start another Python for the next job"


class WarmInterpreter:
    """A warm interpreter: its *pid*, and the socket to it."""

    def __init__(self, pid: int, to: socket.socket) -> None:
        self.pid = pid
        self._to = to

    def ask(self, run_dir: str, log: int, answer: int) -> None:
        """Ask the interpreter to become the job of *run_dir*. It writes its answer into the pipe *answer*."""
        with contextlib.suppress(OSError):  # it has ended, and the pipe stays empty
            socket.send_fds(self._to, [os.fsencode(run_dir)], [log, answer])
        self._to.close()

    def end(self) -> None:
        """Kill and reap the interpreter."""
        self._to.close()
        with contextlib.suppress(OSError):
            end_child(self.pid)


def hold(worker: socket.socket) -> tuple[str, WarmInterpreter | None] | None:
    """Wait for a run, with the warm interpreter that the worker may want before it.

    Returns the run directory and the interpreter; None if no run arrives. The run's lock stays open in this process.
    """
    text, fds = received(worker)
    warm_interpreter = None
    if text and not fds:
        warm_interpreter = hold_warm(worker, json.loads(text))
        text, fds = received(worker) if warm_interpreter is not None else (b"", [])
    return (os.fsdecode(text), warm_interpreter) if text and fds else None


def hold_warm(worker: socket.socket, plan: dict[str, Any]) -> WarmInterpreter | None:
    """Start the warm interpreter of *plan*, and return it when the worker sends something; None if it is unusable."""
    to, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    warm_interpreter = WarmInterpreter(start(plan, theirs.fileno()), to)
    theirs.close()
    poll = select.poll()
    poll.register(worker, select.POLLIN)
    poll.register(to, select.POLLIN)
    while worker.fileno() not in {fd for fd, _ in poll.poll()}:
        message = to.recv(MOST_BYTES) or b"unfit: it ended by itself"
        if message == b"ready" and not runs(warm_interpreter.pid, os.path.join(plan["cwd"], plan["program"])):
            message = os.fsencode(WRAPPER.format(plan["program"]))
        with contextlib.suppress(OSError):
            worker.send(message)
        if message != b"ready":
            return None
    return warm_interpreter


def runs(pid: int, program: str) -> bool:
    """Return whether the process *pid* runs *program* itself.

    If not, *program* is a wrapper such as pyenv. A wrapper chooses a Python by a variable, by the working directory or
    by a file in it, and may choose another one for the next job.
    """
    try:
        return os.path.samefile(f"/proc/{pid}/exe", program)
    except OSError:
        return False


def received(other: socket.socket) -> tuple[bytes, list[int]]:
    """Return the next message and its descriptor, of which there may be none; empty values if the other end is gone."""
    for _ in range(2):  # an end that closes without reading causes one reset, and its last message comes after that
        with contextlib.suppress(ConnectionResetError):
            text, fds, _, _ = socket.recv_fds(other, MOST_BYTES, 1)
            for fd in fds:
                os.set_inheritable(fd, False)  # Python 3.11 ignores MSG_CMSG_CLOEXEC
            return text, fds
    return b"", []


def start(plan: dict[str, Any], fd: int) -> int:
    """Start the interpreter of *plan* in a session of its own, and return its pid. It ends with this process."""
    me = os.getpid()
    early = os.memfd_create("gpuqueue-early")  # holds the output of the imports until there is a job's log
    pid = os.fork()
    if pid == 0:
        try:
            begin_child(me)
            raise_open_files()
            os.dup2(early, 1)
            os.dup2(early, 2)
            os.set_inheritable(fd, True)
            os.chdir(plan["cwd"])
            words = [plan["python"], SCRIPT, str(fd), plan["modules"], " " * ROOM_BYTES]
            os.execve(plan["program"], words, {**plan["env"], ROOM: "." * ROOM_BYTES})  # noqa: S606
        finally:
            os._exit(127)
    os.close(early)
    return pid
