"""Tests of the blobs that the service keeps: who has what, what is refused, what is collected, and blobs in parts."""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from blob_stores import ALICE, BOB, age, files, manifest, send, sha

from gpuqueue.errors import BadRequest, GpuQueueError
from gpuqueue.files import blob_store
from gpuqueue.files.blob_store import BlobStore
from gpuqueue.files.collect import Collected, collect
from gpuqueue.files.errors import BlobRefused, InvalidManifest, SnapshotNotHeld
from gpuqueue.files.manifest import Entry, Manifest


@pytest.fixture
def store(tmp_path: Path) -> BlobStore:
    """Return an empty store."""
    return BlobStore(tmp_path / "snapshots")


def test_a_blob_is_kept_for_this_account_only(store: BlobStore) -> None:
    """What one account has sent is still missing for another, until it sends the same itself."""
    assert [sha(b"one"), sha(b"two")] == store.missing(ALICE, [sha(b"one"), sha(b"two")])

    send(store, ALICE, b"one")

    assert [sha(b"two")] == store.missing(ALICE, [sha(b"one"), sha(b"two")])
    assert [sha(b"one")] == store.missing(BOB, [sha(b"one")])
    with store.open(sha(b"one")) as file:
        assert b"one" == file.read()
    send(store, BOB, b"one")
    assert [] == store.missing(BOB, [sha(b"one")])


def test_only_the_service_can_read_the_files(store: BlobStore) -> None:
    """Files have mode 0600 below directories of mode 0700, whatever the umask is."""
    before = os.umask(0)
    try:
        send(store, ALICE, b"one")
    finally:
        os.umask(before)

    modes = {stat.S_IMODE(each.stat().st_mode) for each in store.root.rglob("*") if each.is_file()}
    folders = {stat.S_IMODE(each.stat().st_mode) for each in (store.root, *store.root.rglob("*")) if each.is_dir()}
    assert {0o600} == modes
    assert {0o700} == folders
    assert (store.blobs / sha(b"one")[0] / sha(b"one")[1] / sha(b"one")).is_file()


REFUSED = {
    "other content": (sha(b"one"), 3, [b"two"], "does not have the SHA-256"),
    "too short": (sha(b"one"), 3, [b"on"], "2 bytes were sent, but 3 were announced"),
    "too long": (sha(b"one"), 3, [b"one", b"!"], "more than the announced 3 bytes"),
    "above the limit": (sha(b"a" * 101), 101, [b"a" * 101], "above the limit of 100B"),
    "negative": (sha(b""), -1, [], "above the limit"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_as_announced_leaves_nothing(store: BlobStore, name: str) -> None:
    """A content that is not the announced one is refused, and no file of it stays."""
    sha256, size_bytes, chunks, why = REFUSED[name]

    with pytest.raises(BlobRefused, match=why):
        store.put(ALICE, sha256, size_bytes, chunks, most_bytes=100)

    assert set() == files(store)
    assert [sha256] == store.missing(ALICE, [sha256])


def test_an_endless_content_is_cut_off_at_its_size(store: BlobStore) -> None:
    """No more is read than was announced, and one chunk."""
    taken = []

    def endless() -> Iterator[bytes]:
        while True:
            taken.append(1)
            yield b"x" * 10

    with pytest.raises(BlobRefused, match="more than the announced"):
        store.put(ALICE, sha(b"x"), 50, endless(), most_bytes=100)

    assert 6 == len(taken)


def test_an_upload_that_is_cut_leaves_nothing(store: BlobStore) -> None:
    """A connection that breaks leaves no file."""

    def broken() -> Iterator[bytes]:
        yield b"o"
        raise ConnectionError

    with pytest.raises(ConnectionError):
        store.put(ALICE, sha(b"one"), 3, broken(), most_bytes=100)

    assert set() == files(store)


@pytest.mark.parametrize(
    "wrong", ["", "../../etc/passwd", "a" * 63, "A" * 64, "a" * 64 + "\n", f"{'a' * 32}/{'a' * 31}"]
)
def test_a_hash_is_never_a_path(store: BlobStore, wrong: str) -> None:
    """Only 64 hexadecimal digits name a blob."""
    for call in (
        lambda: store.missing(ALICE, [wrong]),
        lambda: store.put(ALICE, wrong, 1, [b"a"], most_bytes=10),
        lambda: store.open(wrong),
        lambda: store.use(ALICE, wrong),
    ):
        with pytest.raises(BadRequest, match="is no SHA-256"):
            call()


def test_a_snapshot_needs_all_its_blobs_from_the_same_account(store: BlobStore) -> None:
    """A manifest is accepted once its account has sent every content, and only this account can use it."""
    text = manifest(b"one", b"two").text()
    send(store, ALICE, b"one")
    send(store, BOB, b"two")

    with pytest.raises(SnapshotNotHeld, match=f"1 blobs of the snapshot are missing, among them {sha(b'two')[:12]}"):
        store.add_manifest(ALICE, text)
    send(store, ALICE, b"two")
    made = store.add_manifest(ALICE, text)

    assert made == store.use(ALICE, made.address())
    assert text == store.manifest_text(made.address())
    with pytest.raises(SnapshotNotHeld, match="you have no snapshot"):
        store.use(BOB, made.address())


def test_a_manifest_that_is_sent_as_a_blob_gives_no_rights(store: BlobStore) -> None:
    """An account that knows a manifest, but has none of its blobs, gets nothing by sending it."""
    made = manifest(b"one")
    send(store, ALICE, b"one")
    store.put(BOB, made.address(), len(made.text()), [made.text()], most_bytes=1000)

    with pytest.raises(SnapshotNotHeld, match="blobs of the snapshot are missing"):
        store.use(BOB, made.address())


def test_a_manifest_with_a_wrong_size_is_refused(store: BlobStore) -> None:
    """The sizes in a manifest are those of its blobs, so that limits hold."""
    send(store, ALICE, b"one")
    wrong = Manifest((Entry(path="a", sha256=sha(b"one"), size_bytes=1),))

    with pytest.raises(InvalidManifest, match="not as long as the manifest says"):
        store.add_manifest(ALICE, wrong.text())


def test_a_snapshot_survives_a_power_cut(store: BlobStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """A content is synced before it gets its name, and all names are before ``add_manifest`` returns."""
    done: list[str] = []
    sync, rename = os.fsync, Path.rename

    def synced(fd: int) -> None:
        done.append(f"sync {Path(f'/proc/self/fd/{fd}').readlink().name}")
        sync(fd)

    def renamed(path: Path, to: Path) -> Path:
        assert f"sync {path.name}" in done
        done.append(f"rename {to.name}")
        return rename(path, to)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(Path, "rename", renamed)

    send(store, ALICE, b"one", b"two")
    made = store.add_manifest(ALICE, manifest(b"one", b"two").text())

    last = max(index for index, each in enumerate(done) if each.startswith("rename"))
    assert f"rename {made.address()}" == done[last]
    folders = {each.parent.name for each in store.blobs.rglob("*") if each.is_file()}
    assert {f"sync {each}" for each in folders} <= set(done[last + 1 :])


def test_only_new_names_are_synced_again(store: BlobStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """A snapshot that is sent again costs no wait for the disk, apart from blobs that were sent since."""
    send(store, ALICE, b"one", b"two")
    text = manifest(b"one", b"two").text()
    store.add_manifest(ALICE, text)
    for each in store.blobs.rglob("*"):
        if each.is_dir():
            os.utime(each, (1, 1))
    synced: list[str] = []
    monkeypatch.setattr(blob_store, "_sync_folder", lambda folder: synced.append(folder.name))

    store.add_manifest(ALICE, text)
    assert [] == synced

    (store.blobs / sha(b"one")[0] / sha(b"one")[1] / sha(b"one")).unlink()
    send(store, ALICE, b"one")
    store.add_manifest(ALICE, text)
    assert sha(b"one")[1] in synced
    assert sha(b"two")[1] not in synced


def test_what_no_snapshot_needs_is_collected(store: BlobStore) -> None:
    """Blobs and marks that no kept snapshot needs go after the grace; a blob that two snapshots share stays."""
    send(store, ALICE, b"one", b"two", b"old")
    kept = store.add_manifest(ALICE, manifest(b"one", b"two").text())
    gone = store.add_manifest(ALICE, manifest(b"one", b"old").text())
    assert Collected(blobs=0, size_bytes=0) == collect(store, [kept.address()], grace_s=60)
    age(store, 100)

    assert Collected(blobs=2, size_bytes=3 + len(gone.text())) == collect(store, [kept.address()], grace_s=60)

    assert {sha(b"one"), sha(b"two"), kept.address()} == files(store)
    assert [sha(b"old")] == store.missing(ALICE, [sha(b"one"), sha(b"old")])
    assert kept == store.use(ALICE, kept.address())


def test_what_a_client_was_not_asked_to_send_stays_for_the_grace(store: BlobStore) -> None:
    """A blob that ``missing`` did not name is not collected before its manifest can come."""
    send(store, ALICE, b"one")
    age(store, 100)

    assert [] == store.missing(ALICE, [sha(b"one")])
    assert Collected(blobs=0, size_bytes=0) == collect(store, [], grace_s=60)
    store.add_manifest(ALICE, manifest(b"one").text())


def test_a_blob_that_is_needed_in_the_last_moment_stays(store: BlobStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """A blob that is asked for between its check and its removal stays."""
    send(store, ALICE, b"one")
    age(store, 100)
    remove = BlobStore.remove

    def asked_just_before(self: BlobStore, sha256: str, before_s: float) -> int | None:
        assert [] == self.missing(ALICE, [sha256])
        return remove(self, sha256, before_s)

    monkeypatch.setattr(BlobStore, "remove", asked_just_before)

    assert Collected(blobs=0, size_bytes=0) == collect(store, [], grace_s=60)
    assert [] == store.missing(ALICE, [sha(b"one")])


def test_an_upload_under_way_is_safe_and_a_dead_one_is_collected(store: BlobStore) -> None:
    """A collection in the middle of an upload leaves it alone; what a killed service left goes after the grace."""

    def collected_meanwhile() -> Iterator[bytes]:
        yield b"o"
        assert Collected(blobs=0, size_bytes=0) == collect(store, [], grace_s=60)
        yield b"ne"

    store.put(ALICE, sha(b"one"), 3, collected_meanwhile(), most_bytes=10)
    assert [] == store.missing(ALICE, [sha(b"one")])

    (next(store.blobs.rglob(sha(b"one"))).parent / ".partial-dead").touch()
    age(store, 100)
    assert [] == store.missing(ALICE, [sha(b"one")])
    assert Collected(blobs=0, size_bytes=0) == collect(store, [], grace_s=60)
    assert {sha(b"one")} == files(store)


def test_an_address_that_is_gone_is_reported_and_a_damaged_one_stops_the_collection(store: BlobStore) -> None:
    """A kept address without a manifest is reported; a damaged manifest must not cost the blobs that it needs."""
    send(store, ALICE, b"one")
    kept = store.add_manifest(ALICE, manifest(b"one").text()).address()
    age(store, 100)
    lost = "0" * 64
    assert Collected(blobs=0, size_bytes=0) == collect(store, [kept, lost], grace_s=60)

    next(store.blobs.rglob(kept)).write_bytes(b"damaged")

    with pytest.raises(InvalidManifest):
        collect(store, [kept], grace_s=time.time())
    assert {sha(b"one"), kept} == files(store)


def test_a_directory_of_another_account_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The store refuses a directory that another account can change."""
    BlobStore(tmp_path / "a")
    monkeypatch.setattr(os, "geteuid", lambda: 12345)

    with pytest.raises(GpuQueueError, match="must be a directory of the account"):
        BlobStore(tmp_path / "a")
    (tmp_path / "file").touch()
    with pytest.raises(GpuQueueError, match="cannot be kept in"):
        BlobStore(tmp_path / "file")


CONTENT = b"onetwothree"
SHA256 = sha(CONTENT)
#: The parts of the blob: offset and end, in bytes.
PARTS = ((0, 3), (3, 6), (6, 11))


def send_parts(store: BlobStore, *parts: tuple[int, int], uid: int = ALICE) -> None:
    """Send parts of the blob."""
    for start, end in parts:
        store.put_part(uid, SHA256, len(CONTENT), start, CONTENT[start:end], most_bytes=100)


def test_the_last_part_may_come_again(store: BlobStore) -> None:
    """The answer to the part that completed the blob was lost, so the client sends it again."""
    send_parts(store, *PARTS)

    send_parts(store, PARTS[-1])

    assert CONTENT == b"".join(store.content(SHA256))
    assert (len(CONTENT), []) == (store.size_bytes_of(ALICE), [*(store.root / "parts" / str(ALICE)).iterdir()])


def test_two_may_send_the_same_blob_at_once(store: BlobStore) -> None:
    """One of two requests completes the blob. The rest of the other one is no error."""
    send_parts(store, PARTS[0], PARTS[0], PARTS[1], PARTS[1], PARTS[2])

    send_parts(store, PARTS[2])

    assert [] == store.missing(ALICE, [SHA256])


def test_a_blob_of_another_account_gives_no_answer(store: BlobStore) -> None:
    """Bob cannot learn that Alice has sent the blob: a part before his is missing."""
    send_parts(store, *PARTS)

    with pytest.raises(BadRequest, match="is missing before byte 6"):
        send_parts(store, PARTS[-1], uid=BOB)

    assert [SHA256] == store.missing(BOB, [SHA256])
