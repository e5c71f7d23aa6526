"""How the worker writes and reads a file of a run directory: whole or not at all, whatever stands in its place.

The job runs beside these files as the same account: it may have put anything there. The shim's end is
:mod:`workers.shim.files`.
"""

from __future__ import annotations

import errno
import os
import re
import threading
from pathlib import Path

from gpuqueue.errors import Unreadable
from gpuqueue.system.safe_open import read_small
from gpuqueue.text.json_fields import Fields, loaded

#: In the run directory once the commands at its job's end are begun: they run once at most (``after_end.py``).
BEGUN = "commands-begun"
#: What a settlement removes: the files of the run, whole or half-written. What the job itself has put there stays.
_OURS = re.compile(
    rf"(claim|job|spec|beat|cancel|pid|start|exit|lock|meters|preempt\.json|tty|{BEGUN})"
    r"|\.(claim|job|spec|cancel|pid|start|exit|meters|preempt\.json)(\.\d+\.\d+)?"
)
#: What opening a file fails with for good, because of what stands in its place: a link to itself, a socket, a file that
#: nobody may read. Whatever else it fails with may pass.
_NO_FILE_OF_OURS = frozenset({errno.ELOOP, errno.ENXIO, errno.ENODEV, errno.EACCES, errno.EPERM})


def put(path: Path, text: str) -> None:
    """Write a file that only its owner can read.

    Raises:
        OSError: it cannot be written; what stood there still does.

    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}")
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        with os.fdopen(fd, "w", encoding="utf-8") as file:
            file.write(text)  # not synced: after a power cut the shim is gone too, and a damaged file is noticed
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
    temporary.replace(path)


def read(path: Path) -> str | None:
    """Return what is in a file, or None if there is no such file.

    Raises:
        OSError: it is there, perhaps, and cannot be read now. That is not the same: an ``exit`` that is not there
            means a lost run.
        Unreadable: something is there that no worker and no shim has put there.

    """
    try:
        return read_small(path).decode("utf-8", errors="replace")
    except OSError as error:
        if error.errno in _NO_FILE_OF_OURS:
            raise Unreadable(f"{path.name} cannot be read: {error.strerror}") from error
        if error.errno not in {errno.ENOENT, errno.ENOTDIR}:
            raise
        return None


def read_fields(path: Path) -> Fields | None:
    """Return what a file holds, or None if there is no such file.

    Raises:
        OSError: as for :func:`read`.
        Unreadable: it is no JSON object.

    """
    text = read(path)
    return None if text is None else loaded(text, f"the file {path.name} of the run")


def is_ours(name: str) -> bool:
    """Return whether a worker or a shim writes a file of this name."""
    return _OURS.fullmatch(name) is not None
