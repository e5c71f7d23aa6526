"""Packs the results in a run's copy of the code. Standard library only. Runs as the owner of the copy."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import closing

from gpuqueue.snapshot.folders import Folders
from gpuqueue.snapshot.names import quoted
from workers.results.archive import Member, Writer
from workers.results.changes import Changes
from workers.results.errors import NoCopy, PackFailed
from workers.results.files import CHUNK_BYTES, GONE, is_executable, open_file, open_folder, read_exactly
from workers.results.left_out import LeftOut
from workers.results.walk import Walk
from workers.results.wanted import ArchiveRequest, Wanted
from workers.shim.code import TREE

#: How often the beginning of a file is read if the file becomes shorter meanwhile.
_TRIES = 2


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
            writer = Writer(output, progress)
            for path, target in sorted(walk.found.items()):
                if target is None:
                    _put_file(path, folders, writer, left)
                else:
                    writer.put(Member(path, target=target).header())
            writer.end(left.lines())
    finally:
        os.close(tree)
    return left.lines()


def _put_file(path: str, folders: Folders, writer: Writer, left: LeftOut) -> None:
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


def _put_open(path: str, fd: int, writer: Writer) -> None:
    about, part = _first(path, fd)
    left_bytes = about.st_size - len(part)
    writer.put(Member(path, about.st_size, is_executable(about), about.st_mtime_ns // 10**9).header())
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
