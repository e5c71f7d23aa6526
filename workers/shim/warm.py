"""A waiting shim with a warm interpreter as its child. Standard library only. The fork server forks it like any shim.

The worker sends over a socket which interpreter it wants, and receives ``ready`` or why it is unusable.
Later the worker sends a run directory with the run's lock. The process then becomes that run's shim, and its child
becomes the job's first process. If the worker ends before that, both end. If the warm interpreter cannot become the
job, the shim kills it before any code of the job has run, and starts the job cold.

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


def hold(worker: socket.socket) -> tuple[str, int, WarmInterpreter] | None:
    """Start the warm interpreter that the worker wants, and wait for a run.

    Returns the run directory, the run's lock and the interpreter; None if no run arrives.
    """
    text = worker.recv(MOST_BYTES)
    if not text:
        return None
    plan = json.loads(text)
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
    run_dir, fds = order(worker)
    return (os.fsdecode(run_dir), fds[0], warm_interpreter) if run_dir and fds else None


def runs(pid: int, program: str) -> bool:
    """Return whether the process *pid* runs *program* itself.

    If not, *program* is a wrapper such as pyenv. A wrapper chooses a Python by a variable, by the working directory or
    by a file in it, and may choose another one for the next job.
    """
    try:
        return os.path.samefile(f"/proc/{pid}/exe", program)
    except OSError:
        return False


def order(worker: socket.socket) -> tuple[bytes, list[int]]:
    """Return the run directory that the worker sends and its lock; empty values if the worker is gone."""
    for _ in range(2):  # a worker that closes without reading causes one reset, and its last message comes after that
        with contextlib.suppress(ConnectionResetError):
            return socket.recv_fds(worker, MOST_BYTES, 1, socket.MSG_CMSG_CLOEXEC)[:2]
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
