"""Tests of the git checkout that a submit records, with real repositories."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner

from gpuqueue.cli.main import commands
from gpuqueue.errors import BadRequest
from gpuqueue.model.job_spec import Checkout
from gpuqueue.system import git_checkout
from gpuqueue.system.git_checkout import CheckoutReader, commit_of_code
from gpuqueue.version import VERSION

NAMED = {
    "GIT_AUTHOR_NAME": "a",
    "GIT_AUTHOR_EMAIL": "a@b",
    "GIT_COMMITTER_NAME": "a",
    "GIT_COMMITTER_EMAIL": "a@b",
    "GIT_CONFIG_GLOBAL": os.devnull,
}


def git(directory: Path, *words: str) -> str:
    """Run git and return its output."""
    environ = {**os.environ, **NAMED}
    return subprocess.run(
        [shutil.which("git") or "git", *words], cwd=directory, env=environ, capture_output=True, text=True, check=True
    ).stdout.strip()


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a repository with one commit, give git enough time, and ask it each time."""
    monkeypatch.setattr(git_checkout, "DIRTY_S", 30.0)
    monkeypatch.setattr(git_checkout, "FRESH_S", 0.0)
    made = tmp_path / "repository"
    made.mkdir()
    git(made, "init", "-q", "-b", "main")
    (made / "train.py").write_text("print(1)\n")
    git(made, "add", "train.py")
    git(made, "commit", "-q", "-m", "one")
    return made


def test_commit_branch_and_whether_something_was_changed(repository: Path) -> None:
    """The commit, the branch and uncommitted changes are found from any directory below.

    An untracked file is no change.
    """
    commit = git(repository, "rev-parse", "HEAD")
    below = repository / "a" / "b"
    below.mkdir(parents=True)
    (repository / "out.log").write_text("an output\n")

    assert Checkout(commit=commit, branch="main", dirty=False) == CheckoutReader(below).seen()

    (repository / "train.py").write_text("print(2)\n")
    assert Checkout(commit=commit, branch="main", dirty=True) == CheckoutReader(below).seen()


def test_many_submits_of_a_process_ask_git_once_for_each_commit(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Git took two thirds of the time of `Client.submit` in a repository: 171 submits a second beside 516 outside."""
    monkeypatch.setattr(git_checkout, "FRESH_S", 3600.0)
    calls = tmp_path / "calls"
    counting = tmp_path / "bin" / "git"
    counting.parent.mkdir()
    counting.write_text(f'#!/bin/sh\necho >> {calls}\nexec {shutil.which("git")} "$@"\n')
    counting.chmod(0o755)
    with monkeypatch.context() as counted:
        counted.setenv("PATH", f"{counting.parent}:{os.environ['PATH']}")
        first = [must_see(repository) for _ in range(5)]
    (repository / "train.py").write_text("print(2)\n")
    git(repository, "commit", "-qam", "two")
    (repository / "train.py").write_text("print(3)\n")

    assert (1, False) == (len(calls.read_text().splitlines()), first[-1].dirty)
    assert [first[0]] * 5 == first
    assert (True, git(repository, "rev-parse", "HEAD")) == (must_see(repository).dirty, must_see(repository).commit)


class Clock:
    """A clock that the test sets."""

    now_s = 0.0

    def monotonic(self) -> float:
        """Return the time of the test, in seconds."""
        return self.now_s


def test_an_edit_is_seen_after_a_second_and_what_git_does_at_once(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between two submits of a process: files edited, staged, put away and committed, and another branch."""
    clock = Clock()
    monkeypatch.setattr(git_checkout, "FRESH_S", 1.0)
    monkeypatch.setattr(git_checkout, "time", clock)
    first = git(repository, "rev-parse", "HEAD")
    assert Checkout(commit=first, branch="main", dirty=False) == must_see(repository)

    (repository / "train.py").write_text("print(2)\n")
    clock.now_s = 0.9
    assert must_see(repository).dirty is False, "the answer of the last second"
    clock.now_s = 1.0
    assert must_see(repository).dirty is True

    git(repository, "stash", "-q")
    assert must_see(repository).dirty is False
    git(repository, "stash", "pop", "-q")
    assert must_see(repository).dirty is True
    git(repository, "checkout", "-q", "-b", "side")
    assert Checkout(commit=first, branch="side", dirty=True) == must_see(repository)
    git(repository, "commit", "-qam", "two")
    assert Checkout(commit=git(repository, "rev-parse", "HEAD"), branch="side", dirty=False) == must_see(repository)
    git(repository, "reset", "-q", "--soft", first)
    assert Checkout(commit=first, branch="side", dirty=True) == must_see(repository)


def test_wherever_git_keeps_the_commit(repository: Path, tmp_path: Path) -> None:
    """The commit is found in a file of its own, in packed refs, in a worktree, and in HEAD itself."""
    commit = git(repository, "rev-parse", "HEAD")
    git(repository, "pack-refs", "--all")
    assert commit == must_see(repository).commit

    git(repository, "worktree", "add", "-q", "-b", "side/way", str(tmp_path / "worktree"))
    assert Checkout(commit=commit, branch="side/way", dirty=False) == CheckoutReader(tmp_path / "worktree").seen()

    git(repository, "checkout", "-q", "--detach")
    assert Checkout(commit=commit, branch=None, dirty=False) == CheckoutReader(repository).seen()


def must_see(directory: Path) -> Checkout:
    """Return the checkout of *directory*, which must exist."""
    seen = CheckoutReader(directory).seen()
    assert seen is not None
    return seen


def test_where_there_is_no_commit_there_is_nothing(tmp_path: Path) -> None:
    """A directory without a repository, without a commit or with a damaged repository has no checkout.

    The job is queued anyway.
    """
    assert CheckoutReader(tmp_path).seen() is None
    git(tmp_path, "init", "-q")
    assert CheckoutReader(tmp_path).seen() is None
    (tmp_path / ".git" / "HEAD").write_bytes(b"\xff" * 100)
    assert CheckoutReader(tmp_path).seen() is None
    (tmp_path / ".git" / "HEAD").write_text("ref: refs/heads/a")
    (tmp_path / ".git" / "refs" / "heads" / "a").write_text("ref: refs/heads/a")
    assert CheckoutReader(tmp_path).seen() is None


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user, who may not read a directory")
def test_a_closed_git_directory_is_no_checkout(repository: Path) -> None:
    """A person who may not read the ``.git`` of a shared directory can submit from there; the commit is not known."""
    (repository / ".git").chmod(0o700)
    for each in (repository, *repository.parents[:-2]):
        each.chmod(0o755)
    os.seteuid(65534)
    try:
        assert CheckoutReader(repository).seen() is None
    finally:
        os.seteuid(0)


def test_a_git_that_takes_too_long_is_not_waited_for(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If git takes too long, the commit is known and uncommitted changes are unknown."""
    monkeypatch.setattr(git_checkout, "DIRTY_S", 0.05)
    slow = tmp_path / "bin" / "git"
    slow.parent.mkdir()
    slow.write_text("#!/bin/sh\nexec sleep 10000\n")
    slow.chmod(0o755)
    monkeypatch.setenv("PATH", f"{slow.parent}:{os.environ['PATH']}")

    seen = must_see(repository)

    assert (40, "main", None) == (len(seen.commit), seen.branch, seen.dirty)


def test_a_git_that_reads_all_files_of_a_new_clone_is_waited_for(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first submit from a clone said `changes not known`. The limit is ten times what this git takes."""
    monkeypatch.undo()  # the limit that is in use
    slow = tmp_path / "bin" / "git"
    slow.parent.mkdir()
    slow.write_text("#!/bin/sh\nexec sleep 0.1\n")
    slow.chmod(0o755)
    monkeypatch.setenv("PATH", f"{slow.parent}:{os.environ['PATH']}")

    assert must_see(repository).dirty is False


def test_a_host_without_git_still_knows_the_commit(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The commit is read from the repository itself, without git.

    Variables that a git hook left in the environment are ignored.
    """
    monkeypatch.setenv("GIT_DIR", "/nowhere")
    assert must_see(repository).dirty is False
    monkeypatch.setenv("PATH", "/nowhere")
    assert ("main", None) == (must_see(repository).branch, must_see(repository).dirty)


def test_nothing_in_the_repository_is_run(repository: Path, tmp_path: Path) -> None:
    """No program that a repository configures is run.

    A repository can configure a program for the search for changes.
    """
    mark = tmp_path / "was-run"
    git(repository, "config", "core.fsmonitor", f"touch {mark}; true")

    assert must_see(repository).dirty is False
    assert not mark.exists()


def test_what_git_would_not_say_is_refused() -> None:
    """An invalid commit or branch is refused when the value is created."""
    with pytest.raises(BadRequest, match="is no commit"):
        Checkout(commit="HEAD")
    with pytest.raises(BadRequest, match="is no branch"):
        Checkout(commit="a" * 40, branch="")


# ``--version`` names the commit of the code, so that a report about a development build can be reproduced.

CHECKED_OUT, BUILT_FROM = "a" * 40, "b" * 40


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """Return the directory of a package that is no checkout and no archive."""
    made = tmp_path / "gpuqueue"
    made.mkdir()
    return made


def test_the_commit_of_an_archive_is_recorded_in_it(package: Path) -> None:
    """A wheel knows it, also one that was built from the source archive."""
    assert commit_of_code(package) is None
    (package / "commit").write_text(f"{BUILT_FROM}\n")
    assert BUILT_FROM == commit_of_code(package)
    (package / "commit").write_text("nonsense \udcff", errors="surrogateescape")
    assert commit_of_code(package) is None


def test_a_checkout_has_the_commit_that_is_checked_out(package: Path) -> None:
    """Not that of an archive that was built here before. A repository around an installation is another one."""
    (package / "commit").write_text(BUILT_FROM)
    git = package.parent / ".git"
    git.mkdir()
    (git / "HEAD").write_text(CHECKED_OUT)
    assert CHECKED_OUT == commit_of_code(package)

    inner = package.parent / "site-packages" / "gpuqueue"
    inner.mkdir(parents=True)
    assert commit_of_code(inner) is None


@pytest.mark.parametrize(("commit", "words"), [(CHECKED_OUT, " (commit aaaaaaaaaaaa)"), (None, "")])
def test_the_version_names_the_commit(monkeypatch: pytest.MonkeyPatch, commit: str | None, words: str) -> None:
    """Without one it is the version alone."""
    monkeypatch.setattr(git_checkout, "commit_of_code", lambda: commit)

    assert f"gpuqueue, version {VERSION}{words}\n" == CliRunner().invoke(commands, ["--version"]).output
