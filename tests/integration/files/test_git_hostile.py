"""Tests that a repository is neither changed nor trusted, with the real git."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from git_trees import git, make, paths, write

from gpuqueue.files.errors import SnapshotRefused
from gpuqueue.files.take import take_snapshot


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """Return a repository with a tracked file in the root and one in a directory."""
    return make(tmp_path / "repository", "train.py", "src/model.py")


def state(root: Path) -> dict[str, tuple[int, int, bytes]]:
    """Return the times and contents of all files of the git directory."""
    files = [each for each in (root / ".git").rglob("*") if each.is_file()]
    return {str(each): (each.stat().st_mtime_ns, each.stat().st_ino, each.read_bytes()) for each in files}


def test_the_repository_is_not_touched(repository: Path) -> None:
    """No file of the git directory is written, replaced or made: neither the index nor an object."""
    write(repository, "train.py", content="changed\n")
    write(repository, "new.py")
    (repository / "src/model.py").touch()  # stale in the index, which git would refresh
    before = state(repository)

    take_snapshot(repository)

    assert before == state(repository)


def test_nothing_that_the_repository_configures_runs(tmp_path: Path, repository: Path) -> None:
    """Neither filters, nor hooks, nor a monitor, nor any other program of a hostile repository is run."""
    ran = tmp_path / "ran"
    program = tmp_path / "program"
    program.write_text(f'#!/bin/sh\necho "$0 $*" >> {ran}\ncat\n')
    program.chmod(0o755)
    hooks = tmp_path / "hooks"
    hooks.mkdir()
    for hook in ("post-index-change", "pre-commit", "fsmonitor-watchman", "reference-transaction", "query-watchman"):
        shutil.copy(program, hooks / hook)
        shutil.copy(program, repository / ".git/hooks" / hook)
    for name in (
        *("core.fsmonitor", "core.sshCommand", "core.pager", "core.editor", "core.askPass", "diff.external"),
        *("filter.f.clean", "filter.f.smudge", "filter.f.process", "diff.d.textconv", "diff.d.command"),
        *("gpg.program", "credential.helper", "uploadpack.packObjectsHook", "pager.ls-files", "ssh.variant"),
    ):
        git(repository, "config", name, str(program))
    git(repository, "config", "alias.ls-files", f"!{program}")
    git(repository, "config", "core.hooksPath", str(hooks))
    git(repository, "config", "protocol.ext.allow", "always")
    git(repository, "config", "remote.origin.url", f"ext::{program}")
    git(repository, "config", "remote.origin.promisor", "true")
    git(repository, "config", "core.repositoryFormatVersion", "1")
    git(repository, "config", "extensions.partialClone", "origin")
    write(repository, ".gitattributes", content="* filter=f diff=d\n")
    write(repository, "train.py", content="changed\n")
    git(repository, "status")
    assert ran.read_text(), "the trap does not work"
    ran.unlink()
    (repository / "train.py").touch()

    taken = take_snapshot(repository)

    assert not ran.exists(), ran.read_text()
    assert [".gitattributes", "src/model.py", "train.py"] == paths(taken)


def test_a_work_tree_that_the_configuration_names_is_not_taken(tmp_path: Path, repository: Path) -> None:
    """A repository cannot have another directory taken in its place."""
    write(tmp_path, "private/diary.txt")
    write(repository, "new.py")
    git(repository, "config", "core.worktree", str(tmp_path / "private"))

    assert ["new.py", "src/model.py", "train.py"] == paths(take_snapshot(repository))


def test_a_directory_that_became_a_link_is_not_followed(tmp_path: Path, repository: Path) -> None:
    """Tracked files below a directory that is now a link are deleted ones, and the link is judged by its target."""
    write(tmp_path, "outside/model.py", content="private\n")
    write(repository, "other/x.py")
    shutil.rmtree(repository / "src")
    (repository / "src").symlink_to("other")
    assert ["other/x.py", "src", "train.py"] == paths(take_snapshot(repository))

    (repository / "src").unlink()
    (repository / "src").symlink_to(tmp_path / "outside")
    with pytest.raises(SnapshotRefused, match=r"the link 'src' leads to .*, which is an absolute path\..*/src"):
        take_snapshot(repository)


def test_a_call_from_a_hook_takes_the_right_tree(
    tmp_path: Path, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Variables that git sets for its hooks do not lead to another repository."""
    other = make(tmp_path / "other", "other.py")
    for name, value in (("GIT_DIR", ".git"), ("GIT_INDEX_FILE", ".git/index"), ("GIT_WORK_TREE", ".")):
        monkeypatch.setenv(name, str(other / value))

    assert ["src/model.py", "train.py"] == paths(take_snapshot(repository))


def test_a_damaged_repository_is_refused_in_one_line(repository: Path) -> None:
    """What git says is in the message; no other repository above is taken in its place."""
    (repository / ".git/index").write_bytes(b"damaged")

    with pytest.raises(SnapshotRefused, match=r"^git cannot list .*index") as raised:
        take_snapshot(repository)

    assert "\n" not in str(raised.value)


def test_a_missing_git_is_named(repository: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Without git, a work tree is refused with the reason."""
    monkeypatch.setenv("PATH", str(tmp_path))

    with pytest.raises(SnapshotRefused, match="is a git work tree, but git is not installed"):
        take_snapshot(repository)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory to another account")
def test_a_repository_of_another_account_is_judged_by_git(repository: Path) -> None:
    """The rule of git about the owner of a repository holds, with its remedy."""
    for each in (repository, repository / ".git"):
        os.chown(each, 12345, 12345)

    with pytest.raises(SnapshotRefused, match=r"dubious ownership.*safe\.directory") as raised:
        take_snapshot(repository)

    assert str(raised.value).isprintable()


def test_an_unreadable_directory_is_reported(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What git warns about on its way is a note for the user: such files would be missing silently."""
    write(repository, ".git/info/exclude", content="*.x\n")
    program = repository.parent / "bin/git"
    write(
        program.parent, "git", content=f'#!/bin/sh\n{shutil.which("git")} "$@"\necho "warning: could not open d" >&2\n'
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(program.parent), prepend=os.pathsep)

    assert ("git: warning: could not open d",) == take_snapshot(repository).notes
