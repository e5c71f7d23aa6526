"""Writes fetched files into a directory of the user, which may hold other files.

No name leads out of the directory: each directory below it is opened by its parent without following links. A file is
written below the directory ``.gpuqueue-fetch`` there and gets its name when it is whole, so that no half file ever has
its final name. The next fetch deletes what a killed one left.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial

from gpuqueue.errors import Refused
from gpuqueue.results.arrival import Arrival
from gpuqueue.snapshot.errors import FileDiffers, NoSuchName, NotWritable
from gpuqueue.snapshot.folders import Folders
from gpuqueue.snapshot.names import folded
from gpuqueue.text.sanitize import plain
from gpuqueue.text.units import format_bytes

#: The directory below the target for a file that is not whole yet, and its name there.
STAGING, _PART = ".gpuqueue-fetch", "part"
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
#: Errors of a name that this file system cannot have, and of a path below a file or a link.
_NO_NAME = frozenset({errno.ENAMETOOLONG, errno.EINVAL, errno.EILSEQ})
_NO_FOLDER = frozenset({errno.ENOTDIR, errno.ELOOP})
#: Errors of a file system without hard links, or without those of links.
_NO_LINKS = frozenset({errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK, errno.EXDEV})


class Target:
    """The directory *path*, which is made if it is missing. With *replace*, files with other content are replaced.

    One process at a time may use it, and closes it.

    Raises:
        NotWritable: it cannot be made or written.
        Refused: another fetch writes there.

    """

    def __init__(self, path: str, *, replace: bool) -> None:
        self._path, self._replace = path, replace
        with self._errors(""):
            os.makedirs(path, exist_ok=True)
            self._folders = Folders(path, make=True)
            try:
                self._staging = self._locked_staging()
            except BaseException:
                self._folders.close()
                raise
        self._clear()

    def close(self) -> None:
        """Delete what is not whole, and close all directories."""
        self._clear()
        with contextlib.suppress(OSError):
            folder, name = self._folders.of(STAGING)
            os.rmdir(name, dir_fd=folder)
        os.close(self._staging)
        self._folders.close()

    def put(self, path: str, size_bytes: int, chunks: Iterable[bytes], *, executable: bool) -> bool:
        """Write a file of *size_bytes*. Return False if it was there already with the same content.

        Raises:
            FileDiffers: it is there with another content, and must not be replaced.
            Refused: a directory has its name, or its path leads through a file or a link.
            NoSuchName: it cannot have this name here.
            NotWritable: the disk is full, or refuses.

        """
        with self._errors(path):
            folder, name = self._named(path)
            there = self._comparable(folder, name, path, size_bytes)
            mode = 0o755 if executable else 0o644
            arrival = Arrival(there, partial(self._start, path, size_bytes, mode, differs=there is not None))
            try:
                for chunk in chunks:
                    arrival.take(chunk)
                if not arrival.is_there:
                    self._take_name(folder, name, path)
            finally:
                arrival.close()
                self._clear()
        return not arrival.is_there

    def link(self, path: str, target: str) -> bool:
        """Make a link. Return False if it was there already. The rest is as for :meth:`put`."""
        with self._errors(path):
            folder, name = self._named(path)
            there = _status(folder, name)
            if there is not None:
                if stat.S_ISLNK(there.st_mode) and os.readlink(name, dir_fd=folder) == target:
                    return False
                self._must_replace(path, there)
            os.symlink(target, _PART, dir_fd=self._staging)
            try:
                self._take_name(folder, name, path)
            finally:
                self._clear()
        return True

    def leads_out(self, path: str) -> bool:
        """Return whether the link *path* leads out of the directory, also by way of links that were there before."""
        root = os.path.realpath(self._path)
        return os.path.commonpath([root, os.path.realpath(os.path.join(root, path))]) != root

    def remove(self, path: str) -> None:
        """Remove the link *path*."""
        with self._errors(path):
            folder, name = self._folders.of(path)
            os.unlink(name, dir_fd=folder)

    def _named(self, path: str) -> tuple[int, str]:
        """Return the open directory of *path*, which is made, and its name there."""
        if folded(path.partition("/")[0]) == STAGING:
            raise NoSuchName(f"is below {STAGING}, which gpuqueue uses itself")
        return self._folders.of(path)

    def _comparable(self, folder: int, name: str, path: str, size_bytes: int) -> int | None:
        """Return the file that is there, open for reading, if it has the same size and so may have the same content."""
        there = _status(folder, name)
        if there is None:
            return None
        if stat.S_ISREG(there.st_mode) and there.st_size == size_bytes:
            with contextlib.suppress(OSError):
                return os.open(name, _READ, dir_fd=folder)
        self._must_replace(path, there)
        return None

    def _must_replace(self, path: str, there: os.stat_result | None = None) -> None:
        shown = self._shown(path)
        if there is not None and stat.S_ISDIR(there.st_mode):
            raise Refused(f"{shown} is a directory: name another one for the files with --to")
        if not self._replace:
            raise FileDiffers(
                f"{shown} is there with another content. Nothing was replaced: add --replace, or name another "
                "directory with --to"
            )

    def _start(self, path: str, size_bytes: int, mode: int, *, differs: bool) -> int:
        """Open the new file, if it may have its name and there is room for it."""
        if differs:
            self._must_replace(path)
        free = os.fstatvfs(self._staging)
        free_bytes = free.f_bavail * free.f_frsize
        if size_bytes > free_bytes:
            size, left = format_bytes(size_bytes), format_bytes(free_bytes)
            raise NotWritable(f"cannot write {self._shown(path)}: it has {size}, and only {left} are free there")
        return os.open(_PART, _NEW, mode, dir_fd=self._staging)

    def _take_name(self, folder: int, name: str, path: str) -> None:
        """Give what is whole its name, if it may have it: another file can have appeared there on the way."""
        if not self._replace:
            try:
                os.link(_PART, name, src_dir_fd=self._staging, dst_dir_fd=folder, follow_symlinks=False)
            except OSError as error:
                there = _status(folder, name)
                if there is not None or isinstance(error, FileExistsError):
                    self._must_replace(path, there)
                if error.errno not in _NO_LINKS:
                    raise
            else:
                return  # the other name goes with what is not whole
        os.rename(_PART, name, src_dir_fd=self._staging, dst_dir_fd=folder)

    def _locked_staging(self) -> int:
        folder, name = self._folders.of(STAGING)
        with contextlib.suppress(FileExistsError):
            os.mkdir(name, 0o700, dir_fd=folder)
        fd = os.open(name, _FOLDER, dir_fd=folder)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            raise Refused(
                f"another gpuqueue fetch writes into {plain(self._path)}: wait for its end, or name another directory "
                "with --to"
            ) from None
        except OSError:  # a file system without locks
            pass
        return fd

    def _clear(self) -> None:
        """Delete what is not whole."""
        with contextlib.suppress(FileNotFoundError, IsADirectoryError):
            os.unlink(_PART, dir_fd=self._staging)

    def _shown(self, path: str) -> str:
        return plain(os.path.join(self._path, path))

    @contextmanager
    def _errors(self, path: str) -> Iterator[None]:
        """Raise the errors of the system as errors of this module."""
        try:
            yield
        except OSError as error:
            why, shown = error.strerror or str(error), self._shown(path) if path else plain(self._path)
            if path and error.errno in _NO_NAME:
                raise NoSuchName(f"cannot be written here: {why}") from None
            if path and error.errno in _NO_FOLDER:
                raise Refused(f"cannot write {shown}: a part of its path is a file or a link here") from None
            raise NotWritable(f"cannot write {shown}: {why}") from None


def _status(folder: int, name: str) -> os.stat_result | None:
    try:
        return os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return None
