"""The processes below a shim, which is their subreaper. Standard library only, as the shim itself."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

#: Longest time between two looks while the tree is given its grace, in seconds.
LOOK_S = 1.0
#: A tree that survives SIGKILL (a process stuck in the driver) is waited for in steps of this length.
KILL_STEP_S = 0.05
#: prctl(2): the signal that a process gets when its parent has ended.
PR_SET_PDEATHSIG = 1
#: Found once, in the fork server: each shim would load the C library anew, twice.
prctl = ctypes.CDLL(None).prctl
#: What a job finds as in a fresh session: signals that Python, nohup or a daemon ignores, or that Python handles. The
#: others are so already; to reset all of them were 60 calls of the kernel. Listed once, in the fork server.
RESET = frozenset(
    number
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}
    if signal.getsignal(number) not in {signal.SIG_DFL, None}
)
#: How much of a file is read at once, in bytes.
CHUNK_BYTES = 65536
#: What wakes a shim; it must have them blocked.
WAKE = {signal.SIGCHLD, signal.SIGUSR1, signal.SIGTERM, signal.SIGINT, signal.SIGHUP}


def slurp(name: str, most: int = CHUNK_BYTES) -> bytes:
    """Return what a small file holds; of a pipe that a job has put in its place there is nothing to read.

    Without a file object, which takes longer than all the rest and is never reused: each shim reads each file once.

    Raises:
        OSError: it cannot be read.

    """
    fd = os.open(name, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        whole = b""
        while len(whole) < most and (part := os.read(fd, CHUNK_BYTES)):
            whole += part
        return whole
    finally:
        os.close(fd)


def start_ticks(pid: int) -> str:
    """Return when *pid* started, in clock ticks since boot (the 22nd field of /proc/PID/stat)."""
    return slurp(f"/proc/{pid}/stat").rpartition(b")")[2].split()[19].decode()


def children_of() -> dict[int, list[int]]:
    """Return every process of the host by its parent."""
    found: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError, IndexError, ValueError), open(f"/proc/{name}/stat", "rb") as stat:
                parent = int(stat.read().rpartition(b")")[2].split()[1])
                found.setdefault(parent, []).append(int(name))
    return found


def descendants() -> list[int]:
    """Return the pids of all processes below this one."""
    children = children_of()
    found: list[int] = []
    todo = [os.getpid()]
    while todo:
        below = children.get(todo.pop(), [])
        found += below
        todo += below
    return found


def signal_all(number: int) -> bool:
    """Send a signal to every process below this one; return False where they cannot be listed now."""
    try:
        pids = descendants()
    except OSError:  # no descriptor left on the host, say
        return False
    for pid in pids:
        with contextlib.suppress(OSError):
            os.kill(pid, number)
    return True


class Tree:
    """The processes of the run. ``status`` is the first one's, negative for a signal, None while it lives."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.status: int | None = None

    def reap(self) -> bool:
        """Collect whoever has ended; return whether any process is left."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if pid == 0:
                return True
            if pid == self.pid:
                self.status = os.waitstatus_to_exitcode(status)

    def end(self, grace_s: float, meanwhile: Callable[[], object], *, told: bool = False) -> None:
        """End every process: TERM, a grace, then KILL until none is left. *meanwhile* is called at every look.

        With *told* they were sent TERM before: many a program takes a second one for an order to drop everything.
        """
        if not self.reap():
            return
        deadline = time.monotonic() + grace_s
        while True:
            told = told or (signal_all(signal.SIGTERM) and signal_all(signal.SIGCONT))  # stopped it could not obey
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                break
            signal.sigtimedwait(WAKE, min(LOOK_S, left_s))
            if not self.reap():
                return
            meanwhile()
        while self.reap():
            signal_all(signal.SIGKILL)
            signal.sigtimedwait(WAKE, KILL_STEP_S)
