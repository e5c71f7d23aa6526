"""The processes of a run, as /proc tells them."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path

#: Where the kernel tells of processes; tests hand in another.
PROC = Path("/proc")
#: How often, and how far apart in seconds, a process in the middle of exec() is looked at.
EXEC_LOOKS = 50
EXEC_LOOK_S = 0.001


def below(root: int) -> list[int]:
    """Return the pids of all processes below *root*, itself left out. Those that end meanwhile may be missing."""
    found: list[int] = []
    todo = [root]
    while todo:
        children = _children(todo.pop())
        found += children
        todo += children
    return found


def _children(pid: int) -> list[int]:
    """Return the children of all threads of *pid*: one small file each, 20 times cheaper than scanning /proc."""
    found: list[int] = []
    with contextlib.suppress(OSError):
        for thread in os.scandir(PROC / str(pid) / "task"):
            with contextlib.suppress(OSError):
                found += [int(word) for word in Path(thread.path, "children").read_text(encoding="ascii").split()]
    return found


def hides_others() -> bool:
    """Return whether /proc hides the processes of other accounts from us (hidepid, in proc(5))."""
    try:
        (PROC / "1" / "stat").read_bytes()
    except (FileNotFoundError, PermissionError):
        return True
    return False


def carrying(variable: str, value: str) -> list[int]:
    """Return the pids whose environment at their start held *variable* = *value*, as far as we may look.

    Raises:
        OSError: it cannot be told who does, for want of a descriptor or of memory.

    """
    wanted = f"{variable}={value}".encode()
    numbers = [entry.name for entry in os.scandir(PROC) if entry.name.isdigit()]
    return [pid for pid in map(int, numbers) if pid != os.getpid() and _carries(pid, wanted)]


def _carries(pid: int, wanted: bytes) -> bool:
    """Return whether a process has *wanted* in its environment; one that hides from us is not ours.

    One that is in the middle of exec() has no environment for a moment: it is waited for.
    """
    try:
        for _ in range(EXEC_LOOKS):
            environ = (PROC / str(pid) / "environ").read_bytes()
            if environ or not _in_exec(pid):
                return wanted in environ.split(b"\0")
            time.sleep(EXEC_LOOK_S)
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        pass
    return False


def _in_exec(pid: int) -> bool:
    """Return whether a process that showed no environment has or will have one (proc(5): vsize, env_start, env_end).

    It has a new program already and not yet its environment; or it has that by now, and had not when it was read.
    """
    fields = (PROC / str(pid) / "stat").read_bytes().rpartition(b")")[2].split()
    size, start, end = int(fields[20]), int(fields[47]), int(fields[48])
    return size > 0 and (start == 0 or end > start)


def sweep(variable: str, value: str) -> int:
    """Kill every process that carries *variable* = *value*; return how many were found.

    The last resort when a shim was killed and its tree has nobody above it: the environment survives any
    number of forks and sessions. Looks until nobody is found twice in a row, since a process may fork meanwhile.

    Raises:
        OSError: as :func:`carrying`.

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
    """Kill a process if it is still the one that carries *wanted*: a pid is given out again."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        if _carries(pid, wanted):  # asked while we hold on to it, so of this very process
            signal.pidfd_send_signal(handle, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        return
    finally:
        os.close(handle)
