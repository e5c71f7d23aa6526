"""Keeps the log of a run within its limit. Runs in the shim. Standard library only.

The job writes straight into the file, so there is no pipe that breaks when a process dies. The excess is therefore
removed afterwards: a hole is punched into the middle of the file (fallocate(2)), which frees the blocks on the disk and
moves no data. The first quarter of the limit stays, and at least the newest half of the limit. A marker line behind the
hole says how many bytes are missing, and blanks the rest of the lines that the hole cuts, so that no line and no
character is shown in part. A job can write more than the limit between two checks, so a log that grows fast is checked
more often.

While the job runs, the worker's host may lower the limit for the rest of the run: the link ``log_limit`` in the run
directory has the new one, and why. A signal has the shim read it at once.

Next to each log is a file with the suffix ``.times``. It records the size of the log once a second while the log grows.
The log itself has no timestamps, because its lines belong to the job.
"""

from __future__ import annotations

import ctypes
import errno
import os
import time

PUNCH_HOLE_KEEP_SIZE = 0x02 | 0x01  # linux/falloc.h
#: How the lines begin that gpuqueue writes into a log.
OWN_LINE = "gpuqueue: "
#: Time between two checks of a log, in seconds. ``SOON_S`` applies to a log that may soon be over its limit.
POLL_S = 1.0
SOON_S = 0.1
#: The name of the link to a lower limit. Its target is the bytes and a key of :data:`REASONS`, because a link needs no
#: block of a full disk.
LIMIT = "log_limit"
#: Why a limit was lowered, as the log says it where bytes are missing.
DISK, USER = "disk", "user"
REASONS = {
    DISK: "the disk of this host was nearly full",
    USER: "the logs of this user on this host exceeded user_log_limit",
}
#: The size to which a log is cut if the host has no room for more, in bytes. No limit is lowered further.
CUT_BYTES = 1024 * 1024
#: Size of the end of a log that is kept if the file system cannot punch holes, in bytes.
END_BYTES = 1024 * 1024
#: Bytes of a block in which the kernel counts; see stat(2).
BLOCK_BYTES = 512
#: How many times its limit a log may occupy on the disk: some file systems reserve room behind the end of a file.
RESERVED_SHARE = 4
#: Length of a hole behind the end of a log, in bytes.
FAR_BYTES = 2**40
#: How far from a hole the end of a line is looked for, in bytes. A longer line is cut between two characters.
LINE_BYTES = 64 * 1024
#: Suffix of the file that records the size of a log over time.
TIMES = ".times"
#: Once the ``.times`` file is larger than this many bytes, it gets a line every ``SELDOM_S`` seconds instead of every
#: second, because a job may write for weeks.
MANY_BYTES = 8 * 1024 * 1024
SELDOM_S = 60.0
#: The bytes of a character of UTF-8 after its first one.
_CONTINUATION = bytes(range(0x80, 0xC0))


def lowered(name: str = LIMIT) -> tuple[int, str] | None:
    """Return the lowered limit in bytes and the key of its reason from the link *name*, or None if there is none."""
    try:
        limit, _, why = os.readlink(name).partition(" ")
    except OSError:
        return None
    return (max(CUT_BYTES, int(limit)), why) if limit.isascii() and limit.isdigit() and why in REASONS else None


class KeptLog:
    """One log that is kept within its limit and whose size is recorded over time."""

    def __init__(self, name: str, limit_bytes: int | None) -> None:
        self._limit = LogLimit(name, limit_bytes)
        self._times = LogTimes(name)

    def check(self) -> float:
        """Check the log; return in how many seconds to check it again. Raises nothing."""
        self._times.check(time.monotonic())
        self._limit.lower(lowered())
        return self._limit.check()

    def last_check(self) -> None:
        """Check the log for the last time, after the last process of the job is gone."""
        self._times.check(float("inf"))
        self._limit.lower(lowered())
        self._limit.last_check()


class LogTimes:
    """Records the size of a log in lines such as ``1763809823.1 4096``: seconds since 1970, and bytes."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._size = 0
        self._due_s = 0.0

    def check(self, now_s: float) -> None:
        """Record the size of the log if it has changed since the last check. Raises nothing."""
        if now_s < self._due_s:
            return
        try:
            size = os.stat(self._name).st_size
            if size != self._size:
                self._size = size
                self._due_s = now_s + (SELDOM_S if self._note(size) > MANY_BYTES else POLL_S)
        except OSError:  # no free descriptor or a full disk; the log is readable without its times
            return

    def _note(self, size: int) -> int:
        """Append one line and return the size of the file in bytes.

        Follows no link and waits for no pipe that the job put there.
        """
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC
        file = os.open(self._name + TIMES, flags, 0o600)
        try:
            os.write(file, b"%.1f %d\n" % (time.time(), size))
            return os.fstat(file).st_size
        finally:
            os.close(file)


class LogLimit:
    """Keeps one log within *limit_bytes*; None means no limit. The *reason* stands where bytes are missing."""

    def __init__(self, name: str, limit_bytes: int | None, reason: str = "") -> None:
        self._name = name
        self._limit = limit_bytes
        self._reason = reason or f"the log exceeded its limit of {limit_bytes} bytes"
        self._fd: int | None = None
        self._size = 0
        #: Bytes cut from the log so far, on a file system that cannot punch holes.
        self._gone = 0
        self._punches = True

    def lower(self, limit: tuple[int, str] | None) -> None:
        """Lower the limit for good to the bytes of *limit*, if that is less, for the reason with its key."""
        if limit is not None and (self._limit is None or limit[0] < self._limit):
            self._limit, self._reason = limit[0], REASONS[limit[1]]

    def check(self) -> float:
        """Cut the log if it is over its limit; return in how many seconds to check again. Raises nothing."""
        if self._limit is None:
            return POLL_S
        try:
            return self._check(self._limit)
        except OSError:  # no free descriptor or a disk error; the next check tries again
            return POLL_S

    def last_check(self) -> None:
        """Check the log for the last time. Raises nothing."""
        self.check()
        self.close()

    def close(self) -> None:
        """Close the log."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def _check(self, limit: int) -> float:
        if self._fd is None:
            # Without O_APPEND: the marker line goes next to the hole, and pwrite would append it to the end.
            # A name alone is a file of the run, in place of which the job may have put a link.
            own = os.O_NOFOLLOW | os.O_NONBLOCK if "/" not in self._name else 0
            self._fd = os.open(self._name, os.O_RDWR | os.O_CLOEXEC | own)
        stat = os.fstat(self._fd)
        size, hole = stat.st_size, _down(limit // 4, stat.st_blksize)
        hole_end = _data(self._fd, hole, size)  # not cached: the job may have truncated its log
        kept, grown = size - (hole_end - hole), size - self._size
        self._size = size
        if kept > limit:
            end = _down(size - limit // 2, stat.st_blksize)
            self._punches = self._punches and hole > 0 and _punch(self._fd, hole_end, end - hole_end)
            if self._punches:
                self._mark(self._fd, hole, end)
            else:
                self._cut_back(self._fd, size, limit)
        elif self._punches and stat.st_blocks * BLOCK_BYTES > RESERVED_SHARE * limit:
            _punch(self._fd, hole, hole_end - hole)  # allocated, but not written
            _free_reserved(self._fd, size, limit)
        return SOON_S if kept + grown > limit else POLL_S

    def _cut_back(self, fd: int, size: int, limit: int) -> None:
        """Keep the beginning and a small part of the end. Bytes that the job writes meanwhile are lost.

        The end is moved to the beginning before the rest is cut off, so that nothing of the job comes between them.
        """
        most = min(END_BYTES, limit // 4)
        end = os.pread(fd, most, size - most)
        end = end[_line_length(end) :]
        self._gone += size - limit // 4 - len(end)
        begin, line_end = _cut_before(fd, limit // 4)
        text = line_end.ljust(limit // 4 - begin) + self._marker(self._gone) + end
        os.pwrite(fd, text, begin)
        self._size = begin + len(text)
        os.ftruncate(fd, self._size)

    def _mark(self, fd: int, hole: int, end: int) -> None:
        """Blank the lines that are cut where the hole begins and ends, and say there how many bytes are missing."""
        begin, line_end = _cut_before(fd, hole)
        os.pwrite(fd, line_end.ljust(hole - begin), begin)
        room = _cut_after(fd, end, len(self._marker(end)))
        os.pwrite(fd, self._marker(end + room - begin).rjust(room), end)

    def _marker(self, missing: int) -> bytes:
        return f"{OWN_LINE}{missing} bytes are missing here: {self._reason}\n".encode()


def _free_reserved(fd: int, size: int, limit: int) -> None:
    """Free what is allocated behind the end of a log of *size* bytes. A job can allocate any amount (fallocate(2))."""
    _punch(fd, size + limit, FAR_BYTES)  # not at once behind the end, because the job may write there meanwhile
    if os.fstat(fd).st_blocks * BLOCK_BYTES > RESERVED_SHARE * limit:
        os.ftruncate(fd, size)  # ext4 frees nothing there otherwise


def _down(offset: int, block: int) -> int:
    return offset // block * block


def _cut_before(fd: int, offset: int) -> tuple[int, bytes]:
    """Return where the last whole line before *offset* ends, and the line end that must be written there, if any."""
    start = max(0, offset - LINE_BYTES)
    text = os.pread(fd, offset - start, start)
    at = text.rfind(b"\n") + 1
    if at or not start:
        return start + at, b""
    at = text.rfind(b"\r")  # between two states of a progress bar
    if at < 0:
        at = len(text) - 1
        while at and text[at : at + 1] in _CONTINUATION:
            at -= 1
    return start + at, b"\n"


def _cut_after(fd: int, offset: int, least: int) -> int:
    """Return how many bytes to overwrite from *offset* on, at least *least*, so that a line begins behind them."""
    return least - 1 + _line_length(os.pread(fd, least + LINE_BYTES, offset)[least - 1 :], 1)


def _line_length(text: bytes, least: int = 0) -> int:
    """Return the length of the first line of *text*; of a line without an end, *least* and the rest of a character."""
    ends = [at for at in (text.find(b"\n"), text.find(b"\r")) if at >= 0]  # CR: between two states of a progress bar
    if ends:
        return min(ends) + (2 if text.startswith(b"\r\n", min(ends)) else 1)
    while least < len(text) and text[least : least + 1] in _CONTINUATION:
        least += 1
    return least


def _data(fd: int, offset: int, size: int) -> int:
    """Return the first offset at or after *offset* that holds data; *size* if only a hole follows."""
    if offset >= size:
        return offset
    try:
        return os.lseek(fd, offset, os.SEEK_DATA)
    except OSError as error:
        if error.errno == errno.ENXIO:
            return size
        return offset  # a file system without holes


def _punch(fd: int, offset: int, length: int) -> bool:
    """Free the disk blocks of a part of the file; return whether the file system supports that."""
    libc = ctypes.CDLL(None, use_errno=True)
    fallocate = libc.fallocate64 if hasattr(libc, "fallocate64") else libc.fallocate  # a 32-bit libc has both
    arguments = ctypes.c_int(fd), ctypes.c_int(PUNCH_HOLE_KEEP_SIZE), ctypes.c_int64(offset), ctypes.c_int64(length)
    return int(fallocate(*arguments)) == 0
