"""Makes the files of a snapshot in a fresh directory, as the user whose job it is for. Standard library only.

The manifest and the blobs may come from an attacker. Only regular files, directories and links that stay inside are
made, with no other modes than 0755 and 0644. Each directory is opened by its parent without following links, links are
made after all files, and every blob is checked before the end. A failure removes all that was made.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
from collections.abc import Callable, Iterable
from contextlib import closing

from gpuqueue.lazy.frozen import dataclass
from gpuqueue.snapshot.errors import InvalidManifest, UnpackFailed
from gpuqueue.snapshot.folders import Folders
from gpuqueue.snapshot.limits import DEFAULT, Limits
from gpuqueue.snapshot.manifest import Entry, Kind, Manifest, address_of, read_manifest
from gpuqueue.snapshot.names import path_fault, quoted
from gpuqueue.snapshot.stream import Source, StreamReader

_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC
_CHUNK_BYTES = 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class Unpacked:
    """What was made: the working directory below the new directory, and how many files and bytes."""

    cwd: str
    files: int
    size_bytes: int


def unpack(
    text: bytes,
    blob: Callable[[str, int], Iterable[bytes]],
    directory: str,
    *,
    address: str | None = None,
    cwd: str = ".",
    limits: Limits = DEFAULT,
    copy: str | None = None,
) -> Unpacked:
    """Unpack the snapshot with the manifest *text* into the new *directory*, which must not exist.

    *blob* returns the blob with a SHA-256 and a size in bytes. It is called once for each blob, in the order of
    ``Manifest.blobs``. The manifest must have the *address*, if one is given. *cwd* is a directory of the snapshot; it
    is made even if it has no files. *copy* is the path of a new file for *text*, readable only by its owner.

    Raises:
        InvalidManifest: the manifest is invalid, or above *limits*; nothing was made.
        UnpackFailed: a blob is not what the manifest says, or the disk refuses; what was made was removed.

    """
    if address is not None and address_of(text) != address:
        raise InvalidManifest(f"the manifest is not the one with the address {quoted(address)}")
    manifest = read_manifest(text, limits)
    check_directory(cwd, manifest)
    try:
        os.mkdir(directory, 0o700)
    except OSError as error:
        raise UnpackFailed(f"cannot make {quoted(directory)} for the snapshot: {error.strerror}") from None
    done = False
    try:
        with closing(Folders(directory, make=True)) as folders:
            _make_all(manifest, blob, folders)
            folders.of(f"{cwd}/.")  # makes it
        if copy is not None:
            _write_copy(copy, text)
        done = True
    except OSError as error:
        raise UnpackFailed(f"cannot unpack the snapshot in {quoted(directory)}: {error.strerror or error}") from error
    finally:
        if not done:
            shutil.rmtree(directory, ignore_errors=True)
    return Unpacked(
        cwd=os.path.normpath(os.path.join(directory, cwd)),
        files=len(manifest.entries),
        size_bytes=manifest.size_bytes(),
    )


def unpack_stream(
    source: Source,
    directory: str,
    *,
    address: str | None = None,
    cwd: str = ".",
    limits: Limits = DEFAULT,
    copy: str | None = None,
) -> Unpacked:
    """Unpack the snapshot that ``stream.write_stream`` sent; the rest is as for ``unpack``.

    Raises:
        InvalidManifest: as for ``unpack``.
        UnpackFailed: as for ``unpack``; or the stream is cut short.

    """
    stream = StreamReader(source)
    return unpack(
        stream.text,
        lambda _, size: stream.blob(size),
        directory,
        address=address,
        cwd=cwd,
        limits=limits,
        copy=copy,
    )


def check_directory(cwd: str, manifest: Manifest) -> None:
    """Check that *cwd* is or can be a directory of the snapshot.

    Raises:
        InvalidManifest: it is a file, or no path in a snapshot.

    """
    if cwd == ".":
        return
    fault = path_fault(cwd)
    if fault is not None:
        raise InvalidManifest(f"the working directory {quoted(cwd)} {fault}")
    for each in manifest.entries:
        if each.path == cwd or cwd.startswith(f"{each.path}/"):
            raise InvalidManifest(f"the working directory {quoted(cwd)} is no directory of the snapshot")


def _make_all(manifest: Manifest, blob: Callable[[str, int], Iterable[bytes]], folders: Folders) -> None:
    first: dict[str, str] = {}
    for entry in manifest.entries:
        if entry.sha256 is not None:
            _make_file(entry, blob, folders, first.setdefault(entry.sha256, entry.path))
    for entry in manifest.entries:  # after all files, so that no file is written by way of a link
        if entry.kind is Kind.LINK and entry.target is not None:
            folder, name = folders.of(entry.path)
            os.symlink(entry.target, name, dir_fd=folder)


def _write_copy(path: str, text: bytes) -> None:
    """Write *text* into the new file *path*, or leave no file."""
    with open(os.open(path, _NEW, 0o600), "wb") as file:
        try:
            file.write(text)
            file.flush()
        except BaseException:
            os.unlink(path)
            raise


def _make_file(entry: Entry, blob: Callable[[str, int], Iterable[bytes]], folders: Folders, same: str) -> None:
    """Make the file of *entry*. If *same* is another path, copy the content of that file, which is already made."""
    sha256, size_bytes = entry.sha256 or "", entry.size_bytes or 0
    source = _open_made(same, folders) if same != entry.path else None
    try:
        folder, name = folders.of(entry.path)
        fd = os.open(name, _NEW, 0o755 if entry.executable else 0o644, dir_fd=folder)
        try:
            chunks = blob(sha256, size_bytes) if source is None else iter(lambda: os.read(source, _CHUNK_BYTES), b"")
            _write(fd, chunks, entry)
        finally:
            os.close(fd)
    finally:
        if source is not None:
            os.close(source)


def _open_made(path: str, folders: Folders) -> int:
    folder, name = folders.of(path)
    fd = os.open(name, _READ | os.O_NONBLOCK, dir_fd=folder)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise UnpackFailed(f"{quoted(path)} was replaced while the snapshot was unpacked")
    return fd


def _write(fd: int, chunks: Iterable[bytes], entry: Entry) -> None:
    digest, left_bytes = hashlib.sha256(), entry.size_bytes or 0
    for chunk in chunks:
        left_bytes -= len(chunk)
        if left_bytes < 0:
            raise UnpackFailed(f"more bytes came for {quoted(entry.path)} than the manifest says")
        digest.update(chunk)
        rest = memoryview(chunk)
        while rest:
            rest = rest[os.write(fd, rest) :]
    if left_bytes or digest.hexdigest() != entry.sha256:
        raise UnpackFailed(f"the content that arrived for {quoted(entry.path)} is not that of the snapshot")
