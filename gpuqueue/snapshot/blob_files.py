"""The files of the blob store: their names, and writing them so that they survive a power cut."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from pathlib import Path
from typing import BinaryIO

from gpuqueue.errors import BadRequest
from gpuqueue.snapshot.errors import BlobRefused
from gpuqueue.snapshot.manifest import SHA256
from gpuqueue.text.sanitize import brief


def copy(chunks: Iterable[bytes], file: BinaryIO, sha256: str, size_bytes: int) -> None:
    """Write *chunks* to *file*, which together have *size_bytes* and the hash *sha256*.

    Raises:
        BlobRefused: they have not.

    """
    digest, left_bytes = hashlib.sha256(), size_bytes
    for chunk in chunks:
        left_bytes -= len(chunk)
        if left_bytes < 0:
            raise BlobRefused(f"more than the announced {size_bytes} bytes were sent")
        digest.update(chunk)
        file.write(chunk)
    if left_bytes:
        raise BlobRefused(f"{size_bytes - left_bytes} bytes were sent, but {size_bytes} were announced")
    if digest.hexdigest() != sha256:
        raise BlobRefused(f"the blob that was sent does not have the SHA-256 {sha256[:12]}…: submit again")


def make(folder: Path) -> None:
    """Make *folder* and its parent, only for this account, if they are missing."""
    for each in (folder.parent, folder):
        try:
            each.mkdir(mode=0o700)
        except FileExistsError:
            continue
        sync(each.parent)


def sync(folder: Path) -> None:
    """Wait until the names in *folder* are on the disk."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def checked(sha256: str) -> str:
    """Return *sha256* if it is a hash. Then it cannot name another path.

    Raises:
        BadRequest: it is none.

    """
    if not SHA256.fullmatch(str(sha256)):
        raise BadRequest(f"{brief(sha256)} is no SHA-256")
    return sha256
