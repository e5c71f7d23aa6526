"""Tests of blobs that arrive in parts: a part that comes again, and two that send the same blob at once."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from gpuqueue.errors import BadRequest
from gpuqueue.snapshot.blob_store import BlobStore
from gpuqueue.snapshot.parts import Parts

CONTENT = b"onetwothree"
SHA256 = hashlib.sha256(CONTENT).hexdigest()
#: The parts of the blob: offset and end, in bytes.
PARTS = ((0, 3), (3, 6), (6, 11))
ALICE, BOB = 1001, 1002


@pytest.fixture
def store(tmp_path: Path) -> BlobStore:
    """Return an empty store."""
    return BlobStore(tmp_path / "snapshots")


def send(store: BlobStore, *parts: tuple[int, int], uid: int = ALICE) -> None:
    """Send parts of the blob."""
    for start, end in parts:
        Parts(store).add(uid, SHA256, len(CONTENT), start, CONTENT[start:end], most_bytes=100)


def test_the_last_part_may_come_again(store: BlobStore) -> None:
    """The answer to the part that completed the blob was lost, so the client sends it again."""
    send(store, *PARTS)

    send(store, PARTS[-1])

    assert CONTENT == b"".join(store.content(SHA256))
    assert (0, []) == (Parts(store).size_bytes_of(ALICE), [*(store.root / "parts" / str(ALICE)).iterdir()])


def test_two_may_send_the_same_blob_at_once(store: BlobStore) -> None:
    """One of two requests completes the blob. The rest of the other one is no error."""
    send(store, PARTS[0], PARTS[0], PARTS[1], PARTS[1], PARTS[2])

    send(store, PARTS[2])

    assert [] == store.missing(ALICE, [SHA256])


def test_a_blob_of_another_account_gives_no_answer(store: BlobStore) -> None:
    """Bob cannot learn that Alice has sent the blob: a part before his is missing."""
    send(store, *PARTS)

    with pytest.raises(BadRequest, match="is missing before byte 6"):
        send(store, PARTS[-1], uid=BOB)

    assert [SHA256] == store.missing(BOB, [SHA256])
