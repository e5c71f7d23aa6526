"""One file on its way into a directory: compared with the file that is there, and written once they differ.

So a file that is there already costs no writing and no space.
"""

from __future__ import annotations

import os
from collections.abc import Callable

_COPY_BYTES = 2**20


class Arrival:
    """Takes the content of a file, chunk by chunk.

    *there* is the open file to compare with, which has the same size, or None. *start* opens the new file, and may
    refuse that. Both files are closed by ``close``.
    """

    def __init__(self, there: int | None, start: Callable[[], int]) -> None:
        self._there, self._start = there, start
        self._part: int | None = None
        self._same_bytes = 0
        if there is None:
            self._part = start()

    @property
    def is_there(self) -> bool:
        """Return whether all that came is the content of the file that is there."""
        return self._part is None

    def take(self, chunk: bytes) -> None:
        """Compare or write *chunk*.

        Raises:
            OSError: the file cannot be read or written.

        """
        if self._part is None and self._there is not None:
            if _read(self._there, len(chunk)) == chunk:
                self._same_bytes += len(chunk)
                return
            self._part = self._start()
            self._copy(self._there, self._part)
        if self._part is not None:
            _write(self._part, chunk)

    def close(self) -> None:
        """Close both files."""
        for fd in (self._there, self._part):
            if fd is not None:
                os.close(fd)

    def _copy(self, there: int, part: int) -> None:
        """Copy what was the same until now."""
        os.lseek(there, 0, os.SEEK_SET)
        while self._same_bytes:
            same = _read(there, min(self._same_bytes, _COPY_BYTES))
            if not same:
                raise OSError(0, "it was cut while it was read")
            self._same_bytes -= len(same)
            _write(part, same)


def _read(fd: int, size_bytes: int) -> bytes:
    """Return the next *size_bytes* of a file, fewer at its end."""
    found = bytearray()
    while len(found) < size_bytes and (more := os.read(fd, size_bytes - len(found))):
        found += more
    return bytes(found)


def _write(fd: int, content: bytes) -> None:
    rest = memoryview(content)
    while rest:
        rest = rest[os.write(fd, rest) :]
