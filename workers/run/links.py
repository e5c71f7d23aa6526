"""The links by which a worker finds runs of its host without a search: the unsettled runs, and the reported ones.

Only the name of a link is used, ``<job>.<token>``. Paths are strings, because creating a Path is slower than the call.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path

#: Folder below the runs with a link to the claim of each unsettled run.
LIVE = "live"
#: Folder below the runs with a link for each run whose end was reported to the store and is not in the history yet.
REPORTED = "reported"

#: Error numbers of a file system that does not support, or does not allow, a second name for a file.
_NO_LINKS = frozenset({errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK})


def add(runs: Path, name: str, file: str) -> None:
    """Create the link of an unsettled run to its *file*.

    Raises:
        OSError: The link cannot be created.

    """
    _within(runs / LIVE, lambda: _second_name(file, f"{runs}/{LIVE}/{name}"))


def report(runs: Path, name: str) -> None:
    """Move the link of a run from ``LIVE`` to ``REPORTED``, unless it was moved before.

    Raises:
        OSError: The link cannot be moved.

    """
    with contextlib.suppress(FileNotFoundError):
        _within(runs / REPORTED, lambda: os.rename(f"{runs}/{LIVE}/{name}", f"{runs}/{REPORTED}/{name}"))  # noqa: PTH104


def remove(runs: Path, name: str) -> None:
    """Remove the links of a run, and ignore errors."""
    for folder in (LIVE, REPORTED):
        with contextlib.suppress(OSError):
            os.unlink(f"{runs}/{folder}/{name}")  # noqa: PTH108


def names(runs: Path, folder: str) -> Iterator[tuple[str, str]]:
    """Yield the job and the token of each run with a link in *folder*."""
    try:
        found = sorted(os.listdir(f"{runs}/{folder}"))  # noqa: PTH208
    except (FileNotFoundError, NotADirectoryError):
        return
    for name in found:
        job_id, _, token = name.partition(".")
        yield job_id, token


def _second_name(file: str, name: str) -> None:
    """Create a hard link *name* to *file*, or a symbolic link if the file system has no hard links.

    A hard link needs no inode. The search for a free inode is most of the cost of a small file when many files come
    and go, because ext4 skips inodes that were freed in the last minutes.
    """
    try:
        os.link(file, name)
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        os.symlink(file, name)  # noqa: PTH211 - no Path, for speed


def _within(directory: Path, act: Callable[[], object]) -> None:
    """Call *act*, which needs *directory*. Create the directory only if that fails, to save a system call per job."""
    try:
        act()
    except FileNotFoundError:
        directory.mkdir(exist_ok=True, mode=0o700)
        act()
