"""Keeps the log of a run within its limit. Standard library only: it is the shim's.

The job writes straight into the file, so that no pipe can break when somebody dies. What is too much is therefore
taken out afterwards: a hole is punched into the middle of the file (fallocate(2)), which gives the blocks back to
the disk and moves nothing. The first quarter of the limit stays, and at least the newest half; a line in front of
the hole says how much is missing. Between two looks a job can write more than the limit: it is looked at more often
the faster it writes.

Beside each log lies a file of the same name and ``.times``: how long the log was when, once a second while it grows. A
log's own lines carry no time, and are the job's.
"""

from __future__ import annotations

import ctypes
import errno
import os
import time

PUNCH_HOLE_KEEP_SIZE = 0x02 | 0x01  # linux/falloc.h
#: Time between two looks at a log, in seconds; the second for one that may soon be over its limit.
LOOK_S = 1.0
SOON_S = 0.1
#: How much of the end of a log is kept where the file system cannot punch holes, in bytes.
END_BYTES = 1024 * 1024
#: What the file is called that says when a log was how long, behind the log's name.
TIMES = ".times"
#: A note every second until the file is so large, after that every minute: jobs that write run for weeks.
MANY_BYTES = 8 * 1024 * 1024
SELDOM_S = 60.0


class KeptLog:
    """One log, kept within its limit, and noted how long it was when."""

    def __init__(self, name: str, limit_bytes: int | None) -> None:
        self._limit = LogLimit(name, limit_bytes)
        self._times = LogTimes(name)

    def look(self) -> float:
        """Look at it; return in how many seconds to look again. Raises nothing."""
        self._times.look(time.monotonic())
        return self._limit.look()

    def last_look(self) -> None:
        """Look at it once more: nobody writes there any more."""
        self._times.look(float("inf"))
        self._limit.look()


class LogTimes:
    """Notes how long a log is, in lines such as ``1763809823.1 4096``: seconds since 1970, and bytes."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._size = 0
        self._due_s = 0.0

    def look(self, now_s: float) -> None:
        """Note its size if that is another than at the last look. Raises nothing."""
        if now_s < self._due_s:
            return
        try:
            size = os.stat(self._name).st_size
            if size != self._size:
                self._size = size
                self._due_s = now_s + (SELDOM_S if self._note(size) > MANY_BYTES else LOOK_S)
        except OSError:  # no descriptor left, a full disk: the log can be read all the same
            return

    def _note(self, size: int) -> int:
        """Write one line, and return how much there is of them; the job may have put a pipe or a link there."""
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC
        file = os.open(self._name + TIMES, flags, 0o600)
        try:
            os.write(file, b"%.1f %d\n" % (time.time(), size))
            return os.fstat(file).st_size
        finally:
            os.close(file)


class LogLimit:
    """Watches one log; *limit_bytes* is None where it may grow for ever."""

    def __init__(self, name: str, limit_bytes: int | None) -> None:
        self._name = name
        self._limit = limit_bytes
        self._fd: int | None = None
        self._size = 0
        #: What was cut away for ever where no hole can be punched.
        self._gone = 0
        self._punches = True

    def look(self) -> float:
        """Cut the log if it is over its limit; return in how many seconds to look again. Raises nothing."""
        if self._limit is None:
            return LOOK_S
        try:
            return self._look(self._limit)
        except OSError:  # no descriptor left, a disk in trouble: the next look may do better
            return LOOK_S

    def _look(self, limit: int) -> float:
        if self._fd is None:
            self._fd = os.open(self._name, os.O_RDWR | os.O_CLOEXEC)  # not to append: the notice is not for the end
        stat = os.fstat(self._fd)
        size, hole = stat.st_size, _down(limit // 4, stat.st_blksize)
        hole_end = _data(self._fd, hole, size)  # asked anew each time: the job may have emptied its log
        kept, grown = size - (hole_end - hole), size - self._size
        self._size = size
        if kept > limit:
            end = _down(size - limit // 2, stat.st_blksize)
            self._punches = self._punches and hole > 0 and _punch(self._fd, hole_end, end - hole_end)
            if self._punches:
                notice = self._notice(end - hole, limit)
                os.pwrite(self._fd, notice, hole - len(notice))  # right up to the hole: no NUL stays between
            else:
                self._cut_back(self._fd, size, limit)
        return SOON_S if kept + grown > limit else LOOK_S

    def _cut_back(self, fd: int, size: int, limit: int) -> None:
        """Keep the beginning and a little of the end. What the job writes in this very moment can be lost."""
        most = min(END_BYTES, limit // 4)
        end = os.pread(fd, most, size - most)
        end = end[end.find(b"\n") + 1 :]
        self._gone += size - limit // 4 - len(end)
        os.ftruncate(fd, limit // 4)
        with open(self._name, "ab", buffering=0) as log:
            log.write(self._notice(self._gone, limit) + end)
        self._size = limit // 4 + len(end)

    @staticmethod
    def _notice(missing: int, limit: int) -> bytes:
        return f"\ngpuqueue: {missing} bytes are left out here: the log passed its limit of {limit} bytes\n".encode()


def _down(offset: int, block: int) -> int:
    return offset // block * block


def _data(fd: int, offset: int, size: int) -> int:
    """Return where data begins again at or behind *offset*; *size* where there is nothing but a hole."""
    if offset >= size:
        return offset
    try:
        return os.lseek(fd, offset, os.SEEK_DATA)
    except OSError as error:
        if error.errno == errno.ENXIO:
            return size
        return offset  # a file system that knows no holes


def _punch(fd: int, offset: int, length: int) -> bool:
    """Give the blocks of a part of the file back to the disk; return whether the file system can."""
    libc = ctypes.CDLL(None, use_errno=True)
    fallocate = libc.fallocate64 if hasattr(libc, "fallocate64") else libc.fallocate  # a C library of 32 bits has both
    arguments = ctypes.c_int(fd), ctypes.c_int(PUNCH_HOLE_KEEP_SIZE), ctypes.c_int64(offset), ctypes.c_int64(length)
    return int(fallocate(*arguments)) == 0
