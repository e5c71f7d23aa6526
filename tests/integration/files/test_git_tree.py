"""Tests of what a snapshot of a git work tree takes, with the real git."""

from __future__ import annotations

import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
from git_trees import git, make, paths, write

from gpuqueue.files.errors import SnapshotRefused, SnapshotTooLarge
from gpuqueue.files.limits import Limits
from gpuqueue.files.take import take_snapshot


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """Return a repository with a tracked file in the root and one in a directory."""
    return make(tmp_path / "repository", "train.py", "src/model.py")


def test_tracked_and_untracked_files_without_ignored_and_deleted_ones(repository: Path) -> None:
    """A dirty tree is taken as it is on the disk: changes, new files, no ignored and no deleted ones."""
    write(repository, "gone.py", "forced.log", "both.py")
    write(repository, ".gitignore", content="*.log\n/out/\n")
    git(repository, "add", "--force", ".gitignore", "gone.py", "forced.log", "both.py")
    git(repository, "commit", "-q", "-m", "two")
    write(repository, "train.py", content="changed\n")
    write(repository, "new.py", "staged.py", "a.log", "out/x", "src/b.log", "venv/lib/x.py", "w.pt")
    git(repository, "add", "staged.py")
    git(repository, "rm", "-q", "--cached", "both.py")
    (repository / "gone.py").unlink()

    taken = take_snapshot(repository)

    expected = [".gitignore", "both.py", "forced.log", "new.py", "src/model.py", "staged.py", "train.py"]
    assert [*expected, "venv/lib/x.py", "w.pt"] == paths(taken)
    assert taken.in_git
    assert (0, ()) == (len(taken.excluded), taken.notes)
    entry = next(each for each in taken.manifest.entries if each.path == "train.py")
    assert b"changed\n" == b"".join(taken.blob(entry.sha256 or ""))


def test_a_directory_below_takes_the_whole_work_tree(repository: Path) -> None:
    """A job that works in a subdirectory gets the whole work tree and keeps its relative directory."""
    write(repository, "empty-of-tracked/out.log", ".gitignore", content="*.log\n")

    below = take_snapshot(repository / "src")
    ignored = take_snapshot(repository / "empty-of-tracked")

    assert (repository, "src", [".gitignore", "src/model.py", "train.py"]) == (below.root, below.cwd, paths(below))
    assert take_snapshot(repository).address == below.address
    assert "empty-of-tracked" == ignored.cwd
    assert ["the snapshot has no file of the working directory 'empty-of-tracked'"] == [
        note.partition(":")[0] for note in ignored.notes
    ]


def test_a_given_directory_of_the_work_tree_is_taken_alone(repository: Path) -> None:
    """With a root within the work tree, only that part is taken, by git's rules of the whole."""
    write(repository, ".gitignore", content="*.log\n")
    write(repository, "src/a.log", "src/deep/b.py")

    taken = take_snapshot(repository / "src/deep", root=repository / "src")

    assert ("deep", ["deep/b.py", "model.py"]) == (taken.cwd, paths(taken))


def test_a_given_directory_that_git_ignores_is_taken_without_git(repository: Path) -> None:
    """Outputs that are named explicitly are taken, though git ignores all of them."""
    write(repository, ".gitignore", content="/out/\n")
    write(repository, "out/run.py", "out/w.pt")

    taken = take_snapshot(repository / "out", root=repository / "out")

    assert (False, ["run.py"], ["*.pt"]) == (taken.in_git, paths(taken), [each.pattern for each in taken.excluded])


def test_a_tree_with_far_too_many_files_is_refused_soon(repository: Path) -> None:
    """The refusal names the directory that has most of the files."""
    write(repository, *(f"data/{n}" for n in range(50)))

    with pytest.raises(SnapshotTooLarge, match="more than 10 files") as raised:
        take_snapshot(repository, limits=Limits(files=10))

    assert "/data/" == raised.value.ignore_line


def test_an_ignore_file_of_ours_counts_on_top(repository: Path) -> None:
    """``.gpuqueueignore`` leaves out tracked and untracked files, in any directory."""
    write(repository, "data/big.bin", "data/keep.txt", "src/cache/x", "src/sub/y.tmp", "y.tmp")
    git(repository, "add", "data/big.bin")
    write(repository, ".gpuqueueignore", content="/data/*\n!keep.txt\ncache/\n.gpuqueueignore\n")
    write(repository, "src/.gpuqueueignore", content="*.tmp\n")

    assert ["data/keep.txt", "src/model.py", "train.py", "y.tmp"] == paths(take_snapshot(repository))


def test_submodules_and_nested_repositories_are_plain_files(tmp_path: Path, repository: Path) -> None:
    """Files of initialised submodules, of theirs, and of other repositories in the tree are taken, changes too."""
    inner = make(tmp_path / "inner", "inner.py", "inner.log")
    middle = make(tmp_path / "middle", "middle.py")
    git(middle, "submodule", "add", "-q", str(inner), "libs/inner")
    git(middle, "commit", "-q", "-m", "two")
    git(repository, "submodule", "add", "-q", str(middle), "libs/middle")
    git(repository, "submodule", "update", "-q", "--init", "--recursive")
    make(repository / "cloned", "cloned.py", ".gitignore")
    write(repository, "cloned/new.py", "libs/middle/libs/inner/new.py", "cloned/.gpuqueueignore", content="c*.py\n")
    git(tmp_path, "init", "-q", str(repository / "fresh/unborn"))
    write(repository, "fresh/unborn/f.py")

    taken = paths(take_snapshot(repository))

    assert [
        ".gitmodules",
        "cloned/.gitignore",
        "cloned/.gpuqueueignore",
        "cloned/new.py",
        "fresh/unborn/f.py",
    ] == taken[:5]
    assert ["libs/middle/.gitmodules", "libs/middle/libs/inner/inner.log", "libs/middle/libs/inner/inner.py"] == taken[
        5:8
    ]
    assert ["libs/middle/libs/inner/new.py", "libs/middle/middle.py", "src/model.py", "train.py"] == taken[8:]


def test_a_submodule_that_is_not_checked_out_is_refused_with_the_command(tmp_path: Path, repository: Path) -> None:
    """The message has the command that mends it; a submodule that is left out needs none."""
    library = make(tmp_path / "library", "lib.py")
    git(repository, "submodule", "add", "-q", str(library), "libs/one")
    git(repository, "commit", "-q", "-m", "two")
    clone = tmp_path / "a clone"
    git(tmp_path, "clone", "-q", str(repository), str(clone))

    with pytest.raises(SnapshotRefused, match="the submodule 'libs/one' is not checked out") as raised:
        take_snapshot(clone / "src")
    write(clone, ".gpuqueueignore", content="/libs/one\n")
    assert "libs/one/lib.py" not in paths(take_snapshot(clone))

    (clone / ".gpuqueueignore").unlink()
    command = str(raised.value).partition("Run: ")[2].partition(". Or")[0]
    assert f"git -C {shlex.quote(str(clone))} submodule update --init --recursive" == command
    git(tmp_path, *shlex.split(command)[1:])
    assert "libs/one/lib.py" in paths(take_snapshot(clone))


def test_a_submodule_that_was_deleted_is_left_out(tmp_path: Path, repository: Path) -> None:
    """A submodule whose directory was removed counts as deleted, as a file does."""
    git(repository, "submodule", "add", "-q", str(make(tmp_path / "library", "lib.py")), "lib")
    shutil.rmtree(repository / "lib")

    assert [".gitmodules", "src/model.py", "train.py"] == paths(take_snapshot(repository))


def test_a_pointer_of_lfs_stays_as_it_is_on_the_disk(repository: Path) -> None:
    """What the disk has is taken: a pointer as a pointer, a file as a file."""
    pointer = f"version https://git-lfs.github.com/spec/v1\noid sha256:{'0' * 64}\nsize 3\n"
    write(repository, ".gitattributes", content="*.bin filter=lfs diff=lfs merge=lfs -text\n")
    write(repository, "w.bin", content=pointer)

    taken = take_snapshot(repository)

    entry = next(each for each in taken.manifest.entries if each.path == "w.bin")
    assert pointer.encode() == b"".join(taken.blob(entry.sha256 or ""))


def test_a_private_key_in_the_work_tree_is_refused(repository: Path) -> None:
    """A tracked or untracked file with a private key is refused; an ignored one, and a left out one, do not matter."""
    key = "-----BEGIN PRIVATE " + "KEY-----\nMIIE\n"
    write(repository, "a.txt", "ignored", "left", content=key)
    write(repository, ".gitignore", content="ignored\n")
    write(repository, ".gpuqueueignore", content="left\n")
    git(repository, "add", "--all")

    with pytest.raises(SnapshotRefused, match=r"hold private keys or passwords and would be sent: 'a\.txt'\."):
        take_snapshot(repository)

    assert "a.txt" in paths(take_snapshot(repository, allowed=["*.txt"]))


def test_files_and_directories_that_changed_places(repository: Path) -> None:
    """A tracked file that is now a directory gives its files, and a directory that is now a file is that file."""
    (repository / "train.py").unlink()
    write(repository, "train.py/inside.py")
    shutil.rmtree(repository / "src")
    write(repository, "src")

    assert ["src", "train.py/inside.py"] == paths(take_snapshot(repository))


def test_names_that_git_would_quote(repository: Path) -> None:
    """Names with spaces, quotes, glob characters and letters beyond ASCII are taken as they are."""
    odd = ["-x.py", ":(top)x", "[a].txt", 'a "quoted" name', "a*b", "datei_ä.txt", "文.py"]
    write(repository, *odd)
    git(repository, "add", "--all", "--", "./datei_ä.txt")

    assert [*odd[:3], *odd[3:5], "datei_ä.txt", "src/model.py", "train.py", "文.py"] == paths(take_snapshot(repository))


def test_a_conflict_and_a_linked_work_tree(tmp_path: Path, repository: Path) -> None:
    """A file with a merge conflict is there once, and ``git worktree`` gives a work tree like any other."""
    other = tmp_path / "other"
    git(repository, "worktree", "add", "-q", "-b", "other", str(other))
    write(other, "train.py", content="theirs\n")
    git(other, "commit", "-q", "-a", "-m", "theirs")
    write(repository, "train.py", content="ours\n")
    git(repository, "commit", "-q", "-a", "-m", "ours")
    with pytest.raises(subprocess.CalledProcessError):
        git(repository, "merge", "-q", "other")

    assert ["src/model.py", "train.py"] == paths(take_snapshot(repository))
    assert ["src/model.py", "train.py"] == paths(take_snapshot(other))


def test_ignored_files_are_known_with_their_sizes(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The largest file comes first. What tools make is no data, and tracked files travel although they match."""
    write(repository, ".gitignore", content="data/\n*.bin\nvenv/\n__pycache__/\n")
    write(repository, "kept.bin", "src/__pycache__/m.pyc", "venv/lib/x.py", ".gpuqueueignore", "notes.txt")
    write(repository, ".gpuqueueignore", content="notes.txt\n")
    git(repository, "add", "--force", "kept.bin")
    write(repository, "data/deep/train.bin", content="x" * 300)
    write(repository, "src/model.bin", content="x" * 20)
    write(repository, "data/__pycache__/m.pyc", "data/val.bin", content="x" * 3)

    taken = take_snapshot(repository).ignored

    files = (("data/deep/train.bin", 300), ("src/model.bin", 20))
    assert (files, True) == (taken.files[:2], taken.is_all)
    assert {"data/val.bin", "notes.txt"} == {path for path, _ in taken.files[2:]}
    monkeypatch.setattr("gpuqueue.files.take.MAX_IGNORED", 3)
    assert not take_snapshot(repository).ignored.is_all
