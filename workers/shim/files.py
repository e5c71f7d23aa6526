"""The files of the run directory, which is the working directory, as the shim writes and reads them.

Standard library only. A disk that is full, and whatever a job may put in a file's place, is dealt with here.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import time

from workers.shim.tree import slurp

TYPE_CHECKING = False

#: Most of a file that is read, in characters. The largest is the spec: 1 MiB of JSON, and what the worker has added.
MOST_READ = 64 * 1024 * 1024
#: Longest time between two looks at ``beat`` and ``cancel``, in seconds; signals wake the shim at once.
LOOK_S = 1.0
#: What a file system says that has no room.
NO_ROOM = {errno.ENOSPC, errno.EDQUOT}


def deleted() -> bool:
    """Return whether the run directory is there no more. Nobody can vouch for the run then, or read how it ended."""
    try:
        return os.stat(".").st_nlink == 0
    except OSError:
        return False


def put_at_last(name: str, text: str) -> None:
    """Write a file of the run directory, however long that takes: a disk that is full now may not be so later.

    The spec has done its work: what is written takes its place, since a new file costs more than all that is in it.
    """
    while not deleted():
        try:
            reuse("spec", f".{name}")
            put(name, text)
        except OSError:
            with contextlib.suppress(OSError):  # the spec has done its work, and its room is enough for a few words
                os.unlink("spec")
                continue
            time.sleep(LOOK_S)
        else:
            return


def reuse(old: str, name: str) -> None:
    """Let *name* be written over the file *old*, where that is one of ours and has no other name."""
    with contextlib.suppress(OSError):
        found = os.lstat(old)
        if stat.S_ISREG(found.st_mode) and found.st_nlink == 1:
            os.rename(old, name)


def add(name: str, text: str) -> None:
    """Write at the end of a file of ours, in one piece; nothing where a job has put something else in its place.

    Raises:
        OSError: it cannot be written, or is not there.

    """
    fd = os.open(name, os.O_WRONLY | os.O_APPEND | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        os.write(fd, text.encode())
    finally:
        os.close(fd)


def put(name: str, text: str, *, sync: bool = True, room: bool = False) -> None:
    """Write a file of the run directory so that it appears whole or not at all; with *sync*, also on the disk.

    With *room* it fails now where the disk is full, and not when the kernel comes to write it there.
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
    """Have the file system give the room for *size* bytes now. To wait for the disk does that too, and takes longer.

    Raises:
        OSError: there is none.

    """
    try:
        os.posix_fallocate(fd, 0, size)
    except OSError as error:
        if error.errno in NO_ROOM:
            raise
        os.fsync(fd)  # a file system that cannot be asked for it


def read(name: str) -> str | None:
    """Return a file of the run directory, or None if it is not there."""
    try:
        return slurp(name, MOST_READ).decode("utf-8", errors="replace")
    except OSError:
        return None


def move_away(name: str) -> None:
    """Make room for a file of ours: a pipe or a directory, which only the job can have made, would stop us for ever."""
    with contextlib.suppress(OSError):
        if not stat.S_ISREG(os.lstat(name).st_mode):
            os.rename(name, f"{name}.{time.monotonic_ns()}")


def vouched_until(known: float) -> float:
    """Return until when somebody answers for the run, on the host's monotonic clock; the wall clock may jump.

    What is *known* holds where it cannot be read now: a shortage on the host is no reason to end a run.
    """
    try:
        return float(read("beat") or "")
    except ValueError:
        return known


def asked_end() -> str | None:
    """Return the kind of ending that a worker asks for, or None."""
    with contextlib.suppress(OSError):
        return os.readlink("cancel")
    asked = read("cancel")
    return "" if asked is None and os.path.exists("cancel") else asked
