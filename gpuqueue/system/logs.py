"""Reading a log that is still being written, and out of whose middle a part may have been taken."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

from gpuqueue.errors import Refused, Unreadable
from gpuqueue.system.safe_open import open_regular

#: Most of a log that is read at once.
CHUNK_BYTES = 256 * 1024
#: The files of a run: what it wrote, and standard error where that is kept apart.
LOG, STDERR = LOGS = ("log", "stderr")
#: Beside them, while a job with a terminal runs that is typed on: the socket by which one does.
TTY = "tty"
#: Behind the name of either: the file that tells when it was how long (see :mod:`workers.shim.log`).
TIMES = ".times"
#: Most of that file that is read, in bytes; and how far before it a line's beginning is looked for.
MOST_TIMES_BYTES = 64 * 1024 * 1024
MOST_LINE_BYTES = 64 * 1024


class LogTail:
    """Gives each byte of a job's log once, also when a new run goes on in another file.

    *stream* is the file beside the log that is read in its place: STDERR is standard error, where that is kept apart.
    """

    def __init__(self, stream: str = LOG) -> None:
        #: Where the run's log lies, whatever stream of it is read.
        self.path: Path | None = None
        self._stream = stream
        self._offset = 0

    def turn_to(self, path: Path | None) -> None:
        """Read on in *path*: from its beginning, if it is another file than before."""
        if path != self.path:
            self.path, self._offset = path, 0

    def rest(self) -> Iterator[bytes]:
        """Yield what was written since the last time, up to the end as it is now: a job may write faster than we read.

        What is gone by now is told in a line of our own.

        Raises:
            Refused: the log belongs to somebody else, or is none.

        """
        if self.path is None:
            return
        try:
            with os.fdopen(open_regular(self._file(self.path)), "rb", buffering=0) as log:
                yield from self._rest(log.fileno())
        except FileNotFoundError:
            return  # the run has written nothing yet
        except PermissionError:
            raise Refused(f"you may not read {self.path}: it belongs to the account that runs the jobs") from None
        except (OSError, Unreadable) as error:
            why = getattr(error, "strerror", None) or error
            raise Refused(f"the log {self.path} cannot be read: {why}. Has the job put something else there?") from None

    def skip_to_last(self, lines: int) -> None:
        """Leave out what is there now, but for its last *lines* lines, and never go back behind what was cut out.

        What cannot be read is left to :meth:`rest`, which says why.
        """
        if self.path is not None:
            path = self._file(self.path)
            with contextlib.suppress(OSError, Unreadable), os.fdopen(open_regular(path), "rb", buffering=0) as log:
                self._offset = _begin_of_last(log.fileno(), lines)

    def skip_to_time(self, since: datetime) -> bool:
        """Leave out what was written before *since*, to within a second; return whether it is known what that is.

        A line that was half written then is given whole.
        """
        if self.path is None:
            return True  # it has not run yet: all is to come
        path = self._file(self.path)
        offset = _size_at(path.with_name(path.name + TIMES), since.timestamp())
        if offset is None:
            return not _exists(path)
        with contextlib.suppress(OSError, Unreadable), os.fdopen(open_regular(path), "rb", buffering=0) as log:
            self._offset = _begin_of_line(log.fileno(), offset)
        return True

    def _file(self, path: Path) -> Path:
        return path if self._stream == LOG else path.with_name(self._stream)

    def _rest(self, log: int) -> Iterator[bytes]:
        size, came_from = os.fstat(log).st_size, self._offset
        if size < came_from:  # cut back, where the file system knows no holes
            self._offset = size
            yield b"\ngpuqueue: the log was cut here, and goes on below\n"
        while chunk := os.pread(log, max(0, min(CHUNK_BYTES, size - self._offset)), self._offset):
            kept = chunk[: _hole(log, self._offset) - self._offset]
            if kept:
                self._offset += len(kept)
                yield kept
                continue
            end = _data(log, self._offset)
            if end is None:
                return
            if 0 < self._offset == came_from:  # else the log's own line about it has just been read
                yield b"\ngpuqueue: %d bytes were left out before they could be shown\n" % (end - self._offset)
            self._offset = end


def last_bytes(path: Path, most: int) -> bytes:
    """Return at most the last *most* bytes of a log, without its holes; empty if it cannot be read."""
    try:
        with os.fdopen(open_regular(path), "rb", buffering=0) as file:
            log = file.fileno()
            offset = max(0, os.fstat(log).st_size - most)
            found = bytearray()
            while chunk := os.pread(log, CHUNK_BYTES, offset):
                kept = chunk[: _hole(log, offset) - offset]
                found += kept
                end = offset + len(kept) if kept else _data(log, offset)
                if end is None:
                    break
                offset = end
            return bytes(found)
    except (OSError, Unreadable):
        return b""


def _exists(path: Path) -> bool:
    return os.path.lexists(path)


def _size_at(times: Path, since_s: float) -> int | None:
    """Return how long a log was at *since_s*, seconds since 1970, by what *times* says; None if it says nothing."""
    try:
        with os.fdopen(open_regular(times), "rb") as file:
            lines = file.read(MOST_TIMES_BYTES).split(b"\n")
    except (OSError, Unreadable):
        return None
    size, known = 0, False
    for line in lines:
        at, _, length = line.partition(b" ")
        try:
            at_s, now = float(at), int(length)
        except ValueError:  # the last line, half written; or the job has written there
            continue
        known = True
        if at_s > since_s:
            return min(size, now)  # it may have been cut back meanwhile: what is left is all new
        size = now
    return size if known else None


def _begin_of_line(log: int, offset: int) -> int:
    """Return where the line begins that the byte at *offset* stands in, if that is not far."""
    offset = min(offset, os.fstat(log).st_size)
    begin = max(0, offset - MOST_LINE_BYTES)
    before = os.pread(log, offset - begin, begin)
    at = before.rfind(b"\n")
    if at >= 0:
        return begin + at + 1
    return offset if begin else 0


def _begin_of_last(log: int, lines: int) -> int:
    """Return where the last *lines* lines of a log begin; one that is not ended yet counts as one."""
    size = end = os.fstat(log).st_size
    missing = lines
    while end > 0 and missing > 0:
        wanted = max(0, end - CHUNK_BYTES)
        begin = _data(log, wanted)
        if begin is None or begin >= end:
            break
        chunk = os.pread(log, end - begin, begin)
        at = len(chunk)
        while (at := chunk.rfind(b"\n", 0, at)) >= 0:
            if begin + at + 1 < size:
                missing -= 1
            if not missing:
                return begin + at + 1
        end = begin
        if begin > wanted:  # a hole is before it
            break
    return end


def _hole(log: int, offset: int) -> int:
    """Return where the next hole begins: at *offset* itself, if that is in one.

    Asked after reading, since holes only ever come: whatever was read before the answer was there.
    """
    try:
        return os.lseek(log, offset, os.SEEK_HOLE)
    except OSError as error:
        if error.errno in {errno.ENXIO, errno.EINVAL}:  # cut meanwhile, or a file system that knows no holes
            return offset + CHUNK_BYTES
        raise


def _data(log: int, offset: int) -> int | None:
    """Return where data begins again behind *offset*, or None if there is nothing but a hole."""
    try:
        return os.lseek(log, offset, os.SEEK_DATA)
    except OSError as error:
        if error.errno == errno.ENXIO:
            return None
        raise
