"""Tests of the hash cache, with real files whose times lie in the past."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from bounded import until

from gpuqueue.files import contents
from gpuqueue.files.contents import MARGIN_S, MOST_FILES, forget
from gpuqueue.files.errors import SnapshotRefused
from gpuqueue.files.take import Snapshot, take_snapshot

#: How far the clock of the tests goes ahead, in nanoseconds, so that the files of a test are old enough.
LATER_NS = int((MARGIN_S + 1) * 1e9)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Return a directory with two files."""
    made = tmp_path / "project"
    made.mkdir()
    (made / "a.py").write_text("a\n")
    (made / "b.py").write_text("b\n")
    return made


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    """Return a cache directory that does not exist yet."""
    return tmp_path / "cache" / "gpuqueue"


@pytest.fixture
def _later(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the clock of the cache go ahead, since a change time cannot be set."""
    real = time.time_ns
    monkeypatch.setattr(contents.time, "time_ns", lambda: real() + LATER_NS)


@pytest.fixture
def taken(root: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], tuple[Snapshot, int]]:
    """Return a function that takes a snapshot, and returns it and how many files were read."""
    count, read = [0], contents._read

    def counted(fd: int, most_bytes: int, git_hash: str | None) -> contents.Content:
        count[0] += 1
        return read(fd, most_bytes, git_hash)

    monkeypatch.setattr(contents, "_read", counted)

    def take() -> tuple[Snapshot, int]:
        wait_for_tick(root)
        count[0] = 0
        return take_snapshot(root, cache=cache, allowed=["a.py"]), count[0]

    return take


def wait_for_tick(root: Path) -> None:
    """Wait until a change of a file in *root* shows in its times: the tests switch off the margin that ensures it."""
    newest_ns = max(each.stat().st_ctime_ns for each in root.iterdir())
    scratch = root.parent / "scratch"

    def has_moved() -> bool:
        scratch.write_text("")
        return scratch.stat().st_ctime_ns > newest_ns

    until(has_moved)


@pytest.mark.usefixtures("_later")
def test_an_unchanged_file_is_read_once(root: Path, cache: Path, taken: Callable[[], tuple[Snapshot, int]]) -> None:
    """The second snapshot reads nothing and is the same; a changed file, and only that, is read again."""
    first, read_first = taken()
    second, read_second = taken()
    wait_for_tick(root)
    (root / "b.py").write_text("c\n")
    third, read_third = taken()

    assert (2, 0, 1) == (read_first, read_second, read_third)
    assert first.text == second.text
    assert third.address == take_snapshot(root).address != first.address
    (file,) = cache.iterdir()
    assert (0o600, 0o700) == (file.stat().st_mode & 0o777, cache.stat().st_mode & 0o777)


@pytest.mark.usefixtures("_later")
@pytest.mark.parametrize("change", ["time", "replaced", "written in place", "mode"])
def test_no_change_is_missed(root: Path, taken: Callable[[], tuple[Snapshot, int]], change: str) -> None:
    """A file of the same size and modification time is read again if another time, or its inode, has changed."""
    taken()
    wait_for_tick(root)
    path = root / "a.py"
    about = path.stat()
    if change == "time":
        os.utime(path, ns=(about.st_atime_ns, about.st_mtime_ns - 1))
    elif change == "replaced":
        (root / "new").write_text("x\n")
        (root / "new").replace(path)
        os.utime(path, ns=(about.st_atime_ns, about.st_mtime_ns))
    elif change == "mode":
        path.chmod(0o755)
    else:
        path.write_text("x\n")
        os.utime(path, ns=(about.st_atime_ns, about.st_mtime_ns))

    again, read = taken()

    assert 1 == read
    assert again.address == take_snapshot(root).address


def test_a_file_that_was_just_written_is_read_again(root: Path, taken: Callable[[], tuple[Snapshot, int]]) -> None:
    """A file may change again within one tick of the clock of its disk, so a fresh one is not remembered."""
    taken()

    assert 2 == taken()[1]
    os.utime(root / "a.py", (1, 1))  # its change time is still new
    assert 2 == taken()[1]


@pytest.mark.usefixtures("_later")
def test_the_verdict_on_a_key_is_remembered(root: Path, cache: Path, taken: Callable[[], tuple[Snapshot, int]]) -> None:
    """A private key is refused again without being read again."""
    (root / "a.py").write_text("-----BEGIN PRIVATE " + "KEY-----\n")
    taken()

    assert 0 == taken()[1]
    with pytest.raises(SnapshotRefused, match="hold private keys"):
        take_snapshot(root, cache=cache)


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-5])


def _flip(path: Path) -> None:
    content = path.read_bytes()
    digit = content.rindex(b'"') - 1
    path.write_bytes(content[:digit] + (b"0" if content[digit : digit + 1] != b"0" else b"1") + content[digit + 1 :])


def _open_to_others(path: Path) -> None:
    path.chmod(0o666)


def _link(path: Path) -> None:
    path.rename(path.with_name("elsewhere"))
    path.symlink_to("elsewhere")


@pytest.mark.usefixtures("_later")
@pytest.mark.parametrize("damage", [_cut, _flip, _open_to_others, _link, lambda path: path.write_bytes(b"\0" * 100)])
def test_a_damaged_cache_is_ignored_and_replaced(
    cache: Path, taken: Callable[[], tuple[Snapshot, int]], damage: Callable[[Path], None]
) -> None:
    """A cache that is cut, changed, writable by others, or no file of its own counts for nothing."""
    first, _ = taken()
    (file,) = cache.iterdir()
    damage(file)

    again, read = taken()

    assert (first.address, 2) == (again.address, read)
    assert 0 == taken()[1]


@pytest.mark.usefixtures("_later")
def test_a_directory_that_cannot_be_written_is_no_error(cache: Path, taken: Callable[[], tuple[Snapshot, int]]) -> None:
    """Without a place for the cache, each snapshot reads every file."""
    cache.parent.mkdir()
    cache.write_text("a file in its place")

    assert 2 == taken()[1]
    assert 2 == taken()[1]


@pytest.mark.usefixtures("_later")
def test_a_wrong_hash_is_forgotten(root: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If a file does not have the content that the cache names, the next snapshot reads it."""
    path = root / "a.py"
    take_snapshot(root, cache=cache)
    old = path.stat()
    path.write_text("x\n")
    monkeypatch.setattr(contents, "_identity", lambda about: [old.st_dev, about.st_ino, 2, 0, 0])
    take_snapshot(root, cache=cache)  # with times that say nothing, as of a broken disk
    path.write_text("y\n")
    wrong = take_snapshot(root, cache=cache)
    sha256 = next(each.sha256 for each in wrong.manifest.entries if each.path == "a.py")
    assert sha256 is not None

    with pytest.raises(SnapshotRefused, match="has changed since"):
        b"".join(wrong.blob(sha256))

    assert take_snapshot(root).address == take_snapshot(root, cache=cache).address


@pytest.mark.usefixtures("_later")
def test_the_number_of_caches_is_bounded(cache: Path, taken: Callable[[], tuple[Snapshot, int]]) -> None:
    """The cache of another directory takes the place of the one that was written longest ago."""
    cache.mkdir(parents=True)
    others = [cache / f"hashes-{number:032d}" for number in range(MOST_FILES)]
    for number, other in enumerate(others):
        other.touch()
        os.utime(other, (10**9 - number, 10**9 - number))
    (cache / "other").touch()

    taken()

    assert MOST_FILES == len([*cache.glob("hashes-*")])
    assert (True, False, True) == (others[-2].exists(), others[-1].exists(), (cache / "other").exists())


@pytest.mark.usefixtures("_later")
def test_deleted_files_leave_the_cache(root: Path, cache: Path, taken: Callable[[], tuple[Snapshot, int]]) -> None:
    """The cache has the files of the last snapshot only."""
    taken()
    (root / "b.py").unlink()
    taken()

    (file,) = cache.iterdir()
    assert (True, False) == (b"a.py" in file.read_bytes(), b"b.py" in file.read_bytes())


@pytest.mark.usefixtures("_later")
def test_two_snapshots_at_once_leave_a_whole_cache(root: Path, cache: Path) -> None:
    """Each writes its own file and renames it, so a reader sees one or the other."""
    for number in range(50):
        (root / f"{number}.py").write_text(f"{number}\n")
    address = take_snapshot(root).address
    wait_for_tick(root)
    addresses: list[str] = []

    def take() -> None:
        for _ in range(5):
            forget(cache, root)
            addresses.append(take_snapshot(root, cache=cache).address)

    threads = [threading.Thread(target=take) for _ in range(3)]
    for each in threads:
        each.start()
    for each in threads:
        each.join(60)

    assert [address] * 15 == addresses
    assert 1 == len([*cache.iterdir()])


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory to another account")
@pytest.mark.usefixtures("_later")
def test_nothing_is_written_below_the_directory_of_another_account(
    tmp_path: Path, cache: Path, taken: Callable[[], tuple[Snapshot, int]]
) -> None:
    """After ``sudo``, HOME may be that of another account, which could not write there any more."""
    os.chown(tmp_path, 12345, 12345)

    taken()

    assert not cache.exists()
