"""A shim in waiting, with a spare interpreter as its child. Standard library only: forked as every shim is.

The worker says over a socket which interpreter it wants, and hears when that is ready. What comes then is a run
directory, with the run's lock: from there on this is that run's shim, and the interpreter its job's first process,
whose parent it was all the time. If the worker ends before that, both end. If the spare cannot be that job, it is ended
before anything of the job has run, and the job is started as without it.

Between shim and spare there is a socket as well; see :mod:`workers.inside.warm_start`.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket

from workers.shim.tree import PR_SET_PDEATHSIG, RESET, prctl

TYPE_CHECKING = False

#: The variable, and the argument, in whose place the spare shows later whose process it is; see its ``show``.
ROOM = "GPUQUEUE_SPARE"
ROOM_BYTES = 6000
#: Longest message, in bytes: an environment. What is longer does not fit into a socket.
MOST_BYTES = 128 * 1024
#: The spare itself.
SPARE = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "inside", "warm_start.py")
#: What the shim writes into the run directory where a spare became the job.
WARM = "warm"


class Spare:
    """The interpreter in waiting: *pid*, and the socket to it."""

    def __init__(self, pid: int, to: socket.socket) -> None:
        self.pid = pid
        self._to = to

    def ask(self, run_dir: str, log: int, told: int) -> None:
        """Ask it to become the job of *run_dir*; what it says to that comes through the pipe *told*."""
        with contextlib.suppress(OSError):  # it has ended: then nothing comes
            socket.send_fds(self._to, [json.dumps({"run_dir": run_dir}).encode()], [log, told])
        self._to.close()

    def end(self) -> None:
        """End and collect it."""
        self._to.close()
        with contextlib.suppress(OSError):
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)


def hold(worker: socket.socket) -> tuple[str, int, Spare] | None:
    """Start the spare that the worker wants, and wait; return the run that it is for, or None if there comes none."""
    plan = worker.recv(MOST_BYTES)
    if not plan:
        return None
    to, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    wanted = json.loads(plan)
    spare = Spare(start(wanted, theirs.fileno()), to)
    theirs.close()
    while True:
        poll = select.poll()
        poll.register(worker, select.POLLIN)
        poll.register(to, select.POLLIN)
        ready = {fd for fd, _ in poll.poll()}
        if worker.fileno() in ready:
            message, fds = order(worker)
            return (os.fsdecode(message), fds[0], spare) if message and fds else None
        said = to.recv(MOST_BYTES)
        if said == b"ready" and not runs(spare.pid, os.path.join(wanted["cwd"], wanted["program"])):
            said = os.fsencode("unfit: {} is a wrapper: which Python it starts only it knows".format(wanted["program"]))
        if said != b"ready":  # it cannot do what it should, or is gone
            with contextlib.suppress(OSError):
                worker.send(said or b"unfit: it ended by itself")
            return None
        worker.send(said)


def runs(pid: int, program: str) -> bool:
    """Return whether the process *pid* runs *program* itself.

    Else that is a script, or another program, that has chosen a Python for itself: by a variable, by the working
    directory, by a file there (pyenv). For the next job it may choose another.
    """
    try:
        return os.path.samefile(f"/proc/{pid}/exe", program)
    except OSError:
        return False


def order(worker: socket.socket) -> tuple[bytes, list[int]]:
    """Return the run directory that the worker names and its lock; nothing when the worker is gone."""
    for _ in range(2):  # whoever leaves without having heard us resets the connection, after what was sent
        with contextlib.suppress(ConnectionResetError):
            return socket.recv_fds(worker, MOST_BYTES, 1, socket.MSG_CMSG_CLOEXEC)[:2]
    return b"", []


def start(plan: dict[str, object], fd: int) -> int:
    """Start the interpreter of *plan* in a session of its own, and return its pid. It ends when we do."""
    me = os.getpid()
    early = os.memfd_create("gpuqueue-early")  # what the imports say belongs into the log of the job
    pid = os.fork()
    if pid == 0:
        try:
            prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
            if os.getppid() != me:
                os._exit(127)
            os.setsid()
            signal.pthread_sigmask(signal.SIG_SETMASK, [])
            for number in RESET:
                signal.signal(number, signal.SIG_DFL)
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            os.dup2(early, 1)
            os.dup2(early, 2)
            os.set_inheritable(fd, True)
            python, env = str(plan["python"]), dict(plan["env"])  # type: ignore[call-overload]
            os.chdir(str(plan["cwd"]))
            words = [python, SPARE, str(fd), str(plan["modules"]), " " * ROOM_BYTES]
            os.execve(plan["program"], words, {**env, ROOM: "." * ROOM_BYTES})  # type: ignore[arg-type]  # noqa: S606
        finally:
            os._exit(127)
    os.close(early)
    return pid
