"""Tests of several uploads and collections of one blob store at the same time."""

from __future__ import annotations

import hashlib
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from gpuqueue.snapshot.blob_store import BlobStore
from gpuqueue.snapshot.collect import collect
from gpuqueue.snapshot.errors import SnapshotNotHeld
from gpuqueue.snapshot.manifest import Entry, Manifest

#: Accounts that send at the same time. The blobs are few, so that all send the same ones.
ACCOUNTS, CONTENTS = 4, 12
#: Grace of the collections, in seconds, and what of it a check may take: file times are up to 10 ms behind the clock.
GRACE_S = 0.2
CHECK_S = GRACE_S - 0.05
#: What must have happened before the test ends, and how long it may take, in seconds.
CHECKED, REMOVED, MOST_S = 200, 20, 90.0


def content(number: int) -> bytes:
    """Return one of the blobs."""
    return f"content {number % CONTENTS}".encode()


def manifest(first: int) -> Manifest:
    """Return a snapshot of three of the blobs."""
    three = [content(first + n) for n in range(3)]
    return Manifest(
        tuple(
            Entry(path=f"f{n}", sha256=hashlib.sha256(each).hexdigest(), size_bytes=len(each))
            for n, each in enumerate(three)
        )
    )


def submit(store: BlobStore, uid: int, first: int) -> str:
    """Send a snapshot as a client does, and return its address."""
    by_hash = {hashlib.sha256(content(n)).hexdigest(): content(n) for n in range(CONTENTS)}
    made = manifest(first)
    while True:
        try:
            for sha256 in store.missing(uid, made.blobs()):
                store.put(uid, sha256, len(by_hash[sha256]), [by_hash[sha256]], most_bytes=100)
            return store.add_manifest(uid, made.text()).address()
        except (SnapshotNotHeld, FileNotFoundError):  # collected meanwhile: the grace is very short here
            continue


def is_whole(store: BlobStore, uid: int, address: str) -> bool:
    """Return whether the snapshot can be used and read."""
    try:
        for sha256 in store.use(uid, address).blobs():
            with store.open(sha256) as file:
                assert sha256 == hashlib.sha256(file.read()).hexdigest()
    except SnapshotNotHeld:
        return False
    return True


def test_a_snapshot_in_use_is_whole_while_all_others_are_collected(tmp_path: Path) -> None:
    """Collections run all the time and keep nothing; within the grace after a use, no content is missing."""
    store = BlobStore(tmp_path / "snapshots")
    removed: list[int] = []
    checked: list[bool] = []
    until_s = time.monotonic() + MOST_S

    def goes_on() -> bool:
        return time.monotonic() < until_s and (sum(removed) < REMOVED or len(checked) < CHECKED)

    def collect_always() -> None:
        while goes_on():
            removed.append(collect(store, [], grace_s=GRACE_S).blobs)

    def client(uid: int) -> None:
        turn = 0
        while goes_on():
            turn += 1
            used_s = time.monotonic()
            address = submit(store, uid, turn * uid)
            whole = is_whole(store, uid, address)
            if time.monotonic() - used_s < CHECK_S:  # else it may have been collected rightly
                checked.append(whole)

    with ThreadPoolExecutor(ACCOUNTS + 2) as pool:
        for each in [
            *(pool.submit(collect_always) for _ in range(2)),
            *(pool.submit(client, 1000 + n) for n in range(ACCOUNTS)),
        ]:
            each.result(timeout=MOST_S + 20)

    assert sum(removed) >= REMOVED, "nothing was collected, so nothing was tested"
    assert len(checked) >= CHECKED
    assert all(checked)
