"""Opens files of a directory that another process may change at any time. Standard library only."""

from __future__ import annotations

import errno
import os
import stat

#: Bytes that are read and written at once.
CHUNK_BYTES = 2**18
#: Errors of a path that is gone: it was deleted, or something else is in its place, such as a link.
GONE = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENXIO})
#: Non-blocking, because a pipe may be in the place of a file.
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY


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
