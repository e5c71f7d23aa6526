"""Tests of several uploads and collections of one blob store at the same time."""

from __future__ import annotations

import hashlib
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from bounded import until

from gpuqueue.files.blob_store import BlobStore
from gpuqueue.files.collect import collect
from gpuqueue.files.errors import SnapshotNotHeld
from gpuqueue.files.manifest import Entry, Manifest

#: Accounts that send at the same time. The blobs are few, so that all send the same ones.
ACCOUNTS, CONTENTS = 4, 12
#: Grace of the collections, in seconds, and what of it a check may take: file times are up to 10 ms behind the clock.
GRACE_S = 0.2
CHECK_S = GRACE_S - 0.05
#: How often each account uses a snapshot.
ROUNDS = 60


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
    checked: list[bool] = []
    over = threading.Event()

    def collect_always() -> None:
        while not over.is_set():
            collect(store, [], grace_s=GRACE_S)

    def client(uid: int) -> None:
        for turn in range(1, ROUNDS + 1):
            used_s = time.monotonic()
            address = submit(store, uid, turn * uid)
            whole = is_whole(store, uid, address)
            if time.monotonic() - used_s < CHECK_S:  # else it may have been collected rightly
                checked.append(whole)

    with ThreadPoolExecutor(ACCOUNTS + 2) as pool:
        collecting = [pool.submit(collect_always) for _ in range(2)]
        try:
            for client_rounds in [pool.submit(client, 1000 + n) for n in range(ACCOUNTS)]:
                client_rounds.result()
        finally:
            over.set()
        for collection in collecting:
            collection.result()

    assert all(checked)
    submit(store, 1000, 1)
    until(lambda: collect(store, [], grace_s=GRACE_S).blobs, what="the collection of what nobody uses any more")
