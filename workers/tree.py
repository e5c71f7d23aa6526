"""The processes of a run, as /proc tells them."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path

#: Where the kernel tells of processes; tests hand in another.
PROC = Path("/proc")


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


def carrying(variable: str, value: str) -> list[int]:
    """Return the pids whose environment at their start held *variable* = *value*, as far as we may look.

    Raises:
        OSError: it cannot be told who does, for want of a descriptor or of memory.

    """
    wanted = f"{variable}={value}".encode()
    numbers = [entry.name for entry in os.scandir(PROC) if entry.name.isdigit()]
    return [pid for pid in map(int, numbers) if pid != os.getpid() and _carries(pid, wanted)]


def _carries(pid: int, wanted: bytes) -> bool:
    """Return whether a process has *wanted* in its environment; one that hides from us is not ours."""
    try:
        return wanted in (PROC / str(pid) / "environ").read_bytes().split(b"\0")
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return False


def sweep(variable: str, value: str) -> int:
    """Kill every process that carries *variable* = *value*; return how many were found.

    The last resort when a shim was killed and its tree has nobody above it: the environment survives any
    number of forks and sessions. Looks again until nobody is found, since a process may fork meanwhile.

    Raises:
        OSError: as :func:`carrying`.

    """
    swept: set[int] = set()
    for _ in range(50):
        pids = carrying(variable, value)
        if not pids:
            break
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
