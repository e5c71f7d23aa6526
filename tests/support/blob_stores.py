"""Blob stores for tests: contents, snapshots of them, and their age."""

from __future__ import annotations

import hashlib
import os

from gpuqueue.files.blob_store import BlobStore
from gpuqueue.files.manifest import Entry, Manifest

ALICE, BOB = 1001, 1002


def sha(content: bytes) -> str:
    """Return the SHA-256 of *content*."""
    return hashlib.sha256(content).hexdigest()


def send(store: BlobStore, uid: int, *contents: bytes) -> None:
    """Send blobs as the account *uid*."""
    for content in contents:
        store.put(uid, sha(content), len(content), [content], most_bytes=100)


def manifest(*contents: bytes) -> Manifest:
    """Return a manifest with one file for each content."""
    return Manifest(
        tuple(Entry(path=f"f{n}", sha256=sha(each), size_bytes=len(each)) for n, each in enumerate(contents))
    )


def files(store: BlobStore) -> set[str]:
    """Return the names of all files in the store, apart from its lock."""
    return {each.name for each in store.root.rglob("*") if each.is_file()} - {"lock"}


def age(store: BlobStore, seconds: float) -> None:
    """Make all files of the store older."""
    for each in store.root.rglob("*"):
        if each.is_file():
            at = each.stat().st_mtime - seconds
            os.utime(each, (at, at))
