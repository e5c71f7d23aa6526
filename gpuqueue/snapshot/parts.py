"""Receives blobs in parts. An unfinished blob is in a file of its account, and is stored once it is complete.

A part may come again, after a lost answer, and two requests may send the same blob at once. The parts of a blob come in
order.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from gpuqueue.errors import BadRequest
from gpuqueue.snapshot.blob_store import BlobStore
from gpuqueue.snapshot.manifest import SHA256
from gpuqueue.text.sanitize import brief

_CHUNK_BYTES = 2**20


class Parts:
    """The unfinished blobs, in a directory of their own in that of *store*."""

    def __init__(self, store: BlobStore) -> None:
        self._store = store
        self._root = store.root / "parts"

    def add(
        self, uid: int, sha256: str, size_bytes: int, offset_bytes: int, content: bytes, *, most_bytes: int
    ) -> None:
        """Add *content* at *offset_bytes* to a blob of *size_bytes* that the account *uid* sends.

        Raises:
            BadRequest: the part lies outside of the blob, or a part before it is missing.
            BlobRefused: the blob is complete, but does not have the hash *sha256*.

        """
        if not SHA256.fullmatch(sha256):
            raise BadRequest(f"{brief(sha256)} is no SHA-256")
        if not 0 <= offset_bytes <= offset_bytes + len(content) <= size_bytes <= most_bytes:
            raise BadRequest(f"the part of {sha256[:12]} lies outside of a blob of at most {most_bytes} bytes")
        if len(content) == size_bytes:
            self._store.put(uid, sha256, size_bytes, [content], most_bytes=most_bytes)
            return
        with self._opened(uid, sha256) as (fd, path):
            if not self._store.missing(uid, [sha256]):  # it was complete, and its file of parts is gone
                path.unlink(missing_ok=True)
                return
            here_bytes = os.fstat(fd).st_size
            if here_bytes < offset_bytes:
                raise BadRequest(f"a part of {sha256[:12]} is missing before byte {offset_bytes}: send it again")
            if here_bytes < offset_bytes + len(content):
                os.pwrite(fd, content, offset_bytes)
            if os.fstat(fd).st_size >= size_bytes:
                try:
                    self._store.put(uid, sha256, size_bytes, _chunks(fd), most_bytes=most_bytes)
                finally:
                    path.unlink(missing_ok=True)

    def size_bytes_of(self, uid: int) -> int:
        """Return the size of the unfinished blobs of the account *uid*, in bytes."""
        found = 0
        for path in (self._root / str(uid)).glob("*"):
            with suppress(FileNotFoundError):
                found += path.stat().st_size
        return found

    def forget(self, before_s: float | None = None) -> None:
        """Delete the parts to which nothing was added since *before_s*, in seconds since 1970; default: an hour ago."""
        before_s = time.time() - 3600 if before_s is None else before_s
        for path in self._root.glob("*/*"):
            with suppress(FileNotFoundError):
                if path.stat().st_mtime < before_s:
                    path.unlink()

    @contextmanager
    def _opened(self, uid: int, sha256: str) -> Iterator[tuple[int, Path]]:
        """Open the file of an unfinished blob under an exclusive lock."""
        folder = self._root / str(uid)
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        path = folder / sha256
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            yield fd, path
        finally:
            os.close(fd)


def _chunks(fd: int) -> Iterator[bytes]:
    offset = 0
    while chunk := os.pread(fd, _CHUNK_BYTES, offset):
        offset += len(chunk)
        yield chunk
