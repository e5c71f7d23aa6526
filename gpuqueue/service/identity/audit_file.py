"""The files of the audit journal: one JSON line for each entry, appended with one write.

A file belongs to the process that holds its lock. The files of a process that has ended are free, and the next drain
takes them. docs/internals/adr says why there are files at all.
"""

from __future__ import annotations

import errno
import fcntl
import os
import secrets
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

_SUFFIX = ".jsonl"
#: Longest line that is read, in bytes. A longer line is damaged.
_MOST_LINE_BYTES = 1024 * 1024


class AuditFile:
    """One file of the journal, open for appending and locked."""

    def __init__(self, directory: Path) -> None:
        """Make a new file in *directory*. Its name begins with the time, so that names are in the order of making.

        Raises:
            OSError: it cannot be made.

        """
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.path, self._fd = _new_file(directory)
        self.size_bytes = 0

    def append(self, line: str) -> None:
        """Append *line*. It is whole in the file, or not at all.

        Raises:
            OSError: it cannot be written.

        """
        content = line.encode("ascii") + b"\n"
        written = os.write(self._fd, content)
        if written < len(content):  # the disk is full: take back what is there
            os.ftruncate(self._fd, self.size_bytes)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self.size_bytes += written

    def close(self) -> None:
        """Close the file, which frees its lock. An empty file is deleted."""
        if not self.size_bytes:
            self.path.unlink(missing_ok=True)
        os.close(self._fd)


def _new_file(directory: Path) -> tuple[Path, int]:
    """Make a file and lock it. A drain may lock it first, and then deletes it: another file is made."""
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
    while True:
        path = directory / f"{time.time_ns():020d}-{secrets.token_hex(4)}{_SUFFIX}"
        fd = os.open(path, flags, 0o600)
        with suppress(BlockingIOError):
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.fstat(fd).st_nlink:
                return path, fd
        os.close(fd)


def free_files(directory: Path) -> Iterator[tuple[Path, int]]:
    """Yield the files of *directory* that no process writes to, oldest first, each with an open descriptor.

    The file is locked while the descriptor is open. The caller closes it, and deletes the file when it is read.
    """
    for path in sorted(directory.glob(f"*{_SUFFIX}")):
        try:
            fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except FileNotFoundError:  # another process has drained it
            continue
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            continue
        if os.fstat(fd).st_nlink:
            yield path, fd
        else:
            os.close(fd)


def lines_of(fd: int) -> Iterator[bytes]:
    """Yield the lines of an open file of the journal."""
    with os.fdopen(os.dup(fd), "rb") as file:
        while line := file.readline(_MOST_LINE_BYTES):
            yield line
