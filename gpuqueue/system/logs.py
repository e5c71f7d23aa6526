"""Reads logs that are still being written. A log may have a hole in its middle, if it exceeded its size limit."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path

from gpuqueue.errors import Refused, Unreadable
from gpuqueue.model.log_matches import LogMatch, LogMatches
from gpuqueue.system.safe_open import open_regular
from gpuqueue.text.sanitize import ESCAPES

#: Most bytes of a log to read at once.
CHUNK_BYTES = 256 * 1024
#: Names of the log files of a run: its output, and its standard error if that is separate.
LOG, STDERR = LOGS = ("log", "stderr")
#: Name of the socket next to them, by which attached terminals send input to a running job.
TTY = "tty"
#: Suffix of the file that records the size of a log over time (see :mod:`workers.shim.log`).
TIMES = ".times"
#: Most bytes to read of such a file, and most bytes to search backwards for the beginning of a line of a log.
MOST_TIMES_BYTES = 64 * 1024 * 1024
MOST_LINE_BYTES = 64 * 1024


class LogTail:
    """Yields each byte of a job's log once, even if a new run continues in another file.

    *stream* is the name of the file to read: LOG, or STDERR for a separate standard error.
    """

    def __init__(self, stream: str = LOG, warn: Callable[[str], None] | None = None) -> None:
        """Begin without a log. *warn* gets warnings about its content, each once."""
        self._warn, self._warned = warn, ""
        #: Path of the run's log, even if another stream is read.
        self.path: Path | None = None
        self._stream = stream
        self._offset = 0

    def turn_to(self, path: Path | None) -> None:
        """Continue in *path*. If it differs from the current path, start at its beginning."""
        if path != self.path:
            self.path, self._offset = path, 0

    def resume(self, path: Path, offset: int) -> None:
        """Continue in *path* at *offset*, which an earlier tail has reached."""
        self.path, self._offset = path, offset

    def warn(self, text: str) -> None:
        """Warn that the newest part of the log may be missing, once for each *text*."""
        if self._warn is not None and text != self._warned:
            self._warn(text)
        self._warned = text

    @property
    def offset(self) -> int:
        """Return how far the current file was read, in bytes."""
        return self._offset

    def rest(self) -> Iterator[bytes]:
        """Yield the bytes written since the last call, up to the current end: a job may write faster than we read.

        A line of gpuqueue's own marks bytes that were removed before they could be read.

        Raises:
            Refused: the log belongs to another account, is no regular file, or cannot be read.

        """
        if self.path is None:
            return
        try:
            with os.fdopen(open_regular(self._file(self.path)), "rb", buffering=0) as log:
                yield from self._rest(log.fileno())
        except FileNotFoundError:
            return  # the run has no output yet
        except PermissionError:
            raise Refused(f"you may not read {self.path}: it belongs to the account that runs the jobs") from None
        except (OSError, Unreadable) as error:
            why = getattr(error, "strerror", None) or error
            raise Refused(f"the log {self.path} cannot be read: {why}. Has the job put something else there?") from None

    def skip_to_last(self, lines: int) -> None:
        """Skip the current content except for its last *lines* lines, and at least up to the end of the last hole.

        A read error is ignored here, since :meth:`rest` reports it.
        """
        if self.path is not None:
            path = self._file(self.path)
            with contextlib.suppress(OSError, Unreadable), os.fdopen(open_regular(path), "rb", buffering=0) as log:
                self._offset = _begin_of_last(log.fileno(), lines)

    def skip_to_time(self, since: datetime) -> bool:
        """Skip the content written before *since*, to within a second. Return whether the position is known.

        A line that was partly written at that time is data whole.
        """
        if self.path is None:
            return True  # the job has not run yet
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
        if size < came_from:  # truncated, on a file system without holes
            self._offset = size
            yield b"\ngpuqueue: the log was cut here, and goes on below\n"
        while chunk := os.pread(log, max(0, min(CHUNK_BYTES, size - self._offset)), self._offset):
            data = chunk[: _hole(log, self._offset) - self._offset]
            if data:
                self._offset += len(data)
                yield data
                continue
            end = _data(log, self._offset)
            if end is None:
                return
            if 0 < self._offset == came_from:  # else the log's own line about the hole was just read
                yield b"\ngpuqueue: %d bytes were left out before they could be shown\n" % (end - self._offset)
            self._offset = end


def is_log_of(path: Path, job_id: int, token: str) -> bool:
    """Return whether a worker makes the log of the run *token* at such a *path*: in a directory of the run.

    Paths come from the store, which every worker host can write to. Who reads more than such a host opens no other.
    """
    return ".." not in path.parts and path.parts[-3:] == (str(job_id), token, LOG)


def last_bytes(path: Path, most: int) -> bytes:
    """Return at most the last *most* bytes of a log, without its holes, or nothing if it cannot be read."""
    try:
        with os.fdopen(open_regular(path), "rb", buffering=0) as file:
            log = file.fileno()
            offset = max(0, os.fstat(log).st_size - most)
            found = bytearray()
            while chunk := os.pread(log, CHUNK_BYTES, offset):
                data = chunk[: _hole(log, offset) - offset]
                found += data
                end = offset + len(data) if data else _data(log, offset)
                if end is None:
                    break
                offset = end
            return bytes(found)
    except (OSError, Unreadable):
        return b""


def next_data(log: int, offset: int, most_bytes: int) -> tuple[int, bytes] | None:
    """Return the next data of the open file *log*: where it begins, at or after *offset*, and at most *most_bytes*.

    Return None if only a hole or the end of the file follows.

    Raises:
        OSError: the file cannot be read.

    """
    begin: int | None = offset
    while begin is not None and (chunk := os.pread(log, most_bytes, begin)):
        data = chunk[: _hole(log, begin) - begin]
        if data:
            return begin, data
        begin = _data(log, begin)
    return None


def has_hole(log: int, begin: int, end: int) -> bool:
    """Return whether bytes of the open file *log* from *begin* to *end* were removed, which leaves a hole."""
    return _hole(log, begin) < end


def _exists(path: Path) -> bool:
    return os.path.lexists(path)


def _size_at(times: Path, since_s: float) -> int | None:
    """Return the size of a log at *since_s*, seconds since 1970, from the file *times*, or None if it has no entry."""
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
        except ValueError:  # an incomplete last line, or the job has written to the file
            continue
        known = True
        if at_s > since_s:
            return min(size, now)  # after a truncation, all remaining content is newer
        size = now
    return size if known else None


def _begin_of_line(log: int, offset: int) -> int:
    """Return the beginning of the line at *offset*, or *offset* if the beginning is further than MOST_LINE_BYTES."""
    offset = min(offset, os.fstat(log).st_size)
    begin = max(0, offset - MOST_LINE_BYTES)
    before = os.pread(log, offset - begin, begin)
    at = before.rfind(b"\n")
    if at >= 0:
        return begin + at + 1
    return offset if begin else 0


def _begin_of_last(log: int, lines: int) -> int:
    """Return where the last *lines* lines of a log begin. An incomplete last line counts as one."""
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
    """Return where the next hole begins, which is *offset* if it is inside a hole.

    Call this after reading. Holes only grow, so the bytes before the returned offset were valid when they were read.
    """
    try:
        return os.lseek(log, offset, os.SEEK_HOLE)
    except OSError as error:
        if error.errno in {errno.ENXIO, errno.EINVAL}:  # truncated in the meantime, or a file system without holes
            return offset + CHUNK_BYTES
        raise


def _data(log: int, offset: int) -> int | None:
    """Return where the next data begins from *offset* on, or None if only a hole follows."""
    try:
        return os.lseek(log, offset, os.SEEK_DATA)
    except OSError as error:
        if error.errno == errno.ENXIO:
            return None
        raise


#: Most matches in one answer, most bytes that one search reads, and most characters of a line that an answer has.
MOST_MATCHES, MOST_BYTES, MOST_SHOWN = 100, 64 * 1024 * 1024, 300
#: Of a line without an end the last part of this size is searched.
_LINE_BYTES = 64 * 1024


def search(path: Path, stream: str, text: str, *, offset: int = 0, line: int = 1) -> LogMatches:
    """Return the next lines of a log that contain *text*, regardless of the case of letters.

    The search begins at *offset*, where the line with the number *line* begins. Colours and other escape sequences are
    left out. A progress bar, which writes many times into one line, matches once.

    Raises:
        Refused: the log cannot be read.

    """
    tail = LogTail(stream)
    tail.resume(path, offset)
    wanted, found, kept, begin = text.casefold(), list[LogMatch](), b"", offset
    for piece in tail.rest():
        at = tail.offset - len(piece)
        *lines, rest = piece.split(b"\n")
        for each in lines:
            begin = begin if kept else max(offset, at)
            if (shown := _matching(kept + each, wanted)) is not None:
                found.append(LogMatch(line=line, offset=begin, text=shown))
            kept, at, line = b"", at + len(each) + 1, line + 1
            if len(found) == MOST_MATCHES:
                return LogMatches(matches=tuple(found), next_offset=at, next_line=line, ended=False)
        begin = begin if kept else at
        kept = (kept + rest)[-_LINE_BYTES:]
        if tail.offset - offset >= MOST_BYTES:
            return LogMatches(matches=tuple(found), next_offset=begin, next_line=line, ended=False)
    if (shown := _matching(kept, wanted)) is not None:
        found.append(LogMatch(line=line, offset=begin, text=shown))
    return LogMatches(matches=tuple(found), next_offset=tail.offset, next_line=line, ended=True)


def _matching(content: bytes, wanted: str) -> str | None:
    """Return what to show of a line that contains *wanted*: the part around it. None if it does not contain it."""
    for part in reversed(content.rstrip(b"\r").split(b"\r")):  # the last state of a progress bar first
        shown = ESCAPES.sub("", part.decode(errors="replace"))
        at = shown.casefold().find(wanted)
        if at >= 0:
            begin = max(0, at - MOST_SHOWN // 3)
            return shown[begin : begin + MOST_SHOWN]
    return None
