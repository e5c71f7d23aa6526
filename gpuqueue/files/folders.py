"""Opens files and directories so that no link below a root is ever followed. Standard library only.

Between a check and an open, another process may replace a directory by a link. A directory that is opened by the
descriptor of its parent, without following links, is the one that was meant. Files are opened without
blocking, because a pipe may be in the place of one.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat

#: Bytes that are read and written at once.
CHUNK_BYTES = 2**20
#: Errors of a path that is gone: it was deleted, or something else is in its place, such as a link.
GONE = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENXIO})
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
#: ``O_PATH`` also opens a directory without read permission. Not every system has ``O_PATH``.
_PATH_ONLY = getattr(os, "O_PATH", os.O_RDONLY)
_FOLDER = _PATH_ONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class Folders:
    """The directories below a root. The root and the directories of the last path stay open until ``close``."""

    def __init__(self, root: str | int, *, make: bool = False) -> None:
        """Open the directory *root*, whose own path may have links, or which is already open.

        With *make*, missing directories are made.
        """
        self._make = make
        self._open: list[tuple[str, int]] = []
        path, parent = (root, None) if isinstance(root, str) else (".", root)
        self._root = os.open(path, _PATH_ONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=parent)

    def close(self) -> None:
        """Close all directories."""
        self._keep(0)
        os.close(self._root)

    def of(self, path: str) -> tuple[int, str]:
        """Return the open directory of *path* and its name there. The directory stays open until the next call.

        Raises:
            OSError: a directory is missing, or is a link or no directory.

        """
        *parts, name = path.split("/")
        same = 0
        for part, (known, _) in zip(parts, self._open, strict=False):
            if part != known:
                break
            same += 1
        self._keep(same)
        for part in parts[same:]:
            self._enter(part)
        return self._last(), name

    def _enter(self, part: str) -> None:
        if self._make:
            with contextlib.suppress(FileExistsError):
                os.mkdir(part, 0o755, dir_fd=self._last())
        self._open.append((part, os.open(part, _FOLDER, dir_fd=self._last())))

    def _last(self) -> int:
        return self._open[-1][1] if self._open else self._root

    def _keep(self, count: int) -> None:
        while len(self._open) > count:
            os.close(self._open.pop()[1])


def open_file(name: str, folder: int) -> tuple[int, os.stat_result] | None:
    """Open the regular file *name* in the open directory *folder*; None if it is gone or is no regular file.

    Raises:
        OSError: it cannot be read.

    """
    try:
        fd = os.open(name, _READ, dir_fd=folder)
    except OSError as error:
        if error.errno in GONE:
            return None
        raise
    about = os.fstat(fd)
    if stat.S_ISREG(about.st_mode):
        return fd, about
    os.close(fd)
    return None


def open_folder(name: str, folder: int) -> int | None:
    """Open the directory *name* in the open directory *folder*; None if it is gone or is no directory.

    Raises:
        OSError: it cannot be read.

    """
    try:
        return os.open(name, _READ | os.O_DIRECTORY, dir_fd=folder)
    except OSError as error:
        if error.errno in GONE:
            return None
        raise


def read_exactly(fd: int, size_bytes: int) -> bytes:
    """Return the next *size_bytes* of an open file, or less if it ends before."""
    text = os.read(fd, size_bytes)
    while len(text) < size_bytes and (more := os.read(fd, size_bytes - len(text))):
        text += more
    return text


def is_executable(about: os.stat_result) -> bool:
    """Return whether the owner may execute the file."""
    return bool(about.st_mode & stat.S_IXUSR)


def write_all(fd: int, content: bytes | bytearray) -> None:
    """Write all of *content* to an open file."""
    rest = memoryview(content)
    while rest:
        rest = rest[os.write(fd, rest) :]
