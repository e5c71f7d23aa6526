"""Lists and deletes what a blob store keeps: the snapshots of an account, and the blobs that no snapshot in use needs.

An account that deletes a snapshot no longer counts as the sender of its blobs. A blob that another snapshot of the
account needs, or that another account has sent, stays. So does one that was needed a moment ago, perhaps for a job that
is being submitted: the collection removes it later.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from gpuqueue.files.blob_store import PARTIAL, BlobStore
from gpuqueue.files.errors import InvalidManifest, SnapshotNotHeld
from gpuqueue.files.manifest import HEADER
from gpuqueue.files.names import quoted
from gpuqueue.lazy.frozen import dataclass

#: How long a blob stays after it was last sent or asked for, in seconds: longer than an upload takes.
GRACE_S = 3600.0
#: How recently a blob that stays was needed, in seconds: longer than a submit takes.
RECENT_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldSnapshot:
    """A snapshot of an account: its files and their size once unpacked, and the last use in seconds since 1970."""

    address: str
    files: int
    size_bytes: int
    used_at_s: float


def listed(store: BlobStore, uid: int) -> list[HeldSnapshot]:
    """Return the snapshots of the account *uid*, the last used first. Those that were collected are not listed."""
    found = []
    for address, held in store.held.of(uid).items():
        try:
            sizes = _sizes(store.manifest_text(address))
        except SnapshotNotHeld:
            continue
        size_bytes = sum(size for _, size in sizes)
        found.append(HeldSnapshot(address=address, files=len(sizes), size_bytes=size_bytes, used_at_s=held.used_at_s))
    return sorted(found, key=lambda each: each.used_at_s, reverse=True)


def resolve(store: BlobStore, uid: int, word: str) -> str:
    """Return the address of the snapshot of the account *uid* that begins with *word*.

    Raises:
        SnapshotNotHeld: there is none, or there are several.

    """
    found = [each for each in store.held.of(uid) if each.startswith(word)]
    if len(found) > 1:
        raise SnapshotNotHeld(f"{len(found)} of your snapshots begin with {quoted(word)}: give more digits")
    if not found:
        raise SnapshotNotHeld(f"you have no snapshot {quoted(word)} here: gpuqueue snapshots lists those that you have")
    return found[0]


def delete(store: BlobStore, uid: int, address: str, keep: Iterable[str]) -> int:
    """Delete the snapshot at *address* of the account *uid*, and return how many bytes of the disk became free.

    The blobs of its other snapshots, and of those at the addresses *keep*, stay. What the account sent more than an
    hour ago for a snapshot that never became complete is deleted as well.

    Raises:
        SnapshotNotHeld: the account has no such snapshot.
        InvalidManifest: the manifest of another snapshot is damaged; nothing was deleted.

    """
    held = store.held.of(uid)
    if address not in held:
        raise SnapshotNotHeld(f"you have no snapshot {address[:12]} here")
    needed = _needed(store, {*held, *keep} - {address})
    needed.update(diff for other, each in held.items() if other != address for diff in each.diffs)
    own = {*_needed(store, [address]), *held[address].diffs}
    old_s = time.time() - GRACE_S
    sent = store.sent(uid).items()
    gone = [sha for sha, about in sent if sha not in needed and (sha in own or about.st_mtime < old_s)]
    with store.locked(alone=True):
        store.held.remove(uid, address)
        store.release(uid, gone)
    before_s = time.time() - RECENT_S
    return sum(store.remove(each, before_s, unless_sent=True) or 0 for each in gone)


def _sizes(text: bytes) -> list[tuple[str, int]]:
    """Return the hash and the size in bytes of each entry of the manifest *text*, which was accepted before.

    A link has neither. The strict reader takes thirty times as long.
    """
    found, lines = [], text.decode("utf-8", "replace").split("\n")
    if lines[0] != HEADER or lines[-1]:
        raise InvalidManifest("the manifest is damaged")
    for line in lines[1:-1]:
        match line.split("\t"):
            case ["file" | "exec", sha256, size, _] if size.isdigit():
                found.append((sha256, int(size)))
            case ["link", _, _]:
                found.append(("", 0))
            case _:
                raise InvalidManifest("the manifest is damaged")
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Collected:
    """How many blobs were removed, and their bytes."""

    blobs: int
    size_bytes: int


def collect(store: BlobStore, keep: Iterable[str], *, diffs: Iterable[str] = (), grace_s: float = GRACE_S) -> Collected:
    """Remove the blobs that no snapshot at the addresses *keep* needs and that nobody has needed for *grace_s* seconds.

    The blobs *diffs*, which describe differences from commits, stay as well. Get both before the call. A job that is
    submitted during the call keeps its blobs: ``BlobStore.use`` and ``add_manifest`` renew their times before the
    submit. A damaged manifest stops the collection; a missing one does not.

    Raises:
        InvalidManifest: a manifest to keep is damaged; nothing was removed.

    """
    before_s = time.time() - grace_s
    needed = {*_needed(store, keep), *diffs}
    blobs = size_bytes = 0
    for path in _old(store, before_s):
        if path.name.startswith(PARTIAL):  # of an upload that a killed service left
            path.unlink(missing_ok=True)
        elif path.name not in needed and (removed_bytes := store.remove(path.name, before_s)) is not None:
            blobs, size_bytes = blobs + 1, size_bytes + removed_bytes
    return Collected(blobs=blobs, size_bytes=size_bytes)


def _needed(store: BlobStore, addresses: Iterable[str]) -> set[str]:
    """Return the blobs of the snapshots at *addresses* that are stored, and the addresses themselves."""
    needed: set[str] = set()
    for address in addresses:
        needed.add(address)
        with contextlib.suppress(SnapshotNotHeld):
            needed.update(sha256 for sha256, _ in _sizes(store.manifest_text(address)) if sha256)
    return needed


def _old(store: BlobStore, before_s: float) -> Iterator[Path]:
    """Yield the blobs and partial uploads that were last needed before *before_s*."""
    for first in store.blobs.iterdir():
        for second in first.iterdir():
            for path in second.iterdir():
                with contextlib.suppress(FileNotFoundError):  # an upload has ended
                    if path.stat().st_mtime < before_s:
                        yield path
