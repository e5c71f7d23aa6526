"""A file that is replaced whole: what fails meanwhile leaves the old one as it was."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path


def put_whole(path: Path, text: str) -> None:
    """Write *text* into *path*, or leave that as it is. A pipe or a device is written into.

    Raises:
        OSError: it cannot be written.
        UnicodeEncodeError: the text has what no file can have.

    """
    content = text.encode("utf-8")
    if path.exists() and not path.is_file():
        path.write_bytes(content)
        return
    target = path.resolve()  # a link stays one
    number, beside = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
    temporary = Path(beside)
    try:
        with os.fdopen(number, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(number)
        if target.exists():
            shutil.copymode(target, temporary)
        else:
            temporary.chmod(0o666 & ~_umask())
        temporary.replace(target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def check_writable(path: Path) -> None:
    """Look whether :func:`put_whole` may write *path*, as far as that can be seen without writing. It stays as it is.

    Raises:
        OSError: it cannot be written.

    """
    is_there = True
    try:
        path.stat()  # which tells a circle of links from a name that is free: what else asks may take it for one
    except FileNotFoundError:
        is_there = False
    if is_there:
        if not path.is_fifo():  # to open one is to wait for its reader
            number = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
            try:
                os.write(number, b"")  # a device that is full says so
            finally:
                os.close(number)
        if not path.is_file():
            return
    with tempfile.TemporaryFile(dir=path.resolve().parent):
        pass


def _umask() -> int:
    """Return the umask of this process, which can only be read by setting it."""
    before = os.umask(0o077)
    os.umask(before)
    return before
