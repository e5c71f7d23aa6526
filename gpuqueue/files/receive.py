"""Brings the files of an archive into a directory: all that are whole, also if the archive is cut short.

The directory is the user's, and may hold other files. No name leads out of it: each directory below it is opened by its
parent without following links. A file is written below the directory ``.gpuqueue-fetch`` there and gets its name when
it is whole, so that no half file ever has its final name. The next fetch deletes what a killed one left.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from functools import partial

from gpuqueue.errors import BadRequest, Refused
from gpuqueue.files.archive import ArchiveReader, Member
from gpuqueue.files.errors import ArchiveCutShort, FileDiffers, InvalidManifest, NoSuchName, NotWritable
from gpuqueue.files.folders import CHUNK_BYTES, Folders, open_file, read_exactly, write_all
from gpuqueue.files.manifest import Source
from gpuqueue.files.names import check_links, folded
from gpuqueue.model.run_files import LeftOut
from gpuqueue.text.sanitize import plain
from gpuqueue.text.units import format_bytes

#: What a user does after a part of the files has arrived.
_AGAIN = "run the same command again, which keeps them"
#: The directory below the target for a file that is not whole yet, and its name there.
STAGING, _PART = ".gpuqueue-fetch", "part"
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
#: Errors of a name that this file system cannot have, and of a path below a file or a link.
_NO_NAME = frozenset({errno.ENAMETOOLONG, errno.EINVAL, errno.EILSEQ})
_NO_FOLDER = frozenset({errno.ENOTDIR, errno.ELOOP})
#: Errors of a file system without hard links, or without those of links.
_NO_LINKS = frozenset({errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK, errno.EXDEV})


@dataclass(slots=True, kw_only=True)
class Received:
    """How many files and links are in the directory now, their size, and how many of them were there before."""

    files: int = 0
    size_bytes: int = 0
    skipped: int = 0
    left_out: list[LeftOut] = field(default_factory=list)
    #: What the packing has left out, in words.
    notes: tuple[str, ...] = ()


def receive(
    source: Source,
    directory: str,
    *,
    replace: bool,
    taken: Mapping[str, str] | None = None,
    seen: Callable[[int], None] | None = None,
) -> Received:
    """Write the files of the archive in *source* into *directory*, which is made once there is a file for it.

    The paths in *taken* are left out, each with its reason. *seen* is called with the number of bytes that have
    arrived. Links are made after all files.

    Raises:
        BadRequest: *directory* is a file.
        ArchiveRefused: the archive is damaged or has what no service of ours sends.
        ArchiveCutShort: the archive ended before its end; whole files stay.
        Refused: a file is there with another content and *replace* is false, or its name is taken; whole files stay.
        NotWritable: the disk is full, or refuses; whole files stay.

    """
    if os.path.lexists(directory) and not os.path.isdir(directory):
        raise BadRequest(f"{plain(directory)} is a file: name a directory with --to")
    with ExitStack() as stack:
        receiver = _Receiver(stack, directory, replace=replace, seen=seen or (lambda _: None))
        receiver.taken = taken or {}
        reader = ArchiveReader(source)
        try:
            try:
                for member in reader.members():
                    receiver.take(member, reader.content())
            except ArchiveCutShort as error:
                receiver.make_links()
                raise ArchiveCutShort(f"{error}. {receiver.arrived()}: {_AGAIN}") from None
            receiver.make_links()
            receiver.received.notes = reader.notes
        except NotWritable as error:
            raise NotWritable(f"{error}. {receiver.arrived()}: once that is solved, {_AGAIN}") from None
        return receiver.received


class _Receiver:
    def __init__(self, stack: ExitStack, directory: str, *, replace: bool, seen: Callable[[int], None]) -> None:
        self.received = Received()
        self._stack, self._directory, self._replace, self._seen = stack, directory, replace, seen
        self._opened: Target | None = None
        self._links: dict[str, str] = {}
        self._seen_bytes = 0
        self.taken: Mapping[str, str] = {}

    def take(self, member: Member, content: Iterable[bytes]) -> None:
        """Write a file, or note a link."""
        fault = member.fault or self.taken.get(member.path)
        if fault is not None:
            self._leave_out(member.path, fault)
        elif member.target is not None:
            self._links[member.path] = member.target
        else:
            chunks, size_bytes = self._counted(content), member.size_bytes
            try:
                is_new = self._target.put(member.path, size_bytes, chunks, executable=member.executable)
            except NoSuchName as error:
                self._leave_out(member.path, str(error))
            else:
                self._count(size_bytes, is_new=is_new)

    def make_links(self) -> None:
        """Make the links that stay inside, also by way of links that were there before."""
        try:
            check_links(self._links)
        except InvalidManifest as error:
            for path in self._links:
                self._leave_out(path, f"is a link, and no link was made: {error}")
            return
        new = [path for path, target in self._links.items() if self._make_link(path, target)]
        for path in new:
            if self._target.leads_out(path):
                self._target.remove(path)
                self._leave_out(path, "is a link that leads out by way of a link that was there before")
                self.received.files -= 1

    def arrived(self) -> str:
        """Return what is in the directory, in words."""
        if not self.received.files:
            return "Nothing has arrived"
        return f"{counted(self.received.files, self.received.size_bytes)}, arrived in {plain(self._directory)}"

    @property
    def _target(self) -> Target:
        if self._opened is None:
            self._opened = self._stack.enter_context(closing(Target(self._directory, replace=self._replace)))
        return self._opened

    def _make_link(self, path: str, target: str) -> bool:
        try:
            is_new = self._target.link(path, target)
        except NoSuchName as error:
            self._leave_out(path, str(error))
            return False
        self._count(0, is_new=is_new)
        return is_new

    def _counted(self, content: Iterable[bytes]) -> Iterator[bytes]:
        for chunk in content:
            self._seen_bytes += len(chunk)
            self._seen(self._seen_bytes)
            yield chunk

    def _count(self, size_bytes: int, *, is_new: bool) -> None:
        self.received.files += 1
        self.received.size_bytes += size_bytes
        self.received.skipped += not is_new

    def _leave_out(self, path: str, why: str) -> None:
        self.received.left_out.append(LeftOut(path=path, why=why))


def counted(files: int, size_bytes: int) -> str:
    """Return a number of files and their size in words: ``3 files, 1.2G``."""
    return f"{files} file{'' if files == 1 else 's'}, {format_bytes(size_bytes)}"


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
                found = open_file(name, folder)
                if found is not None:
                    return found[0]
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


class Arrival:
    """Takes the content of a file, chunk by chunk, and writes it once it differs from the file that is there.

    So a file that is there already costs no writing and no space.

    *there* is the open file to compare with, which has the same size, or None. *start* opens the new file, and may
    refuse that. Both files are closed by ``close``.
    """

    def __init__(self, there: int | None, start: Callable[[], int]) -> None:
        self._there, self._start = there, start
        self._part: int | None = None
        self._same_bytes = 0
        if there is None:
            self._part = start()

    @property
    def is_there(self) -> bool:
        """Return whether all that came is the content of the file that is there."""
        return self._part is None

    def take(self, chunk: bytes) -> None:
        """Compare or write *chunk*.

        Raises:
            OSError: the file cannot be read or written.

        """
        if self._part is None and self._there is not None:
            if read_exactly(self._there, len(chunk)) == chunk:
                self._same_bytes += len(chunk)
                return
            self._part = self._start()
            self._copy(self._there, self._part)
        if self._part is not None:
            write_all(self._part, chunk)

    def close(self) -> None:
        """Close both files."""
        for fd in (self._there, self._part):
            if fd is not None:
                os.close(fd)

    def _copy(self, there: int, part: int) -> None:
        """Copy what was the same until now."""
        os.lseek(there, 0, os.SEEK_SET)
        while self._same_bytes:
            same = read_exactly(there, min(self._same_bytes, CHUNK_BYTES))
            if not same:
                raise OSError(0, "it was cut while it was read")
            self._same_bytes -= len(same)
            write_all(part, same)
