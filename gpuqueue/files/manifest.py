"""What travels of a snapshot: the manifest, which names its files and links, and the stream with all of it.

Standard library only. The canonical text of a manifest is UTF-8, one line for each entry, sorted by path, with tabs
between fields::

    gpuqueue-snapshot 1
    file	<sha256>	<size in bytes>	<path>
    exec	<sha256>	<size in bytes>	<path>
    link	<target>	<path>

The address of a snapshot is the SHA-256 of this text, so equal trees have equal addresses. There are no times, owners
or other modes, and no empty directories. A manifest comes from another machine: every value here validates itself.

The stream is one line with the length of the manifest in bytes, the manifest, and then each blob once, in the order of
``Manifest.blobs``. The manifest has the lengths of the blobs, so the stream has no separators.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from enum import Enum
from typing import Protocol

from gpuqueue.files import limits as size_limits
from gpuqueue.files.errors import InvalidManifest, SnapshotTooLarge, UnpackFailed
from gpuqueue.files.folders import CHUNK_BYTES
from gpuqueue.files.limits import DEFAULT, Limits
from gpuqueue.files.names import check_links, folded, path_fault, quoted, target_fault
from gpuqueue.lazy.frozen import dataclass
from gpuqueue.lazy.imports import pattern
from gpuqueue.text.sanitize import brief

#: The first line of the text. A later format has another number.
HEADER = "gpuqueue-snapshot 1"
#: Longest text of a manifest, in bytes: 20 000 entries with paths of 300 bytes.
MAX_TEXT_BYTES = 8 * 2**20
#: Largest size that an entry can have, in bytes. The limits are lower.
MAX_SIZE_BYTES = 2**50
#: Limits for a manifest that was accepted before. The site's limits may have been lowered since.
ACCEPTED_BEFORE = Limits(total_bytes=MAX_SIZE_BYTES, file_bytes=MAX_SIZE_BYTES, files=10**9)
#: Most directories. A few thousand files in deep directories of their own would otherwise fill a disk with directories.
MAX_FOLDERS = 50_000
#: How the first line of a stream begins.
STREAM_HEADER = b"gpuqueue-snapshot-stream 1 "

SHA256 = pattern(r"[0-9a-f]{64}")
_SIZE = pattern(r"0|[1-9][0-9]{0,15}")
_LENGTH = pattern(r"[1-9][0-9]{0,8}")


class Kind(str, Enum):
    """What an entry is. Directories follow from the paths; devices, pipes and such never travel."""

    FILE = "file"
    LINK = "link"


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One file or symbolic link. A file has ``sha256`` and ``size_bytes``, a link has ``target``."""

    path: str
    kind: Kind = Kind.FILE
    executable: bool = False
    sha256: str | None = None
    size_bytes: int | None = None
    target: str | None = None

    def __post_init__(self) -> None:
        """Validate the fields.

        Raises:
            InvalidManifest: a field is invalid.

        """
        fault = path_fault(str(self.path))
        if fault is not None:
            raise InvalidManifest(f"the path {quoted(self.path)} {fault}")
        if self.kind is Kind.LINK:
            self._check_link()
        elif self.kind is Kind.FILE:
            self._check_file()
        else:
            raise InvalidManifest(f"{quoted(self.path)} is neither file nor link")

    def line(self) -> str:
        """Return the line of the canonical text."""
        if self.kind is Kind.LINK:
            return f"link\t{self.target}\t{self.path}"
        return f"{'exec' if self.executable else 'file'}\t{self.sha256}\t{self.size_bytes}\t{self.path}"

    def _check_file(self) -> None:
        if not SHA256.fullmatch(str(self.sha256)):
            raise InvalidManifest(f"{quoted(self.path)} has {brief(self.sha256)}, which is no SHA-256")
        if type(self.size_bytes) is not int or not 0 <= self.size_bytes <= MAX_SIZE_BYTES:
            raise InvalidManifest(f"{quoted(self.path)} has {brief(self.size_bytes)}, which is no size of a file")
        if self.target is not None:
            raise InvalidManifest(f"the file {quoted(self.path)} has fields that no file has")

    def _check_link(self) -> None:
        fault = target_fault(self.target or "")
        if fault is not None:
            raise InvalidManifest(f"the link {quoted(self.path)} leads to {quoted(self.target or '')}, which {fault}")
        if self.executable or self.sha256 is not None or self.size_bytes is not None:
            raise InvalidManifest(f"the link {quoted(self.path)} has fields that no link has")


@dataclass(frozen=True, slots=True)
class Manifest:
    """The entries of a snapshot, sorted by path. A value of this class can be unpacked on any host."""

    entries: tuple[Entry, ...]

    def __post_init__(self) -> None:
        """Validate the entries together.

        Raises:
            InvalidManifest: the entries are not sorted, or exclude each other, or a link leads out of the snapshot.

        """
        _check_order(self.entries)
        _check_tree(self.entries)
        _check_contents(self.entries)
        check_links({each.path: each.target for each in self.entries if each.target is not None})

    def text(self) -> bytes:
        """Return the canonical text."""
        return "".join(f"{each}\n" for each in (HEADER, *(entry.line() for entry in self.entries))).encode()

    def address(self) -> str:
        """Return the address: the SHA-256 of the canonical text, in hexadecimal."""
        return address_of(self.text())

    def size_bytes(self) -> int:
        """Return the size of all files once unpacked, in bytes. A blob that two files share counts twice."""
        return sum(each.size_bytes or 0 for each in self.entries)

    def blobs(self) -> dict[str, int]:
        """Return the size in bytes of each blob by its SHA-256, in the order of their first files."""
        return {each.sha256: each.size_bytes or 0 for each in self.entries if each.sha256 is not None}


def address_of(text: bytes) -> str:
    """Return the address of the manifest with the canonical *text*."""
    return hashlib.sha256(text).hexdigest()


def read_manifest(text: bytes, limits: Limits = DEFAULT) -> Manifest:
    """Return the manifest with the canonical *text*, which may come from an attacker.

    Raises:
        InvalidManifest: the text is not canonical, is above *limits*, or describes what must not be unpacked.

    """
    if len(text) > MAX_TEXT_BYTES:
        raise InvalidManifest(f"the manifest has more than {MAX_TEXT_BYTES} bytes")
    if text.count(b"\n") > limits.files + 1:
        raise InvalidManifest(f"the manifest has more than {limits.files} entries")
    manifest = Manifest(tuple(_entries(text)))
    try:
        size_limits.check([(each.path, each.size_bytes or 0) for each in manifest.entries], limits)
    except SnapshotTooLarge as error:
        raise InvalidManifest(str(error)) from None
    if manifest.text() != text:
        raise InvalidManifest("the manifest is not in its canonical form")
    return manifest


def _entries(text: bytes) -> Iterator[Entry]:
    try:
        lines = text.decode("utf-8").split("\n")
    except UnicodeDecodeError as error:
        raise InvalidManifest(f"the manifest is not UTF-8: byte {error.start}") from None
    if lines[0] != HEADER:
        raise InvalidManifest(f"the manifest begins with {brief(lines[0][:80])}, not with {HEADER!r}")
    if lines[-1]:
        raise InvalidManifest("the manifest does not end with a line end")
    for number, line in enumerate(lines[1:-1], start=2):
        try:
            yield _entry(line)
        except InvalidManifest as error:
            raise InvalidManifest(f"line {number} of the manifest: {error}") from None


def _entry(line: str) -> Entry:
    match line.split("\t"):
        case ["file" | "exec" as kind, sha256, size, path] if _SIZE.fullmatch(size):
            return Entry(path=path, executable=kind == "exec", sha256=sha256, size_bytes=int(size))
        case ["file" | "exec", _, size, path]:
            raise InvalidManifest(f"{quoted(path)} has {brief(size)}, which is no size of a file")
        case ["link", target, path]:
            return Entry(path=path, kind=Kind.LINK, target=target)
        case _:
            raise InvalidManifest(f"{brief(line)} is neither file nor link")


def _check_order(entries: tuple[Entry, ...]) -> None:
    before = ""
    for entry in entries:
        if entry.path == before:
            raise InvalidManifest(f"{quoted(entry.path)} is there twice")
        if entry.path < before:
            raise InvalidManifest(f"the paths are not sorted: {quoted(entry.path)} comes after {quoted(before)}")
        before = entry.path


def _check_tree(entries: tuple[Entry, ...]) -> None:
    """Check that no two names are one on a file system without case, and that only directories have entries below."""
    exact: dict[str, str] = {}
    below: dict[str, str] = {}
    for entry in entries:
        _check_spelling(exact, entry.path)
        folder = entry.path.rpartition("/")[0]
        while folder and folder not in below:
            below[folder] = entry.path
            _check_spelling(exact, folder)
            folder = folder.rpartition("/")[0]
        if len(below) > MAX_FOLDERS:
            raise InvalidManifest(f"there are more than {MAX_FOLDERS} directories")
    for entry in entries:
        if entry.path in below:
            what = "a link" if entry.kind is Kind.LINK else "a file"
            raise InvalidManifest(f"{quoted(entry.path)} is {what}, but {quoted(below[entry.path])} is below it")


def _check_spelling(exact: dict[str, str], path: str) -> None:
    other = exact.setdefault(folded(path), path)
    if other != path:
        raise InvalidManifest(
            f"{quoted(other)} and {quoted(path)} are the same where upper and lower case are: rename or leave out one"
        )


def _check_contents(entries: tuple[Entry, ...]) -> None:
    sizes: dict[str, int | None] = {}
    for entry in entries:
        if entry.sha256 is not None and sizes.setdefault(entry.sha256, entry.size_bytes) != entry.size_bytes:
            raise InvalidManifest(f"{quoted(entry.path)} has the content of another file, but not its size")


class Source(Protocol):
    """An open file, or something else that bytes are read from."""

    def read(self, size: int, /) -> bytes:
        """Return at most *size* bytes, none at the end."""


def stream_size_bytes(manifest: Manifest) -> int:
    """Return the length of the stream of the snapshot with this *manifest*, in bytes."""
    text = manifest.text()
    return len(STREAM_HEADER) + len(f"{len(text)}\n") + len(text) + sum(manifest.blobs().values())


def write_stream(manifest: Manifest, blob: Callable[[str], Iterable[bytes]]) -> Iterator[bytes]:
    """Yield the stream of the snapshot with this *manifest*; *blob* returns the blob with a SHA-256."""
    text = manifest.text()
    yield STREAM_HEADER + f"{len(text)}\n".encode() + text
    for sha256 in manifest.blobs():
        yield from blob(sha256)


class StreamReader:
    """Reads a stream: first ``text``, the manifest, and then each blob by ``blob`` in the order of the stream."""

    def __init__(self, source: Source) -> None:
        """Read the manifest.

        Raises:
            UnpackFailed: the stream is cut short, or does not begin as a stream of a snapshot.

        """
        self._source = source
        line = b""
        while not line.endswith(b"\n") and len(line) < len(STREAM_HEADER) + 16:
            line += self._exactly(1)
        length = line.removeprefix(STREAM_HEADER).removesuffix(b"\n").decode("ascii", "replace")
        if not line.startswith(STREAM_HEADER) or not _LENGTH.fullmatch(length) or int(length) > MAX_TEXT_BYTES:
            raise UnpackFailed(f"the stream begins with {brief(line)}, so it is no snapshot")
        self.text = self._exactly(int(length))

    def blob(self, size_bytes: int) -> Iterator[bytes]:
        """Yield the next blob, of *size_bytes*.

        Raises:
            UnpackFailed: the stream is cut short.

        """
        while size_bytes:
            part = self._source.read(min(size_bytes, CHUNK_BYTES))
            if not part:
                raise UnpackFailed("the snapshot was cut short on its way")
            size_bytes -= len(part)
            yield part

    def _exactly(self, size_bytes: int) -> bytes:
        return b"".join(self.blob(size_bytes))
