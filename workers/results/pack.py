"""Packs the results in a run's copy of the code. Standard library only. Runs as the owner of the copy.

The files are found without following a link. The memory is bounded by :data:`MOST_FILES` and by the depth of the tree,
however many files the job has made.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import select
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from typing import NamedTuple

from gpuqueue.errors import GpuQueueError
from gpuqueue.files.archive import CHUNK_BYTES, ArchiveWriter, Member
from gpuqueue.files.errors import InvalidManifest
from gpuqueue.files.folders import GONE, Folders, is_executable, open_file, open_folder, read_exactly
from gpuqueue.files.manifest import ACCEPTED_BEFORE, MAX_TEXT_BYTES, Entry, read_manifest
from gpuqueue.files.names import LEFT_OUT_NOTES, faulty_links, inside, quoted, target_fault
from workers.shim.code import MANIFEST, TREE

#: Most files and links in an archive.
MOST_FILES = 100_000
#: How often the beginning of a file is read if the file becomes shorter meanwhile.
_TRIES = 2
_TO_DO = "name the files that you want by patterns"
#: How long packing may take without progress, in seconds: a reader that does not read, a file server that does not
#: answer, or a pattern that takes for ever to match.
STALL_S = 60.0
#: Time between two reports, in seconds.
EVERY_S = 1.0


class PackFailed(GpuQueueError):
    """The archive is not complete."""


class NoCopy(PackFailed):
    """There is nothing to pack: the run has no copy of the code, or it was deleted."""

    exit_code = 3


def stalled() -> str:
    """Return the message for work that was ended because it made no progress."""
    return (
        f"packing made no progress for {STALL_S:.0f} s: the reader does not read, a disk does not answer, or a pattern "
        "is too complicated"
    )


class Progress:
    """Is called for each step, and calls *report* at most once a second."""

    def __init__(self, output: int, report: Callable[[], object]) -> None:
        self._report = report
        self._poll = select.poll()
        self._poll.register(output, 0)  # errors and the end of the reader are always reported
        self._next_s = 0.0

    def __call__(self) -> None:
        """Report a step.

        Raises:
            BrokenPipeError: the reader of the archive is gone.

        """
        now_s = time.monotonic()
        if now_s < self._next_s:
            return
        self._next_s = now_s + EVERY_S
        self._report()
        if self._poll.poll(0):
            raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))


def pack(code: int, request: ArchiveRequest, output: int, progress: Callable[[], object]) -> list[str]:
    """Write the archive of the results in the open directory *code* to *output*.

    Return one line for each kind of thing that was left out.

    Raises:
        NoCopy: the directory has no copy of the code.
        PackFailed: the archive is not complete; the message says why.
        OSError: *output* cannot be written to, or the copy cannot be entered.

    """
    tree = open_folder(TREE, code)
    if tree is None:
        raise NoCopy("the copy of the code is not there any more")
    try:
        wanted, left = Wanted(request), LeftOut()
        walk = Walk(wanted, Changes(code, progress) if wanted.everything else None, left, progress)
        walk.through(tree)
        with closing(Folders(tree)) as folders:
            writer = ArchiveWriter(output, progress)
            for path, target in sorted(walk.found.items()):
                if target is None:
                    _put_file(path, folders, writer, left)
                else:
                    writer.put(Member(path=path, target=target).header())
            writer.end(left.lines())
    finally:
        os.close(tree)
    return left.lines()


def _put_file(path: str, folders: Folders, writer: ArchiveWriter, left: LeftOut) -> None:
    """Write one file as it is now. It is skipped if it is gone, and its size is the one at this moment."""
    try:
        folder, name = folders.of(path)
        found = open_file(name, folder)
    except OSError as error:
        if error.errno not in GONE:
            left.unreadable(path, error)
        return
    if found is None:
        return
    try:
        _put_open(path, found[0], writer)
    finally:
        os.close(found[0])


def _put_open(path: str, fd: int, writer: ArchiveWriter) -> None:
    about, part = _first(path, fd)
    left_bytes = about.st_size - len(part)
    member = Member(
        path=path,
        size_bytes=about.st_size,
        executable=is_executable(about),
        modified_s=about.st_mtime_ns // 10**9,
    )
    writer.put(member.header())
    writer.put(part)
    while left_bytes:
        part = _read(path, fd, min(left_bytes, CHUNK_BYTES))
        if not part:
            raise _shorter(path)
        left_bytes -= len(part)
        writer.put(part)
    writer.pad(about.st_size)


def _first(path: str, fd: int) -> tuple[os.stat_result, bytes]:
    """Return the status of an open file, and its beginning. Read both again if a running job cuts it in between."""
    for _ in range(_TRIES):
        about = os.fstat(fd)
        os.lseek(fd, 0, os.SEEK_SET)
        expected = min(about.st_size, CHUNK_BYTES)
        try:
            part = read_exactly(fd, expected) if expected else b""
        except OSError as error:
            raise _unread(path, error) from None
        if len(part) == expected:
            return about, part
    raise _shorter(path)


def _read(path: str, fd: int, size_bytes: int) -> bytes:
    try:
        return os.read(fd, size_bytes)
    except OSError as error:
        raise _unread(path, error) from None


def _unread(path: str, error: OSError) -> PackFailed:
    return PackFailed(f"{quoted(path)} cannot be read to its end: {error.strerror}")


def _shorter(path: str) -> PackFailed:
    return PackFailed(
        f"{quoted(path)} became shorter while it was read: wait until nothing writes to it, or name other files"
    )


class LeftOut:
    """What was left out so far, by the kind of reason: the first path with its reason, and how many there are."""

    def __init__(self) -> None:
        self._found: dict[str, tuple[str, int]] = {}

    def name(self, path: str, fault: str) -> None:
        """Note a path that is no name for an archive, as *fault* says in words that follow it."""
        self._add("name", f"{quoted(path)}, which {fault}")

    def unreadable(self, path: str, error: OSError) -> None:
        """Note a file or directory that cannot be read."""
        self._add("unreadable", f"{quoted(path)}, which cannot be read ({error.strerror or error})")

    def link(self, path: str) -> None:
        """Note a link that leads out of the copy, or round in circles."""
        self._add("link", f"the link {quoted(path)}, which leads out of the copy of the code, or in a circle")

    def lines(self) -> list[str]:
        """Return a line for each kind of reason."""
        return [
            f"left out {first}{f', and {count - 1} more like it' if count > 1 else ''}"
            for first, count in self._found.values()
        ]

    def _add(self, kind: str, text: str) -> None:
        first, count = self._found.get(kind, (text, 0))
        self._found[kind] = first, count + 1


class Walk:
    """One search of a directory. ``found`` has each path, with the target of a link and None for a file."""

    def __init__(self, wanted: Wanted, changes: Changes | None, left: LeftOut, progress: Callable[[], object]) -> None:
        """Search for what is *wanted* and, with *changes*, new or changed."""
        self.found: dict[str, str | None] = {}
        self._wanted = wanted
        self._changes = changes
        self._left = left
        self._progress = progress

    def through(self, tree: int) -> None:
        """Search the open directory *tree*, and drop the links that lead out of it.

        Raises:
            PackFailed: there are too many files.

        """
        self._root = os.readlink(f"/proc/self/fd/{tree}")
        self._folder(tree, "", taken=self._wanted.everything)
        for path in sorted(faulty_links({path: each for path, each in self.found.items() if each is not None})):
            self._left.link(path)
            del self.found[path]

    def _folder(self, folder: int, start: str, *, taken: bool) -> None:
        """Search an open directory, whose paths begin with *start*. With *taken*, all below it is wanted."""
        for entry in self._entries(folder, start):
            self._progress()
            if self._wanted.leaves_out(entry.name):
                continue
            path = f"{start}{entry.name}"
            if path == LEFT_OUT_NOTES:
                continue
            is_folder = self._is_folder(entry, path)
            takes = taken or self._wanted.takes(path, folder=is_folder)
            fault = target_fault(path)
            if fault is not None:
                if takes or is_folder:
                    self._left.name(path, fault)
            elif is_folder:
                self._enter(folder, entry.name, path, taken=takes)
            elif takes:
                self._take(folder, entry, path)

    def _entries(self, folder: int, start: str) -> Iterator[os.DirEntry[str]]:
        try:
            with os.scandir(folder) as entries:
                yield from entries
        except OSError as error:
            self._left.unreadable(start or ".", error)

    def _is_folder(self, entry: os.DirEntry[str], path: str) -> bool:
        try:
            return entry.is_dir(follow_symlinks=False)
        except OSError as error:  # on file systems whose directories do not say what their entries are
            self._left.unreadable(path, error)
            return False

    def _enter(self, folder: int, name: str, path: str, *, taken: bool) -> None:
        try:
            below = open_folder(name, folder)
        except OSError as error:
            self._left.unreadable(path, error)
            return
        if below is None:
            return
        try:
            self._folder(below, f"{path}/", taken=taken)
        finally:
            os.close(below)

    def _take(self, folder: int, entry: os.DirEntry[str], path: str) -> None:
        """Add a regular file or a link, if it is new or changed. Sockets, pipes and devices are left out."""
        target = None
        try:
            if entry.is_symlink():
                target = os.readlink(entry.name, dir_fd=folder)
            elif not entry.is_file(follow_symlinks=False):
                return
        except OSError as error:
            if error.errno not in GONE:
                self._left.unreadable(path, error)
            return
        if self._changes is not None and not self._changes.has(path, entry.name, folder):
            return
        if target is not None:
            target = inside(self._root, path, target)
            if not target.startswith("/") and (fault := target_fault(target)) is not None:
                self._left.name(path, f"is a link to a path that {fault}")
                return
        if len(self.found) >= MOST_FILES:
            raise PackFailed(f"there are more than {MOST_FILES} files: name those that you want by patterns")
        self.found[path] = target


class Changes:
    """The files of the snapshot that a copy was made from."""

    def __init__(self, code: int, progress: Callable[[], object]) -> None:
        """Read the manifest in the open directory *code*. The job may have changed it, but only for its own files.

        Raises:
            PackFailed: there is none, or it is damaged.

        """
        try:
            text = _manifest_in(code)
            entries = () if text is None else read_manifest(text, ACCEPTED_BEFORE).entries
        except OSError as error:
            raise PackFailed(f"the list of the job's files cannot be read: {error.strerror}: {_TO_DO}") from None
        except InvalidManifest as error:
            raise PackFailed(f"the list of the job's files is damaged: {error}: {_TO_DO}") from None
        if text is None:
            raise PackFailed(f"the list of the job's files is missing, so nobody knows what the job made: {_TO_DO}")
        self._entries = {each.path: each for each in entries}
        self._progress = progress

    def has(self, path: str, name: str, folder: int) -> bool:
        """Return whether *path*, which is *name* in the open directory *folder*, is new or changed.

        A file that cannot be read counts as changed.
        """
        entry = self._entries.get(path)
        if entry is None:
            return True
        try:
            if entry.target is not None:
                return os.readlink(name, dir_fd=folder) != entry.target
            found = open_file(name, folder)
        except OSError:
            return True
        if found is None:
            return True
        fd, about = found
        try:
            same = about.st_size == entry.size_bytes and is_executable(about) == entry.executable
            return not same or not self._has_content(fd, entry)
        except OSError:
            return True
        finally:
            os.close(fd)

    def _has_content(self, fd: int, entry: Entry) -> bool:
        digest, left_bytes = hashlib.sha256(), entry.size_bytes or 0
        while left_bytes and (part := os.read(fd, min(left_bytes, CHUNK_BYTES))):
            digest.update(part)
            left_bytes -= len(part)
            self._progress()
        return left_bytes == 0 and digest.hexdigest() == entry.sha256


def _manifest_in(code: int) -> bytes | None:
    found = open_file(MANIFEST, code)
    if found is None:
        return None
    fd, _ = found
    try:
        return read_exactly(fd, MAX_TEXT_BYTES + 1)
    finally:
        os.close(fd)


# ---- which paths are packed ------------------------------------------------------------------------------------------

# The patterns have the syntax of ``.gitignore`` and arrive as regular expressions
# (:func:`gpuqueue.files.ignore.rules_of`). The last one that matches a path decides, and what is below a directory that
# a pattern takes is taken, too.

#: Names of files and directories that are left out unless a pattern names them: what tools make.
LEFT_OUT = (".git", "__pycache__", ".venv", "venv", "node_modules")
#: Longest request in its text form, in bytes. The longest patterns become some hundred kilobytes.
MOST_REQUEST_BYTES = 4 * 2**20


class ArchiveRequest(NamedTuple):
    """Which paths to pack: the expressions of the patterns, None for the changed files, and the names to leave out."""

    rules: tuple[tuple[str, bool], ...] | None
    left_out: tuple[str, ...]

    @classmethod
    def of(cls, patterns: Sequence[str], rules: Sequence[tuple[str, bool]]) -> ArchiveRequest:
        """Return the request for *patterns*, whose expressions are *rules*."""
        named = {part for each in patterns for part in each.split("/")}
        return cls(tuple(rules) if patterns else None, tuple(each for each in LEFT_OUT if each not in named))

    def text(self) -> bytes:
        """Return the request as a text."""
        return json.dumps([self.rules, self.left_out]).encode()

    @classmethod
    def read(cls, text: bytes) -> ArchiveRequest:
        """Return the request with this text.

        Raises:
            ValueError: it is no request.

        """
        try:
            rules, left_out = json.loads(text)
            found = None if rules is None else tuple((str(each), bool(take)) for each, take in rules)
            return cls(found, tuple(map(str, left_out)))
        except (TypeError, RecursionError) as error:
            raise ValueError(str(error)) from None


class Wanted:
    """The paths that a request names. A path is relative to the copy of the code, with slashes."""

    def __init__(self, request: ArchiveRequest) -> None:
        """Compile the expressions.

        Raises:
            re.error: one is no regular expression.

        """
        self.everything = request.rules is None
        self._rules = [(re.compile(text, re.DOTALL).match, take) for text, take in reversed(request.rules or ())]
        self._left_out = frozenset(request.left_out)

    def leaves_out(self, name: str) -> bool:
        """Return whether a file or directory of this name is left out wherever it is."""
        return name in self._left_out

    def takes(self, path: str, *, folder: bool) -> bool:
        """Return whether the last pattern that matches *path* itself takes it, whatever holds for directories above."""
        if self.everything:
            return True
        text = f"{path}/" if folder else path
        return next((take for match, take in self._rules if match(text)), False)

    def has(self, path: str) -> bool:
        """Return whether the file *path* is wanted, by its own name and those of the directories above it."""
        parts = path.split("/")
        if not self._left_out.isdisjoint(parts):
            return False
        above = ("/".join(parts[:count]) for count in range(1, len(parts)))
        return any(self.takes(each, folder=True) for each in above) or self.takes(path, folder=False)
