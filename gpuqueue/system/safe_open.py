"""Opens files that a job could have replaced, so that they cannot block or overload the reader.

A pipe without a writer would block forever, ``/dev/zero`` never ends, and a file may be of any size.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from gpuqueue.errors import Unreadable

#: Most bytes of a file in the run directory. The largest ones, a claim or the meters of many devices, have some 100 kB.
MOST_BYTES = 8 * 2**20
CHUNK_BYTES = 2**20


def open_regular(path: Path | str) -> int:
    """Return a file descriptor for reading the regular file *path*. The caller closes it.

    Raises:
        OSError: the file does not exist or cannot be opened now.
        Unreadable: *path* is a pipe, a directory or a device.

    """
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if stat.S_ISREG(os.fstat(fd).st_mode):
        return fd
    os.close(fd)
    raise Unreadable(f"{Path(path).name} is no file")


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
