"""Collects the blobs that no snapshot in use needs."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from gpuqueue.lazy.frozen import dataclass
from gpuqueue.snapshot.blob_store import PARTIAL, BlobStore
from gpuqueue.snapshot.errors import SnapshotNotHeld
from gpuqueue.snapshot.manifest import ACCEPTED_BEFORE, read_manifest

#: How long a blob stays after it was last sent or asked for, in seconds: longer than an upload takes.
GRACE_S = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Collected:
    """How many blobs were removed, their bytes, and the addresses to keep that are not in the store."""

    blobs: int
    size_bytes: int
    absent: tuple[str, ...] = ()


def collect(store: BlobStore, keep: Iterable[str], *, diffs: Iterable[str] = (), grace_s: float = GRACE_S) -> Collected:
    """Remove the blobs that no snapshot at the addresses *keep* needs and that nobody has needed for *grace_s* seconds.

    The blobs *diffs*, which describe differences from commits, stay as well. Get both before the call. A job that is
    submitted during the call keeps its blobs: ``BlobStore.use`` and ``add_manifest`` renew their times before the
    submit. A damaged manifest stops the collection; a missing one is listed in ``absent``.

    Raises:
        InvalidManifest: a manifest to keep is damaged; nothing was removed.

    """
    before_s = time.time() - grace_s
    needed, absent = _needed(store, keep)
    needed.update(diffs)
    blobs = size_bytes = 0
    for path in _old(store, before_s):
        if path.name.startswith(PARTIAL):  # of an upload that a killed service left
            path.unlink(missing_ok=True)
        elif path.name not in needed and (removed_bytes := store.remove(path.name, before_s)) is not None:
            blobs, size_bytes = blobs + 1, size_bytes + removed_bytes
    return Collected(blobs=blobs, size_bytes=size_bytes, absent=tuple(absent))


def _needed(store: BlobStore, keep: Iterable[str]) -> tuple[set[str], list[str]]:
    needed: set[str] = set()
    absent = []
    for address in keep:
        try:
            needed.update(read_manifest(store.manifest_text(address), ACCEPTED_BEFORE).blobs())
        except SnapshotNotHeld:
            absent.append(address)
        needed.add(address)
    return needed, absent


def _old(store: BlobStore, before_s: float) -> Iterator[Path]:
    """Yield the blobs and partial uploads that were last needed before *before_s*."""
    for first in store.blobs.iterdir():
        for second in first.iterdir():
            for path in second.iterdir():
                with contextlib.suppress(FileNotFoundError):  # an upload has ended
                    if path.stat().st_mtime < before_s:
                        yield path
