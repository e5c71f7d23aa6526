"""Tests of the selection in a directory without git, and of taking a snapshot of it."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from gpuqueue.errors import BadRequest
from gpuqueue.files.errors import SnapshotRefused, SnapshotTooLarge
from gpuqueue.files.limits import Limits
from gpuqueue.files.take import Excluded, Snapshot, take_snapshot


def write(root: Path, *paths: str, content: str = "x") -> None:
    """Write files below *root*."""
    for path in paths:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(content)


def paths(snapshot: Snapshot) -> list[str]:
    """Return the paths in the snapshot."""
    return [each.path for each in snapshot.manifest.entries]


def test_all_but_the_default_excludes_is_taken(tmp_path: Path) -> None:
    """Files that tools make and weights are left out, and reported by pattern."""
    write(tmp_path, "train.py", "src/model.py", ".hidden", "env/build/dist.py")
    write(tmp_path, ".git/config", "venv/bin/python", "src/__pycache__/m.pyc", "a.pt", "out/b.pt", "wandb/run/x")

    taken = take_snapshot(tmp_path)

    assert [".hidden", "env/build/dist.py", "src/model.py", "train.py"] == paths(taken)
    assert {
        Excluded(pattern="*.pt", paths=2, example="a.pt"),
        Excluded(pattern=".git", paths=1, example=".git"),
        Excluded(pattern="__pycache__/", paths=1, example="src/__pycache__"),
        Excluded(pattern="venv/", paths=1, example="venv"),
        Excluded(pattern="wandb/", paths=1, example="wandb"),
    } == set(taken.excluded)
    assert not taken.in_git
    assert (tmp_path, ".") == (taken.root, taken.cwd)


def test_ignored_files_are_known_without_git(tmp_path: Path) -> None:
    """Files that the ignore files leave out are known with their sizes, and what tools make is not among them."""
    write(tmp_path, "train.py", "venv/bin/python", "a.pt")
    write(tmp_path, ".gitignore", content="data/\nvenv/\n")
    write(tmp_path, "data/train.bin", content="x" * 1000)

    assert (("data/train.bin", 1000),) == take_snapshot(tmp_path).ignored.files


def test_ignore_files_leave_out_and_take_back_in(tmp_path: Path) -> None:
    """``.gitignore`` counts without git, too; ``.gpuqueueignore`` is above it and above the default patterns."""
    write(tmp_path, "a.log", "keep.log", "sub/b.log", "small.pt", "big.pt", "sub/data/x", "sub/y")
    (tmp_path / ".gitignore").write_text("*.log\n")
    (tmp_path / ".gpuqueueignore").write_text("!keep.log\r\n!small.pt\n.g*ignore\n")
    (tmp_path / "sub/.gitignore").write_text("/data/\n")

    assert ["keep.log", "small.pt", "sub/y"] == paths(take_snapshot(tmp_path))


def test_links_modes_and_contents(tmp_path: Path) -> None:
    """The owner's executable bit, links, and equal contents are in the manifest; times and other bits are not."""
    write(tmp_path, "run.sh", "same.txt")
    (tmp_path / "run.sh").chmod(0o4711)
    (tmp_path / "same.txt").chmod(0o600)
    (tmp_path / "d").mkdir()
    (tmp_path / "d/up").symlink_to("../run.sh")
    (tmp_path / "whole").symlink_to(tmp_path / "d")

    taken = take_snapshot(tmp_path)

    assert ["link\t../run.sh\td/up", "link\td\twhole"] == [e.line() for e in taken.manifest.entries if e.target]
    assert {"run.sh": True, "same.txt": False} == {e.path: e.executable for e in taken.manifest.entries if e.sha256}
    assert 1 == len(taken.blobs())
    assert b"x" == b"".join(taken.blob(next(iter(taken.blobs()))))
    os.utime(tmp_path / "same.txt", (1, 1))
    assert taken.address == take_snapshot(tmp_path).address


@pytest.mark.parametrize("target", ["/etc/passwd", "../outside", "d/../../outside", "."])
def test_a_link_out_of_the_tree_is_refused_by_name(tmp_path: Path, target: str) -> None:
    """A link that leads out is refused, with the way to leave it out; one to the tree itself is fine."""
    write(tmp_path, "d/x")
    (tmp_path / "data").symlink_to(target)
    if target == ".":
        assert ["d/x", "data"] == paths(take_snapshot(tmp_path))
        return

    with pytest.raises(SnapshotRefused, match=r"^the link 'data' .*\.gpuqueueignore"):
        take_snapshot(tmp_path)

    (tmp_path / ".gpuqueueignore").write_text("/data\n")
    assert ".gpuqueueignore" in paths(take_snapshot(tmp_path))


def test_what_is_no_file_is_skipped_with_a_note(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pipes and sockets do not block a snapshot, and are reported."""
    write(tmp_path, "a")
    os.mkfifo(tmp_path / "pipe")
    with socket.socket(socket.AF_UNIX) as bound:
        monkeypatch.chdir(tmp_path)  # the path of a socket must be short
        bound.bind("socket")

        taken = take_snapshot(tmp_path)

    assert ["a"] == paths(taken)
    assert {"skipped 'pipe', which is no file", "skipped 'socket', which is no file"} == set(taken.notes)


def test_names_that_cannot_travel_are_refused(tmp_path: Path) -> None:
    """Names that are not UTF-8, or that a terminal obeys, are refused in a line that can be shown."""
    for name, why in ((b"\xff.txt", "is not UTF-8"), (b"a\x1b[2J", "control characters"), (b"a\\b", "a backslash")):
        path = tmp_path / os.fsdecode(name)
        path.write_text("x")

        with pytest.raises(SnapshotRefused, match=why) as raised:
            take_snapshot(tmp_path)

        assert str(raised.value).isprintable()
        path.unlink()


def test_names_that_differ_in_case_are_refused(tmp_path: Path) -> None:
    """Two names that are one on some hosts are refused, with both names."""
    write(tmp_path, "README", "readme")

    with pytest.raises(SnapshotRefused, match="'README' and 'readme' are the same"):
        take_snapshot(tmp_path)


def test_limits_are_checked_before_any_file_is_read(tmp_path: Path) -> None:
    """A sparse file of a terabyte is refused at once, by its size alone."""
    with (tmp_path / "huge.bin").open("wb") as file:
        file.truncate(2**40)

    with pytest.raises(SnapshotTooLarge, match=r"a file of 1T.*/huge\.bin"):
        take_snapshot(tmp_path)


def test_a_walk_ends_soon_above_the_limit(tmp_path: Path) -> None:
    """A directory with far too many files is not walked to its end."""
    for n in range(40):
        write(tmp_path, *(f"d{n}/f{m}" for m in range(10)))

    with pytest.raises(SnapshotTooLarge, match="more than 10 files") as raised:
        take_snapshot(tmp_path, limits=Limits(files=10))

    assert len(raised.value.largest) == 10


def test_a_secret_is_refused_unless_allowed(tmp_path: Path) -> None:
    """A secret-like file is refused with the caller's option, and taken if it is named."""
    write(tmp_path, ".env")

    with pytest.raises(SnapshotRefused, match=r"or allow them: --send '\.env'$"):
        take_snapshot(tmp_path, allow_option="--send")
    assert [".env"] == paths(take_snapshot(tmp_path, allowed=[".env"]))


def test_a_private_key_is_refused_whatever_its_name_is(tmp_path: Path) -> None:
    """A file that begins like a private key does not leave, unless it is allowed by name."""
    write(tmp_path, "notes.txt", "train.py")
    write(tmp_path, "deploy", content="-----BEGIN OPENSSH PRIVATE " + "KEY-----\nb3Bl\n")

    with pytest.raises(SnapshotRefused, match=r"hold private keys .*: 'deploy'\..*--snapshot-allow 'deploy'"):
        take_snapshot(tmp_path)

    assert ["deploy", "notes.txt", "train.py"] == paths(take_snapshot(tmp_path, allowed=["deploy"]))


def test_a_file_that_is_unreadable_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The message names the file and the reason. Root can read everything, so the system call fails here."""
    write(tmp_path, "sub/private.txt")
    opened = os.open

    def refuse(path: str, *args: int, **more: int) -> int:
        if path == "private.txt":
            raise PermissionError(13, "Permission denied")
        return opened(path, *args, **more)

    monkeypatch.setattr(os, "open", refuse)

    with pytest.raises(SnapshotRefused, match=r"^cannot read 'sub/private.txt': Permission denied\..*/sub/private.txt"):
        take_snapshot(tmp_path)


def test_a_file_that_changes_once_is_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that is written while it is read is read once more; one that goes on changing is refused."""
    write(tmp_path, "log.txt")
    read, written = os.read, []

    def grow(fd: int, size: int) -> bytes:
        if len(written) < most:
            written.append(1)
            with (tmp_path / "log.txt").open("a") as file:
                file.write("more\n")
        return read(fd, size)

    monkeypatch.setattr(os, "read", grow)
    most = 1

    assert 6 == take_snapshot(tmp_path).manifest.size_bytes()

    most = 100
    with pytest.raises(SnapshotRefused, match=r"'log\.txt' changes while it is read.*/log.txt"):
        take_snapshot(tmp_path)


def test_a_file_that_changed_before_it_was_sent_is_not_sent_silently(tmp_path: Path) -> None:
    """The content that is sent is checked against the manifest."""
    write(tmp_path, "a.py")
    taken = take_snapshot(tmp_path)
    write(tmp_path, "a.py", content="y")

    with pytest.raises(SnapshotRefused, match=r"'a\.py' has changed since"):
        list(taken.blob(next(iter(taken.blobs()))))


def test_the_home_directory_is_not_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A home directory, and what contains it, is never taken; a project in it is."""
    home = tmp_path / "home"
    write(home, "project/a.py")
    monkeypatch.setenv("HOME", str(home))

    for directory in (home, tmp_path, Path("/")):
        with pytest.raises(SnapshotRefused, match="your home directory"):
            take_snapshot(directory)
    assert ["a.py"] == paths(take_snapshot(home / "project"))


def test_the_working_directory_is_relative_to_a_given_root(tmp_path: Path) -> None:
    """A job can work in a directory of the snapshot; one elsewhere is refused."""
    write(tmp_path, "p/a/b/x.py", "q/y.py")

    assert ("a/b", ["a/b/x.py"]) == (
        (taken := take_snapshot(tmp_path / "p/a/b", root=tmp_path / "p")).cwd,
        paths(taken),
    )
    with pytest.raises(BadRequest, match="is not in"):
        take_snapshot(tmp_path / "q", root=tmp_path / "p")
    with pytest.raises(BadRequest, match="cannot enter"):
        take_snapshot(tmp_path / "missing")
    with pytest.raises(BadRequest, match="is no directory"):
        take_snapshot(tmp_path / "q/y.py")


def test_an_ignore_file_that_is_a_link_is_refused(tmp_path: Path) -> None:
    """An ignore file that cannot be applied is not skipped silently."""
    (tmp_path / ".gpuqueueignore").symlink_to("/etc/passwd")

    with pytest.raises(SnapshotRefused, match=r"'\.gpuqueueignore' must be a regular file"):
        take_snapshot(tmp_path)
