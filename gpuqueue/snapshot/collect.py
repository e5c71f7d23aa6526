"""Collects the blobs that no snapshot in use needs."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from gpuqueue.lazy.frozen import dataclass
from gpuqueue.snapshot.blob_store import PARTIAL, BlobStore
from gpuqueue.snapshot.errors import SnapshotNotHeld
from gpuqueue.snapshot.limits import Limits
from gpuqueue.snapshot.manifest import MAX_SIZE_BYTES, SHA256, read_manifest

#: How long a blob stays after it was last sent or asked for, in seconds: longer than an upload takes.
GRACE_S = 3600.0
#: Limits may have been lowered since a manifest was accepted; what it needs stays all the same.
_ANY = Limits(total_bytes=MAX_SIZE_BYTES, file_bytes=MAX_SIZE_BYTES, files=10**9)


@dataclass(frozen=True, slots=True, kw_only=True)
class Collected:
    """How many blobs were removed, their bytes, and the addresses to keep that are not in the store."""

    blobs: int
    size_bytes: int
    absent: tuple[str, ...] = ()


def collect(store: BlobStore, keep: Iterable[str], *, grace_s: float = GRACE_S) -> Collected:
    """Remove the blobs that no snapshot at the addresses *keep* needs and that nobody has needed for *grace_s* seconds.

    Get *keep* before the call. A job that is submitted meanwhile is safe if ``BlobStore.use`` or ``add_manifest`` came
    before it. An address whose manifest cannot be read stops the collection.

    Raises:
        InvalidManifest: a manifest to keep is damaged; nothing was removed.

    """
    before_s = time.time() - grace_s
    needed, absent = _needed(store, keep)
    for aside in list(store.removed.iterdir()):  # of a collection that was cut short
        if SHA256.fullmatch(aside.name):
            _settle(aside, store.path_of(aside.name), stays=aside.name in needed, before_s=before_s)
    blobs = size_bytes = 0
    for path in _all(store):
        removed_bytes = None if path.name in needed else _remove(store, path, before_s)
        if removed_bytes is not None and not path.name.startswith(PARTIAL):
            blobs, size_bytes = blobs + 1, size_bytes + removed_bytes
            _forget(store, path)
    return Collected(blobs=blobs, size_bytes=size_bytes, absent=tuple(absent))


def _needed(store: BlobStore, keep: Iterable[str]) -> tuple[set[str], list[str]]:
    needed: set[str] = set()
    absent = []
    for address in keep:
        try:
            needed.update(read_manifest(store.manifest_text(address), _ANY).blobs())
        except SnapshotNotHeld:
            absent.append(address)
        needed.add(address)
    return needed, absent


def _all(store: BlobStore) -> Iterator[Path]:
    for first in store.blobs.iterdir():
        for second in first.iterdir():
            yield from second.iterdir()


def _remove(store: BlobStore, path: Path, before_s: float) -> int | None:
    """Remove *path* if it was last needed before *before_s*; return its size in bytes, or None if it stays."""
    try:
        if path.stat().st_mtime >= before_s:
            return None
        if path.name.startswith(PARTIAL):
            path.unlink()
            return 0
        aside = store.removed / path.name
        path.rename(aside)
    except FileNotFoundError:  # another collection was faster, or the upload has ended
        return None
    return _settle(aside, path, stays=False, before_s=before_s)


def _settle(aside: Path, path: Path, *, stays: bool, before_s: float) -> int | None:
    """Bring *aside* back to *path* if it *stays* or was needed since *before_s*, else remove it and return its size."""
    try:
        about = aside.stat()
        if back := stays or about.st_mtime >= before_s:
            with contextlib.suppress(FileExistsError):  # it was sent again
                os.link(aside, path)
        aside.unlink()
    except FileNotFoundError:  # another collection was faster
        return None
    return None if back else about.st_size


def _forget(store: BlobStore, path: Path) -> None:
    """Remove the marks of a blob that was removed, unless it is sent again at this moment."""
    for mark in store.marks_of(path.name):
        mark.unlink(missing_ok=True)
        if path.exists():
            mark.touch(mode=0o600)
