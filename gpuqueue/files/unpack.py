"""Makes the files of a snapshot in a fresh directory, as the user whose job it is for. Standard library only.

The manifest and the blobs may come from an attacker. Only regular files, directories and links that stay inside are
made, with no other modes than 0755 and 0644. Each directory is opened by its parent without following links, links are
made after all files, and every blob is checked before the end. A failure removes all that was made.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Iterable
from contextlib import closing

from gpuqueue.files.errors import InvalidManifest, UnpackFailed
from gpuqueue.files.folders import CHUNK_BYTES, Folders, open_file, write_all
from gpuqueue.files.manifest import (
    ACCEPTED_BEFORE,
    Entry,
    Kind,
    Manifest,
    Source,
    StreamReader,
    address_of,
    read_manifest,
)
from gpuqueue.files.names import path_fault, quoted
from gpuqueue.lazy.frozen import dataclass

_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(frozen=True, slots=True, kw_only=True)
class Unpacked:
    """What was made: the working directory below the new directory, and how many files and bytes."""

    cwd: str
    files: int
    size_bytes: int


def unpack_stream(
    source: Source,
    directory: str,
    *,
    address: str | None = None,
    cwd: str = ".",
    copy: str | None = None,
) -> Unpacked:
    """Unpack the snapshot that ``manifest.write_stream`` sent into the new *directory*, which must not exist.

    The manifest must have the *address*, if one is given. *cwd* is a directory of the snapshot; it is made even if it
    has no files. *copy* is the path of a new file for the manifest, readable only by its owner.

    The limits of a site are not checked: the service has accepted the manifest, and the address is its hash.

    Raises:
        InvalidManifest: the manifest is invalid; nothing was made.
        UnpackFailed: the stream is cut short, a blob is not what the manifest says, or the disk refuses; what was made
            was removed.

    """
    stream = StreamReader(source)
    text = stream.text
    if address is not None and address_of(text) != address:
        raise InvalidManifest(f"the manifest is not the one with the address {quoted(address)}")
    manifest = read_manifest(text, ACCEPTED_BEFORE)
    check_directory(cwd, manifest)
    try:
        os.mkdir(directory, 0o700)
    except OSError as error:
        raise UnpackFailed(f"cannot make {quoted(directory)} for the snapshot: {error.strerror}") from None
    done = False
    try:
        with closing(Folders(directory, make=True)) as folders:
            _make_all(manifest, stream, folders)
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


def _make_all(manifest: Manifest, stream: StreamReader, folders: Folders) -> None:
    first: dict[str, str] = {}
    for entry in manifest.entries:
        if entry.sha256 is not None:
            _make_file(entry, stream, folders, first.setdefault(entry.sha256, entry.path))
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


def _make_file(entry: Entry, stream: StreamReader, folders: Folders, same: str) -> None:
    """Make the file of *entry*. If *same* is another path, copy the content of that file, which is already made."""
    source = _open_made(same, folders) if same != entry.path else None
    try:
        folder, name = folders.of(entry.path)
        fd = os.open(name, _NEW, 0o755 if entry.executable else 0o644, dir_fd=folder)
        try:
            blob = stream.blob(entry.size_bytes or 0)
            chunks = blob if source is None else iter(lambda: os.read(source, CHUNK_BYTES), b"")
            _write(fd, chunks, entry)
        finally:
            os.close(fd)
    finally:
        if source is not None:
            os.close(source)


def _open_made(path: str, folders: Folders) -> int:
    folder, name = folders.of(path)
    found = open_file(name, folder)
    if found is None:
        raise UnpackFailed(f"{quoted(path)} was replaced while the snapshot was unpacked")
    return found[0]


def _write(fd: int, chunks: Iterable[bytes], entry: Entry) -> None:
    digest, left_bytes = hashlib.sha256(), entry.size_bytes or 0
    for chunk in chunks:
        left_bytes -= len(chunk)
        if left_bytes < 0:
            raise UnpackFailed(f"more bytes came for {quoted(entry.path)} than the manifest says")
        digest.update(chunk)
        write_all(fd, chunk)
    if left_bytes or digest.hexdigest() != entry.sha256:
        raise UnpackFailed(f"the content that arrived for {quoted(entry.path)} is not that of the snapshot")
