"""Atomic writes and safe reads of the files of a run directory, for the worker.

Unless jobs run as their submitters, the job has the worker's account and may have replaced any of these files.
:mod:`workers.shim.files` is the shim's counterpart.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import logging
import os
import re
import threading
from functools import lru_cache
from pathlib import Path

from gpuqueue.errors import Unreadable
from gpuqueue.system.safe_open import read_small
from gpuqueue.text.json_fields import Fields, loaded

log = logging.getLogger(__name__)

#: Names of the files that a settlement removes, complete or half-written. Files of the job itself stay.
_OURS = re.compile(
    r"(claim|job|spec|heartbeat|cancel|pid|start|exit|lock|meters|preempt\.json|tty|bundle|log_limit|time_limit|progress"
    r"|figures|whole\.json)"
    r"|\.(claim|job|spec|cancel|pid|start|exit|meters|preempt\.json|log_limit|time_limit|progress|figures"
    r"|whole\.json)(\.\d+\.\d+)?"
)
#: Permanent errors of opening a file, because something else is in its place: a link to itself, a socket, an unreadable
#: file. All other errors may be temporary.
_NO_FILE_OF_OURS = frozenset({errno.ELOOP, errno.ENXIO, errno.ENODEV, errno.EACCES, errno.EPERM})


class FixedFile:
    """A small file that is written in place, with a fixed length, and stays open. Thread-safe.

    So it can be written on a full disk and without free descriptors.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._fd: int | None = None
        self._lock = threading.Lock()

    def write(self, text: str) -> None:
        """Write *text*. Raises OSError if the file cannot be written."""
        with self._lock:
            if self._fd is None:
                # Non-blocking, because a job may have put a pipe there, and one run must not delay all heartbeats.
                flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK
                self._fd = os.open(self._path, flags, 0o600)
            os.pwrite(self._fd, text.encode("ascii"), 0)

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            if self._fd is not None:
                os.close(self._fd)
                self._fd = None


def put(path: Path, text: str, mode: int = 0o600) -> None:
    """Write a file atomically, by default readable only by its owner.

    Raises:
        OSError: The file cannot be written. The old file is unchanged.

    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}")
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
    try:
        with os.fdopen(fd, "w", encoding="utf-8") as file:
            file.write(text)  # no fsync: after a power cut the shim is gone too, and damaged files are detected
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
    temporary.replace(path)


def read(path: Path) -> str | None:
    """Return the text of a file, or None if there is no such file.

    Raises:
        OSError: The file cannot be read now, and may exist. The distinction matters: a missing ``exit`` means a lost
            run.
        Unreadable: The path has something that neither a worker nor a shim has written.

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
    """Return the JSON object in a file, or None if there is no such file.

    Raises:
        OSError: As for :func:`read`.
        Unreadable: As for :func:`read`, or the file is not a JSON object.

    """
    text = read(path)
    return None if text is None else loaded(text, f"the file {path.name} of the run")


def remove(path: str) -> None:
    """Remove a file, and ignore errors."""
    with contextlib.suppress(OSError):
        os.unlink(path)  # noqa: PTH108 - a Path is slower to create than a file to remove


def lock(path: str) -> int | None:
    """Lock a file, which is created if there is none, and return its descriptor; None while another process holds it.

    Raises:
        OSError: The file cannot be opened or locked.

    """
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(fd)
        if error.errno in {errno.EWOULDBLOCK, errno.EACCES}:
            return None
        raise
    return fd


@lru_cache(maxsize=1024)
def warn_once(path: Path, words: str) -> None:
    """Log once that a file is damaged. Each reading of the device reads the file again."""
    log.warning("%s: %s", path, words)


def is_ours(name: str) -> bool:
    """Return whether a worker or a shim writes files of this name."""
    return _OURS.fullmatch(name) is not None
