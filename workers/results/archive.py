"""Writes and reads archives of results: tar in the format PAX. Standard library only.

An archive has regular files, and symbolic links that stay inside. Their names are relative and sorted. If something was
left out, a last file says what. It has no owners, and no other modes than 0755 and 0644. Two blocks of zeros end it;
without them it was cut short.
"""

from __future__ import annotations

import os
import tarfile
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from gpuqueue.snapshot.manifest import MAX_SIZE_BYTES
from gpuqueue.snapshot.names import LEFT_OUT_NOTES, MOST_NOTES_BYTES
from workers.results.errors import PackFailed
from workers.results.files import CHUNK_BYTES, read_exactly

#: Size of a block of a tar archive, in bytes. Headers and files begin at the start of one.
BLOCK_BYTES = 512
#: Largest extended header, in bytes. Names and targets have at most 1000 bytes each.
_MOST_HEADER_BYTES = 8 * BLOCK_BYTES
_END = bytes(BLOCK_BYTES)
_DAMAGED = "the archive of the results is damaged"


class Member(NamedTuple):
    """A file or, with a *target*, a link."""

    path: str
    size_bytes: int = 0
    executable: bool = False
    modified_s: int = 0
    target: str | None = None

    def header(self) -> bytes:
        """Return the blocks that precede the content."""
        made = tarfile.TarInfo(self.path)
        made.mode = 0o755 if self.executable else 0o644
        made.mtime, made.size = self.modified_s, self.size_bytes
        if self.target is not None:
            made.type, made.linkname, made.mode = tarfile.SYMTYPE, self.target, 0o777
        return made.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")


class Writer:
    """Writes an archive to an open file. Small files are written together."""

    def __init__(self, output: int, progress: Callable[[], object]) -> None:
        self._output = output
        self._progress = progress
        self._waiting = bytearray()

    def put(self, content: bytes) -> None:
        """Write *content*, or keep it for later if it is small."""
        if len(self._waiting) + len(content) < CHUNK_BYTES:
            self._waiting += content
        else:
            self._flush()
            self._write(content)
        self._progress()

    def pad(self, size_bytes: int) -> None:
        """Fill the last block of a file of *size_bytes*."""
        self.put(bytes(-size_bytes % BLOCK_BYTES))

    def end(self, notes: Sequence[str] = ()) -> None:
        """Write the end of the archive, after a file with *notes*: lines about what was left out."""
        if notes:
            text = "".join(f"{line}\n" for line in notes).encode("utf-8", "backslashreplace")[:MOST_NOTES_BYTES]
            self.put(Member(LEFT_OUT_NOTES, len(text)).header())
            self.put(text)
            self.pad(len(text))
        self.put(2 * _END)
        self._flush()

    def _flush(self) -> None:
        waiting, self._waiting = self._waiting, bytearray()
        self._write(waiting)

    def _write(self, content: bytes | bytearray) -> None:
        rest = memoryview(content)
        while rest:
            rest = rest[os.write(self._output, rest) :]


def members(fd: int) -> Iterator[Member]:
    """Yield the members of the archive in the open regular file *fd*.

    Before the next one, the reader must have read the content of a file with :func:`content`, or have skipped it with
    :func:`skip`.

    Raises:
        PackFailed: it is no archive of results, or it was cut short.

    """
    while (block := read_exactly(fd, BLOCK_BYTES)) != _END:
        info, extended = _info(block), dict[str, str]()
        if info.type == tarfile.XHDTYPE:
            extended = _extended(fd, info.size)
            info = _info(read_exactly(fd, BLOCK_BYTES))
        yield _member(info, extended)
    if read_exactly(fd, BLOCK_BYTES) != _END:
        raise PackFailed(f"{_DAMAGED}: it was cut short")


def content(fd: int, size_bytes: int) -> Iterator[bytes]:
    """Yield the content of a member, with the rest of its last block."""
    left_bytes = size_bytes + -size_bytes % BLOCK_BYTES
    while left_bytes:
        part = os.read(fd, min(left_bytes, CHUNK_BYTES))
        if not part:
            raise PackFailed(f"{_DAMAGED}: it was cut short")
        left_bytes -= len(part)
        yield part


def notes_of(fd: int, size_bytes: int) -> list[str]:
    """Read the member with the notes about what was left out, and return its lines.

    Raises:
        PackFailed: it is too long, or was cut short.

    """
    if size_bytes > MOST_NOTES_BYTES:
        raise PackFailed(f"{_DAMAGED}: its notes are too long")
    text = b"".join(content(fd, size_bytes))[:size_bytes]
    return [line for line in text.decode("utf-8", "replace").splitlines() if line.isprintable()]


def skip(fd: int, size_bytes: int) -> None:
    """Go to the end of a member."""
    os.lseek(fd, size_bytes + -size_bytes % BLOCK_BYTES, os.SEEK_CUR)


def _info(block: bytes) -> tarfile.TarInfo:
    if len(block) < BLOCK_BYTES:
        raise PackFailed(f"{_DAMAGED}: it was cut short")
    try:
        return tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape")
    except tarfile.HeaderError as error:
        raise PackFailed(f"{_DAMAGED}: {error}") from None


def _member(info: tarfile.TarInfo, extended: dict[str, str]) -> Member:
    try:
        size_bytes, modified_s = int(extended.get("size", info.size)), int(extended.get("mtime", info.mtime))
    except ValueError:
        raise PackFailed(f"{_DAMAGED}: a number in it is none") from None
    is_link = info.type == tarfile.SYMTYPE
    if size_bytes not in range(1 if is_link else MAX_SIZE_BYTES) or info.type not in {tarfile.REGTYPE, tarfile.SYMTYPE}:
        raise PackFailed(f"{_DAMAGED}: it has more than files and links")
    path, target = extended.get("path", info.name), extended.get("linkpath", info.linkname)
    return Member(path, size_bytes, bool(info.mode & 0o100) and not is_link, modified_s, target if is_link else None)


def _extended(fd: int, size_bytes: int) -> dict[str, str]:
    """Read the records of an extended header: each is its own length, a space, a key, ``=``, a value, a line end."""
    if not 0 <= size_bytes <= _MOST_HEADER_BYTES:
        raise PackFailed(f"{_DAMAGED}: a header in it is too long")
    rest = b"".join(content(fd, size_bytes))[:size_bytes]
    found = {}
    while rest:
        length, _, _ = rest.partition(b" ")
        if not length.isdigit() or not len(length) < int(length) <= len(rest):
            raise PackFailed(f"{_DAMAGED}: a header in it cannot be read")
        record, rest = rest[len(length) + 1 : int(length) - 1], rest[int(length) :]
        key, _, value = record.partition(b"=")
        found[key.decode(errors="replace")] = value.decode(errors="surrogateescape")
    return found
