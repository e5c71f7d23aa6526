"""Replaces a file as a whole: a failure leaves the old file unchanged."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path


def put_whole(path: Path, text: str) -> None:
    """Write *text* into *path*, or leave it unchanged. A pipe or a device is written to directly.

    Raises:
        OSError: it cannot be written.
        UnicodeEncodeError: the text has characters that UTF-8 cannot encode.
    """
    content = text.encode("utf-8")
    if path.exists() and not path.is_file():
        path.write_bytes(content)
        return
    target = path.resolve()  # a link stays a link
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
    """Check without writing whether :func:`put_whole` may write *path*, as far as possible.

    Raises:
        OSError: it cannot be written.
    """
    is_there = True
    try:
        path.stat()  # distinguishes a cycle of links from a free name; other calls may confuse them
    except FileNotFoundError:
        is_there = False
    if is_there:
        if not path.is_fifo():  # opening a pipe would wait for its reader
            number = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
            try:
                os.write(number, b"")  # a full device raises an error
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
