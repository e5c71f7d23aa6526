"""Tests of the snapshots of an account: which there are, what deleting one removes, and what stays."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from blob_stores import ALICE, BOB, age, files, manifest, send, sha

from gpuqueue.files.blob_store import BlobStore
from gpuqueue.files.collect import GRACE_S, RECENT_S, collect, delete, listed, resolve
from gpuqueue.files.errors import InvalidManifest, SnapshotNotHeld
from gpuqueue.files.limits import DIFF_BYTES


@pytest.fixture
def store(tmp_path: Path) -> BlobStore:
    """Return an empty store."""
    return BlobStore(tmp_path / "snapshots")


def add(store: BlobStore, uid: int, *contents: bytes, diff: bytes | None = None) -> str:
    """Store a snapshot with these contents, and return its address."""
    send(store, uid, *contents, *([] if diff is None else [diff]))
    made = manifest(*contents)
    store.add_manifest(uid, made.text(), diff=None if diff is None else sha(diff))
    return made.address()


def test_the_list_has_the_snapshots_of_one_account(store: BlobStore) -> None:
    """With files, sizes and the last use, the newest first; nothing of another account."""
    first, second = add(store, ALICE, b"one", b"two!"), add(store, ALICE, b"one")
    add(store, BOB, b"three")
    age(store, 1000)
    store.use(ALICE, first)

    found = listed(store, ALICE)

    assert [(first, 2, 7), (second, 1, 3)] == [(each.address, each.files, each.size_bytes) for each in found]
    assert 900 < found[0].used_at_s - found[1].used_at_s < 1100


def test_a_deleted_snapshot_is_gone_with_what_only_it_has(store: BlobStore) -> None:
    """Files of other snapshots and of other accounts stay; the difference from the commit goes."""
    gone = add(store, ALICE, b"mine", b"both", b"bobs", diff=b"difference")
    kept = add(store, ALICE, b"both", diff=b"other difference")
    bobs = add(store, BOB, b"bobs")
    age(store, RECENT_S + 1)

    freed_bytes = delete(store, ALICE, gone, ())

    size_bytes = len(manifest(b"mine", b"both", b"bobs").text())
    assert len(b"mine") + len(b"difference") + size_bytes == freed_bytes
    assert [kept] == [each.address for each in listed(store, ALICE)]
    assert [sha(b"mine"), sha(b"bobs"), gone] == store.missing(ALICE, [sha(b"mine"), sha(b"both"), sha(b"bobs"), gone])
    store.use(BOB, bobs)
    store.use(ALICE, kept, diff=sha(b"other difference"))
    assert not {sha(b"mine"), sha(b"difference"), gone} & files(store)
    assert not [each for each in files(store) if gone in each]


def test_what_was_needed_a_moment_ago_stays_on_the_disk(store: BlobStore) -> None:
    """A job that is being submitted finds its code, though the account has the snapshot no more."""
    address = add(store, ALICE, b"one")

    assert 0 == delete(store, ALICE, address, ())

    assert [] == listed(store, ALICE)
    assert 0 == store.size_bytes_of(ALICE)
    assert b"one" == b"".join(store.content(sha(b"one")))
    with pytest.raises(SnapshotNotHeld):
        store.use(ALICE, address)
    age(store, GRACE_S + 1)
    collect(store, [])
    assert set() == files(store)


def test_the_snapshot_of_another_account_cannot_be_deleted(store: BlobStore) -> None:
    """An address is no right."""
    address = add(store, ALICE, b"one")

    with pytest.raises(SnapshotNotHeld, match="you have no snapshot"):
        delete(store, BOB, address, ())
    with pytest.raises(SnapshotNotHeld, match="you have no snapshot"):
        resolve(store, BOB, address)

    store.use(ALICE, address)


def test_a_snapshot_that_both_have_stays_for_the_other(store: BlobStore) -> None:
    """Each account gives up its own right only."""
    address = add(store, ALICE, b"one")
    add(store, BOB, b"one")
    age(store, RECENT_S + 1)

    assert 0 == delete(store, ALICE, address, ())

    store.use(BOB, address)
    with pytest.raises(SnapshotNotHeld):
        store.use(ALICE, address)


def test_what_an_interrupted_upload_left_goes_with_the_next_delete(store: BlobStore) -> None:
    """It counts for the limit of the user, and belongs to no snapshot. One under way is safe."""
    address, kept = add(store, ALICE, b"one"), add(store, ALICE, b"needed by a job")
    store.held.remove(ALICE, kept)  # as of a store that did not record snapshots yet
    send(store, ALICE, b"left")
    age(store, GRACE_S + 1)
    send(store, ALICE, b"under way")

    delete(store, ALICE, address, [kept])

    assert [sha(b"left")] == store.missing(ALICE, [sha(b"left"), sha(b"under way"), sha(b"needed by a job"), kept])


def test_a_damaged_snapshot_protects_the_others(store: BlobStore) -> None:
    """If it is not known which files another snapshot needs, nothing is deleted."""
    address, other = add(store, ALICE, b"one"), add(store, ALICE, b"two")
    (store.blobs / other[0] / other[1] / other).write_bytes(b"damaged\nlines\n")
    before = files(store)

    with pytest.raises(InvalidManifest):
        delete(store, ALICE, address, ())

    assert before == files(store)


def test_the_first_digits_are_enough(store: BlobStore) -> None:
    """As long as they name one snapshot; too few are refused."""
    address = add(store, ALICE, b"one")
    twin = address[:8] + "f" * 56
    store.held.add(ALICE, twin, None)

    assert (address, twin) == (resolve(store, ALICE, address[:12]), resolve(store, ALICE, twin))
    with pytest.raises(SnapshotNotHeld, match="2 of your snapshots begin with"):
        resolve(store, ALICE, address[:8])
    with pytest.raises(SnapshotNotHeld, match="you have no snapshot 'ffffff"):
        resolve(store, ALICE, "ffffff")


def test_a_difference_lives_as_long_as_a_job_needs_it(store: BlobStore) -> None:
    """The collection keeps it for jobs, and removes the record of a snapshot with its files."""
    address = add(store, ALICE, b"one", diff=b"difference")
    age(store, GRACE_S + 1)
    collect(store, [address], diffs=[sha(b"difference")])
    assert b"difference" == b"".join(store.content(sha(b"difference")))

    collect(store, [])

    assert set() == files(store)
    assert [] == listed(store, ALICE)


def test_a_use_renews_the_difference(store: BlobStore) -> None:
    """A retry needs it as long as the files."""
    address = add(store, ALICE, b"one", diff=b"difference")
    age(store, GRACE_S + 1)
    store.use(ALICE, address, diff=sha(b"difference"))

    collect(store, [])

    assert b"difference" == b"".join(store.content(sha(b"difference")))


def test_a_difference_must_be_sent_by_the_same_account(store: BlobStore) -> None:
    """A job cannot name a text of another account, which would then be shown; nor one that is too long."""
    address = add(store, ALICE, b"one")
    send(store, BOB, b"bobs")
    with pytest.raises(SnapshotNotHeld):
        store.use(ALICE, address, diff=sha(b"bobs"))
    with pytest.raises(SnapshotNotHeld):
        store.add_manifest(ALICE, manifest(b"one").text(), diff=sha(b"bobs"))

    long = os.urandom(DIFF_BYTES + 1)
    store.put(ALICE, sha(long), len(long), [long], most_bytes=len(long))
    with pytest.raises(InvalidManifest, match="the difference from the commit has more than"):
        store.use(ALICE, address, diff=sha(long))


def test_a_shared_snapshot_is_one_of_the_other_account(store: BlobStore) -> None:
    """Who retries a job of another account has its snapshot, with the difference."""
    address = add(store, ALICE, b"one", diff=b"difference")

    store.share(ALICE, BOB, address, diff=sha(b"difference"))

    assert [address] == [each.address for each in listed(store, BOB)]
    store.use(BOB, address, diff=sha(b"difference"))
