"""The processes of a run, read from /proc."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from gpuqueue.system.run_processes import below, children

__all__ = ["below", "carrying", "children", "hides_others", "sweep"]

#: The root of the proc file system.
PROC = Path("/proc")
#: Number of polls of a process in the middle of exec(), and the time between two polls in seconds.
EXEC_POLLS = 50
EXEC_POLL_S = 0.001


def hides_others() -> bool:
    """Return whether /proc hides the processes of other accounts from this one (hidepid, in proc(5))."""
    try:
        (PROC / "1" / "stat").read_bytes()
    except (FileNotFoundError, PermissionError):
        return True
    return False


def carrying(variable: str, value: str) -> list[int]:
    """Return the pids of the readable processes whose initial environment has *variable* = *value*.

    Raises:
        OSError: The processes cannot be read, because descriptors or memory are short.

    """
    wanted = f"{variable}={value}".encode()
    numbers = [entry.name for entry in os.scandir(PROC) if entry.name.isdigit()]
    return [pid for pid in map(int, numbers) if pid != os.getpid() and _carries(pid, wanted)]


def _carries(pid: int, wanted: bytes) -> bool:
    """Return whether a process has *wanted* in its environment. An unreadable process belongs to no run.

    A process in the middle of exec() has no environment for a moment, so it is polled until it has one.
    """
    try:
        for _ in range(EXEC_POLLS):
            environ = (PROC / str(pid) / "environ").read_bytes()
            if environ or not _in_exec(pid):
                return wanted in environ.split(b"\0")
            time.sleep(EXEC_POLL_S)
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        pass
    return False


def _in_exec(pid: int) -> bool:
    """Return whether a process with an empty environment is in exec() (proc(5): vsize, env_start, env_end).

    Either the process has a new program without an environment yet, or it got its environment after the first read.
    """
    fields = (PROC / str(pid) / "stat").read_bytes().rpartition(b")")[2].split()
    size, start, end = int(fields[20]), int(fields[47]), int(fields[48])
    return size > 0 and (start == 0 or end > start)


def sweep(variable: str, value: str) -> int:
    """Kill every process that has *variable* = *value* in its environment, and return how many were found.

    This is the last resort if a shim was killed and its process tree has no parent: forked processes and new sessions
    inherit the environment. The search repeats until it finds no process twice in a row, since a process may fork
    during a search.

    Raises:
        OSError: As for :func:`carrying`.

    """
    swept: set[int] = set()
    nobody = False
    for _ in range(50):
        pids = carrying(variable, value)
        if not pids and nobody:
            break
        nobody = not pids
        swept.update(pids)
        for pid in pids:
            _kill(pid, f"{variable}={value}".encode())
    return len(swept)


def _kill(pid: int, wanted: bytes) -> None:
    """Kill a process if it still has *wanted* in its environment, since the kernel may have reused the pid."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        if _carries(pid, wanted):  # checked while the pidfd is open, so the pid cannot be reused
            signal.pidfd_send_signal(handle, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        return
    finally:
        os.close(handle)
