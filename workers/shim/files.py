"""Reads and writes the shim's files in the run directory, which is the working directory.

Standard library only. This module handles a full disk, and a pipe, link or directory that a job puts in a file's place.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import time

from workers.shim.tree import slurp

TYPE_CHECKING = False

#: Most bytes of a file that are read. The largest file is the spec: 1 MiB of JSON and the fields the worker adds.
MOST_READ = 64 * 1024 * 1024
#: Longest time between two checks of ``heartbeat`` and ``cancel``, in seconds. Signals wake the shim at once.
POLL_S = 1.0
#: The name of the link with the time limit of a run that was extended.
TIME_LIMIT = "time_limit"
#: The error numbers of a file system that is full.
NO_ROOM = {errno.ENOSPC, errno.EDQUOT}


def deleted() -> bool:
    """Return whether the run directory was deleted. Without it no heartbeat arrives and no worker reads the ending."""
    try:
        return os.stat(".").st_nlink == 0
    except OSError:
        return False


def put_at_last(name: str, text: str) -> None:
    """Write a file of the run directory, and retry until that succeeds or the directory is deleted.

    The spec is no longer needed, so the file is written over the spec's inode. That saves the cost of a new file.
    """
    while not deleted():
        try:
            reuse("spec", f".{name}")
            put(name, text)
        except OSError:
            with contextlib.suppress(OSError):  # on a full disk the spec's blocks make room
                os.unlink("spec")
                continue
            time.sleep(POLL_S)
        else:
            return


def reuse(old: str, name: str) -> None:
    """Rename *old* to *name* to reuse its inode, if *old* is a regular file with no other hard link."""
    with contextlib.suppress(OSError):
        found = os.lstat(old)
        if stat.S_ISREG(found.st_mode) and found.st_nlink == 1:
            os.rename(old, name)


def add(name: str, text: str) -> None:
    """Append *text* to an existing file with one write. Follows no link and waits for no pipe that a job put there.

    Raises:
        OSError: the file does not exist or cannot be written.

    """
    fd = os.open(name, os.O_WRONLY | os.O_APPEND | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        os.write(fd, text.encode())
    finally:
        os.close(fd)


def put(name: str, text: str, *, sync: bool = True, room: bool = False) -> None:
    """Write a file of the run directory atomically; with *sync*, flush it to the disk before it appears.

    With *room* the call fails at once on a full disk. Without it, the kernel may only notice when it writes the data.
    """
    move_away(f".{name}")
    move_away(name)
    fd = os.open(f".{name}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)
    try:
        left = memoryview(text.encode())
        while left:
            left = left[os.write(fd, left) :]
        if room:
            take_room(fd, len(text.encode()))
        if sync:
            os.fsync(fd)
    finally:
        os.close(fd)
    os.rename(f".{name}", name)


def take_room(fd: int, size: int) -> None:
    """Allocate *size* bytes on the disk for the file *fd*.

    Raises:
        OSError: the disk is full.

    """
    try:
        os.posix_fallocate(fd, 0, size)
    except OSError as error:
        if error.errno in NO_ROOM:
            raise
        os.fsync(fd)  # the file system has no fallocate; fsync allocates the blocks too, but takes longer


def read(name: str) -> str | None:
    """Return the text of a file of the run directory, or None if it cannot be read."""
    try:
        return slurp(name, MOST_READ).decode("utf-8", errors="replace")
    except OSError:
        return None


def move_away(name: str) -> None:
    """Rename *name* if it is not a regular file. A pipe or directory that the job put there would block the shim."""
    with contextlib.suppress(OSError):
        if not stat.S_ISREG(os.lstat(name).st_mode):
            os.rename(name, f"{name}.{time.monotonic_ns()}")


def renewed_until(known: float) -> float:
    """Return when the worker's heartbeat for the run expires, on the host's monotonic clock, in seconds.

    Returns *known*, the last known value, if the file cannot be read now: a shortage on the host must not end a run.
    The monotonic clock is used because the wall clock may jump.
    """
    try:
        return float(read("heartbeat") or "")
    except ValueError:
        return known


def extended(name: str = TIME_LIMIT) -> float | None:
    """Return the time limit of a run that was extended, in seconds, from the link *name*; None without a valid one."""
    with contextlib.suppress(OSError, ValueError):
        return float(os.readlink(name))
    return None


def asked_end() -> str | None:
    """Return the kind of ending that a worker requests, "" if the request is unreadable, None if there is none."""
    with contextlib.suppress(OSError):
        return os.readlink("cancel")
    asked = read("cancel")
    return "" if asked is None and os.path.exists("cancel") else asked
