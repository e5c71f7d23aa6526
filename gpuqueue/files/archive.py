"""Writes and reads the archive of a run's files: tar in the format PAX. Standard library only.

An archive has regular files, and symbolic links that stay inside. Their names are relative and sorted. If something was
left out, a last file says what. It has no owners, and no other modes than 0755 and 0644. Two blocks of zeros end it;
without them it was cut short.

An archive that is read may come from an attacker. ``tarfile`` only finds the members.

Only regular files and links are read. All else that tar can hold ends the reading, as no service of ours sends it. A
file whose name not every system can have is left out, because any job can make one. Memory is bounded: the headers
between two contents have a limit, and so have the numbers of files and directories. An archive without its end mark is
cut short, also where ``tarfile`` would take it for a whole one.
"""

from __future__ import annotations

import sys
import tarfile
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from gpuqueue.errors import Unreachable
from gpuqueue.files.errors import ArchiveCutShort, ArchiveRefused
from gpuqueue.files.folders import write_all
from gpuqueue.files.manifest import MAX_FOLDERS, Source
from gpuqueue.files.names import LEFT_OUT_NOTES, MOST_NOTES_BYTES, folded, path_fault, quoted, target_fault
from gpuqueue.lazy.frozen import dataclass
from gpuqueue.text.sanitize import plain

#: Most files and links of an archive.
MOST_FILES = 200_000
#: Most bytes of headers between two contents. A path has at most 1000 bytes.
MOST_HEADER_BYTES = 64 * 1024
#: Most lines about what was left out.
MOST_NOTES = 20
#: Largest time of a file, in seconds since 1970.
_MOST_S = 2**40
#: Bytes that are read and written at once.
CHUNK_BYTES = 2**18
_BLOCK_BYTES, _BUFFER_BYTES = tarfile.BLOCKSIZE, 2**16
_FILES = (tarfile.REGTYPE, tarfile.AREGTYPE)
_KINDS = {
    tarfile.LNKTYPE: "a hard link",
    tarfile.CHRTYPE: "a device",
    tarfile.BLKTYPE: "a device",
    tarfile.FIFOTYPE: "a pipe",
    tarfile.DIRTYPE: "a directory",
    tarfile.GNUTYPE_SPARSE: "a sparse file",
}
#: What ``tarfile`` raises for a header that is no header. Some of these are its own errors.
_DAMAGED = (
    *(tarfile.TarError, ArithmeticError, AttributeError, EOFError),
    *(LookupError, RecursionError, TypeError, ValueError),
)

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """A file of the archive; or a link, which has a *target* and no size. With a *fault* it is not to be made."""

    path: str
    size_bytes: int = 0
    executable: bool = False
    modified_s: int = 0
    target: str | None = None
    fault: str | None = None

    def header(self) -> bytes:
        """Return the blocks that precede the content."""
        made = tarfile.TarInfo(self.path)
        made.mode = 0o755 if self.executable else 0o644
        made.mtime, made.size = self.modified_s, self.size_bytes
        if self.target is not None:
            made.type, made.linkname, made.mode = tarfile.SYMTYPE, self.target, 0o777
        return made.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")


class ArchiveWriter:
    """Writes an archive to an open file. Small files are written together. *progress* is called for each step."""

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
            write_all(self._output, content)
        self._progress()

    def pad(self, size_bytes: int) -> None:
        """Fill the last block of a file of *size_bytes*."""
        self.put(bytes(-size_bytes % _BLOCK_BYTES))

    def end(self, notes: Sequence[str] = ()) -> None:
        """Write the end of the archive, after a file with *notes*: lines about what was left out."""
        if notes:
            text = "".join(f"{line}\n" for line in notes).encode("utf-8", "backslashreplace")[:MOST_NOTES_BYTES]
            self.put(Member(path=LEFT_OUT_NOTES, size_bytes=len(text)).header())
            self.put(text)
            self.pad(len(text))
        self.put(bytes(2 * _BLOCK_BYTES))
        self._flush()

    def _flush(self) -> None:
        waiting, self._waiting = self._waiting, bytearray()
        write_all(self._output, waiting)


class ArchiveReader:
    """Reads an archive once, from its beginning. After each member, its ``content`` may be read."""

    def __init__(self, source: Source) -> None:
        self._source = _Bounded(source)
        self._names, self._count = _Names(), 0
        #: What the packing left out, in words, once all members were read.
        self.notes: tuple[str, ...] = ()
        #: A TarFile. Its types know neither its list of members nor a source that can only be read.
        self._tar: Any = None
        self._current: tarfile.TarInfo | None = None
        #: Whether the end mark was read.
        self._ends = False

    def members(self) -> Iterator[Member]:
        """Yield each file and link.

        Raises:
            ArchiveRefused: a member is neither file nor link, its path leads out, or the archive is damaged or too
                large.
            ArchiveCutShort: the archive ended before its end.

        """
        while (found := self._read("after", self._next)) is not None:
            self._current = found
            if found.name == LEFT_OUT_NOTES:
                self.notes += self._read_notes(found)
            else:
                yield self._member(found)
        self._read("after", self._check_end)

    def content(self) -> Iterator[bytes]:
        """Yield the content of the last member; a link has none. To be called once at most for each.

        Raises:
            ArchiveCutShort: the archive ended before its end.

        """
        if self._tar is None or self._current is None or not self._current.isreg():
            return
        self._source.left_bytes = sys.maxsize
        stream = self._tar.extractfile(self._current)
        while stream is not None and (chunk := self._read("in", lambda: stream.read(CHUNK_BYTES))):
            yield chunk

    def _read_notes(self, found: tarfile.TarInfo) -> tuple[str, ...]:
        if found.type not in _FILES or found.size > MOST_NOTES_BYTES:
            raise ArchiveRefused("the archive is damaged: its list of what was left out cannot be read")
        text = b"".join(self.content()).decode("utf-8", "replace")
        return tuple(plain(line) for line in text.splitlines()[:MOST_NOTES])

    def _read(self, at: str, act: Callable[[], _T]) -> _T:
        """Call *act*, which reads the archive, and raise its errors in the terms of this module."""
        where = f" {at} {quoted(self._current.name)}" if self._current is not None else ""
        try:
            return act()
        except Unreachable as error:
            raise ArchiveCutShort(f"the archive was cut short{where}: {error}") from error
        except _DAMAGED as error:
            if self._source.is_over:
                raise ArchiveCutShort(f"the archive was cut short{where}") from None
            raise ArchiveRefused(f"the archive is damaged{where}: {error}") from None

    def _next(self) -> tarfile.TarInfo | None:
        unread_bytes = self._current.size if self._current is not None and self._current.isreg() else 0
        self._source.left_bytes = unread_bytes + _BUFFER_BYTES + MOST_HEADER_BYTES
        if self._tar is None:
            how = {"fileobj": self._source, "tarinfo": self._header_class(), "encoding": "utf-8"}
            make: Any = tarfile.TarFile.open
            self._tar = make(mode="r|", bufsize=_BUFFER_BYTES, errors="surrogateescape", **how)
        found: tarfile.TarInfo | None = None if self._ends else self._tar.next()
        self._tar.members.clear()  # tarfile would keep all of them
        if self._tar.pax_headers:
            raise ArchiveRefused("the archive has a header for all files, which no service of ours sends")
        return found

    def _header_class(self) -> type[tarfile.TarInfo]:
        """Return a class that reports the end mark, and each header that is none: ``tarfile`` ends silently there."""
        reader = self

        class Header(tarfile.TarInfo):
            @classmethod
            def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Header:
                if len(buf) < _BLOCK_BYTES:
                    raise EOFError
                reader._ends = not any(buf)
                try:
                    made = super().frombuf(buf, encoding, errors)
                except tarfile.HeaderError as error:
                    if reader._ends:
                        raise
                    raise ValueError(str(error)) from None
                if made.size < 0:
                    raise ValueError("a size is below 0")
                return made

        return Header

    def _member(self, found: tarfile.TarInfo) -> Member:
        path = found.name
        is_sparse = found.issparse() or any(key.startswith("GNU.sparse") for key in found.pax_headers)
        if is_sparse or found.type not in (*_FILES, tarfile.SYMTYPE) or found.size < 0:
            kind = "a sparse file" if is_sparse else _KINDS.get(found.type, "of an unknown kind")
            raise ArchiveRefused(f"{quoted(path)} in the archive is {kind}: only files and links are fetched")
        if path.startswith("/") or ".." in path.split("/"):
            raise ArchiveRefused(f"{quoted(path)} in the archive leads out of the directory")
        self._count += 1
        if self._count > MOST_FILES:
            raise ArchiveRefused(f"the archive has more than {MOST_FILES} files: name patterns to fetch a part of them")
        fault = path_fault(path) or self._names.fault(path)
        if found.type != tarfile.SYMTYPE:
            return Member(
                path=path,
                size_bytes=found.size,
                executable=bool(found.mode & 0o100),
                modified_s=int(found.mtime) if 0 <= found.mtime < _MOST_S else 0,
                fault=fault,
            )
        why = target_fault(found.linkname)
        fault = fault or (f"is a link to {quoted(found.linkname)}, which {why}" if why else None)
        return Member(path=path, target=found.linkname, fault=fault)

    def _check_end(self) -> None:
        """Check the second block of the end mark, and read what fills the last record."""
        stream = self._tar.fileobj if self._tar is not None else None
        if stream is None or not self._ends:
            raise ValueError("it has no end mark")
        self._source.left_bytes = _BUFFER_BYTES + MOST_HEADER_BYTES
        if len(stream.read(_BLOCK_BYTES)) < _BLOCK_BYTES:
            raise EOFError
        while stream.read(_BUFFER_BYTES):
            pass


class _Bounded:
    """Reads from *source* as long as ``left_bytes`` is above 0: a header can ask for any size."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self.left_bytes = 0
        self.is_over = False

    def read(self, size: int, /) -> bytes:
        if self.left_bytes <= 0:
            raise ArchiveRefused(f"the archive has headers of more than {MOST_HEADER_BYTES} bytes for one file")
        found = self._source.read(size)
        self.left_bytes -= len(found)
        self.is_over = not found
        return found


class _Names:
    """The names of an archive, as file systems without upper and lower case compare them."""

    def __init__(self) -> None:
        self._exact: dict[str, str] = {}
        self._folders: set[str] = set()

    def fault(self, path: str) -> str | None:
        """Return why *path* cannot be made beside the paths before it, in words that follow it, or None; note it.

        Raises:
            ArchiveRefused: there are too many directories.

        """
        if len(self._folders) > MAX_FOLDERS:
            raise ArchiveRefused(
                f"the archive has more than {MAX_FOLDERS} directories: name patterns to fetch a part of them"
            )
        made: list[str] = []
        at = path
        while at and at not in self._folders:
            other = self._exact.get(folded(at))
            if other is not None:
                return _clash(path, at, other)
            made.append(at)
            at = at.rpartition("/")[0]
        if not made:
            return "is a directory as well"
        self._exact.update((folded(each), each) for each in made)
        self._folders.update(made[1:])
        return None


def _clash(path: str, at: str, other: str) -> str:
    """Return why *path* cannot be made: it, or the directory *at* above it, is there already as *other*."""
    if other != at:
        return f"and {quoted(other)} are the same where upper and lower case are"
    return "is there twice" if at == path else f"is below {quoted(at)}, which is no directory"
