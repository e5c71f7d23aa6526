"""Reads the files of a directory that is being taken, without following a link and without waiting for a pipe."""

from __future__ import annotations

import errno
import hashlib
import os
import stat
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from gpuqueue.files.errors import SnapshotRefused
from gpuqueue.files.folders import CHUNK_BYTES, Folders
from gpuqueue.files.limits import IGNORE_FILE, ignore_line
from gpuqueue.files.names import MAX_DEPTH, quoted

#: Errors of a path that is not there: it or a directory was deleted, or a directory is now a file or a link.
_ABSENT = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP})
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_LIST = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
#: Largest ignore file, in bytes.
_MOST_RULES_BYTES = 2**20


class Tree:
    """The files below the directory *root*. Close it after use; paths are relative to the root."""

    def __init__(self, root: Path) -> None:
        self.root = root
        try:
            self._folders = Folders(str(root))
        except OSError as error:
            raise SnapshotRefused(f"cannot take a snapshot of {quoted(str(root))}: {error.strerror}") from None

    def close(self) -> None:
        """Close all directories."""
        self._folders.close()

    def stat(self, path: str) -> os.stat_result | None:
        """Return the status of *path* itself, or None if it is not there or is below a link.

        Raises:
            SnapshotRefused: its directory cannot be entered, or it is too deep in the tree.

        """
        if path.count("/") >= MAX_DEPTH:
            raise SnapshotRefused(f"{quoted(path)} has more than {MAX_DEPTH} parts: add it to {IGNORE_FILE}")
        try:
            folder, name = self._folders.of(path)
            return os.stat(name, dir_fd=folder, follow_symlinks=False)
        except OSError as error:
            if error.errno in _ABSENT:
                return None
            raise unreadable(path, error) from None

    def listed(self, path: str) -> list[str]:
        """Return the sorted names in the directory *path*, which is "" for the root.

        Raises:
            SnapshotRefused: it cannot be read.

        """
        try:
            folder, name = self._folders.of(path)
            fd = os.open(name or ".", _LIST, dir_fd=folder)
            try:
                return sorted(os.listdir(fd))
            finally:
                os.close(fd)
        except OSError as error:
            raise unreadable(path or ".", error) from None

    @contextmanager
    def opened(self, path: str) -> Iterator[tuple[int, os.stat_result]]:
        """Open the regular file *path* for reading; yield its descriptor and status.

        Raises:
            SnapshotRefused: it cannot be read, or is no regular file any more.

        """
        try:
            folder, name = self._folders.of(path)
            fd = os.open(name, _READ, dir_fd=folder)
        except OSError as error:
            raise unreadable(path, error) from None
        try:
            about = os.fstat(fd)
            if not stat.S_ISREG(about.st_mode):
                raise SnapshotRefused(f"{quoted(path)} is no regular file any more: submit again")
            yield fd, about
        finally:
            os.close(fd)

    def target(self, path: str) -> str:
        """Return the target of the link *path*.

        Raises:
            SnapshotRefused: it cannot be read.

        """
        try:
            folder, name = self._folders.of(path)
            return os.readlink(name, dir_fd=folder)
        except OSError as error:
            raise unreadable(path, error) from None

    def ignore_lines(self, path: str) -> list[str]:
        """Return the lines of the ignore file *path*, none if it is not there.

        Raises:
            SnapshotRefused: the file cannot be read, is a link, or is larger than 1 MiB.

        """
        about = self.stat(path)
        if about is None:
            return []
        if not stat.S_ISREG(about.st_mode) or about.st_size > _MOST_RULES_BYTES:
            raise SnapshotRefused(f"{quoted(path)} must be a regular file of at most {_MOST_RULES_BYTES} bytes")
        with self.opened(path) as (fd, _):
            text = os.read(fd, _MOST_RULES_BYTES)
        return os.fsdecode(text.removeprefix(b"\xef\xbb\xbf")).replace("\r\n", "\n").split("\n")


def read_again(root: Path, path: str, sha256: str) -> Iterator[bytes]:
    """Yield the content of the file *path* below *root* for sending.

    Raises:
        SnapshotRefused: the file cannot be read, or its content no longer has the hash *sha256*.

    """
    digest = hashlib.sha256()
    with closing(Tree(root)) as tree, tree.opened(path) as (fd, _):
        while part := os.read(fd, CHUNK_BYTES):
            digest.update(part)
            yield part
    if digest.hexdigest() != sha256:
        raise SnapshotRefused(f"{quoted(path)} has changed since the snapshot was taken: submit again")


def unreadable(path: str, error: OSError) -> SnapshotRefused:
    """Return the error for *path*, which cannot be read."""
    return SnapshotRefused(
        f"cannot read {quoted(path)}: {error.strerror}. Make it readable, or leave it out: add {ignore_line(path)} to "
        f"{IGNORE_FILE}"
    )
