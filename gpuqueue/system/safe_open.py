"""Opens files that a job could have replaced, so that they cannot block, overload or mislead the reader.

A pipe without a writer would block forever, ``/dev/zero`` never ends, and a file may be of any size. A link would show
a file that the reader may read and the job may not, for example to an administrator who looks at a job's log.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

from gpuqueue.errors import Unreadable

#: Most bytes of a file in the run directory. The largest ones, a claim or the meters of many devices, have some 100 kB.
MOST_BYTES = 8 * 2**20
CHUNK_BYTES = 2**20


def open_regular(path: Path | str) -> int:
    """Return a file descriptor for reading the regular file *path*. The caller closes it.

    Neither the file nor its directory may be a symbolic link, and both must have the same owner. Parents may be links.

    Raises:
        OSError: the file does not exist or cannot be opened now.
        Unreadable: *path* is no regular file, or not a file of its directory's owner.

    """
    parent, name = os.path.split(path)
    folder = os.open(parent or ".", os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        owner = os.fstat(folder).st_uid
        fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise Unreadable(f"{name} is a symbolic link") from None
        raise
    finally:
        os.close(folder)
    about = os.fstat(fd)
    if stat.S_ISREG(about.st_mode) and about.st_uid == owner:
        return fd
    os.close(fd)
    if stat.S_ISREG(about.st_mode):
        raise Unreadable(f"{name} belongs to another account than its directory")
    raise Unreadable(f"{name} is no file")


def is_regular(path: Path) -> bool:
    """Return whether *path* is a regular file now, and neither a link nor anything else."""
    try:
        return stat.S_ISREG(path.lstat().st_mode)
    except OSError:
        return False


def read_small(path: Path | str, most_bytes: int = MOST_BYTES) -> bytes:
    """Return the content of the file *path*.

    Raises:
        OSError: the file does not exist or cannot be read now.
        Unreadable: *path* is no regular file, or it is larger than *most_bytes*.

    """
    fd = open_regular(path)
    try:
        content = b""
        while part := os.read(fd, min(most_bytes + 1 - len(content), CHUNK_BYTES)):
            content += part
            if len(content) > most_bytes:
                raise Unreadable(f"{Path(path).name} is larger than {most_bytes} bytes")
        return content
    finally:
        os.close(fd)
