"""Tests of how a snapshot differs from its commit, with the real git."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

import pytest
from git_trees import git, make, write

from gpuqueue.files import commit_diff
from gpuqueue.files.manifest import Manifest
from gpuqueue.files.take import take_snapshot

KEY = "-----BEGIN PRIVATE " + "KEY-----\nMIIEsecret\n"


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """Return a repository with a tracked file in the root and one in a directory."""
    return make(tmp_path / "repository", "train.py", "src/model.py")


def head_of(repository: Path) -> str:
    """Return the commit of the repository."""
    return git(repository, "rev-parse", "HEAD").strip()


def diff_of(root: Path, *allowed: str) -> str:
    """Return how the snapshot of *root* differs from its commit."""
    taken = take_snapshot(root, allowed=allowed)
    assert taken.diff is not None, taken.notes
    return taken.diff.decode()


def commit(repository: Path) -> None:
    """Commit everything."""
    git(repository, "add", "--all")
    git(repository, "commit", "-q", "-m", "next")


def test_no_difference_is_said_with_the_commit(repository: Path) -> None:
    """Without changes there is one line; ignored files are no difference."""
    write(repository, ".git/info/exclude", content="*.log\n")
    write(repository, "a.log")

    assert f"no difference to commit {head_of(repository)}\n" == diff_of(repository)


def test_what_was_added_modified_and_deleted(repository: Path) -> None:
    """The list has each file, and below it is what git would print."""
    write(repository, "train.py", content="y\n")
    write(repository, "new.py")
    git(repository, "rm", "-q", "src/model.py")

    expected = f"""difference to commit {head_of(repository)}: 1 added, 1 modified, 1 deleted
A  new.py
D  src/model.py
M  train.py

diff --git a/new.py b/new.py
new file mode 100644
index 0000000..587be6b
--- /dev/null
+++ b/new.py
@@ -0,0 +1 @@
+x
diff --git a/train.py b/train.py
index 587be6b..975fbec 100644
--- a/train.py
+++ b/train.py
@@ -1 +1 @@
-x
+y
"""
    assert expected == diff_of(repository)


def test_the_commit_and_the_difference_are_the_snapshot(tmp_path: Path, repository: Path) -> None:
    """A clone of the commit, with the difference applied, has the address of the snapshot. No content is special."""
    write(repository, "mode.sh", "gone.py", "sub/to-link", "crlf.txt", "file/now")
    (repository / "link").symlink_to("train.py")
    write(repository, ".gitattributes", content="*.txt text eol=lf\n*.dat -diff\n")
    commit(repository)
    clone = tmp_path / "clone"
    git(tmp_path, "clone", "-q", str(repository), str(clone))
    write(repository, "train.py", content="no end of line")
    write(
        repository, "src/model.py", content="a\rdiff --git a/x b/x\r\ndiff --git a/y b/y\n-- \n+++ b/z\n@@ -1 +1 @@\n"
    )
    write(repository, "sp ace/qu\"ote's.py", "ümläut.py", "-rf", "deep/er/new.txt", content="1\n2\n")
    write(repository, "crlf.txt", content="x\r\n")
    write(repository, "empty.py", content="")
    (repository / "mode.sh").chmod(0o755)
    (repository / "gone.py").unlink()
    shutil.rmtree(repository / "file")
    write(repository, "file", content="was a directory\n")
    for path, target in (("sub/to-link", "../train.py"), ("link", "mode.sh")):
        (repository / path).unlink()
        (repository / path).symlink_to(target)

    taken = take_snapshot(repository)

    assert taken.diff is not None
    (clone / "gone.py").unlink()
    shutil.rmtree(clone / "file")
    (tmp_path / "diff").write_bytes(taken.diff)
    git(clone, "apply", "--whitespace=nowarn", str(tmp_path / "diff"))
    assert taken.address == take_snapshot(clone).address


@pytest.mark.parametrize("left_out", [False, True])
def test_files_that_do_not_travel_are_only_named(repository: Path, *, left_out: bool) -> None:
    """Of a file that was deleted, or that an ignore file leaves out, only the name is there."""
    write(repository, "private.txt", "secret.pem", content="password\n")
    if left_out:
        write(repository, ".gpuqueueignore", content="private.txt\nsecret.pem\n")
    commit(repository)
    if not left_out:
        (repository / "private.txt").unlink()
        (repository / "secret.pem").unlink()

    text = diff_of(repository)

    what = " (left out of the snapshot)" if left_out else ""
    assert f"D  private.txt{what}\nD  secret.pem{what}\n" in text
    assert f": 2 {'left out' if left_out else 'deleted'}\n" in text
    assert "password" not in text


def test_a_private_key_in_the_commit_is_not_shown(repository: Path) -> None:
    """A key that was removed from a file does not leave with the lines before; one that is allowed does."""
    write(repository, "config.txt", content=KEY)
    commit(repository)
    write(repository, "config.txt", content="none\n")

    text = diff_of(repository)

    assert "M  config.txt (not shown: the commit has a private key in it)\n" in text
    assert "secret" not in text
    assert "-MIIEsecret\n" in diff_of(repository, "config.txt")


def test_large_and_binary_files_are_named_only(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The text stays small: the list says what is not shown, and each difference that is shown is whole."""
    monkeypatch.setattr(commit_diff, "_MOST_FILE_BYTES", 1000)
    monkeypatch.setattr(commit_diff, "MOST_BYTES", 3000)
    monkeypatch.setattr(commit_diff, "_MOST_LIST_BYTES", 1500)
    monkeypatch.setattr(commit_diff, "_MOST_COMPARED_BYTES", 4000)
    write(repository, "was-large", content="x" * 2000)
    commit(repository)
    write(repository, "was-large", content="small\n")
    write(repository, "large", content="x" * 1001)
    write(repository, "a1", "a2", "a3", "a4", "a5", content="line\n" * 180)
    (repository / "0.bin").write_bytes(b"\0\1\2")

    text = diff_of(repository)

    assert len(text) <= commit_diff.MOST_BYTES
    assert "A  large (not shown: the file is large)\n" in text
    assert "M  was-large (not shown: the committed file is large, or not on this machine)\n" in text
    assert "A  a1\nA  a2 (not shown: the differences are too long together)\n" in text
    assert "Binary files /dev/null and b/0.bin differ\n" in text
    assert 180 == text.count("+line\n")


def test_a_long_list_is_cut_and_says_so(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The list of files has a limit, too."""
    monkeypatch.setattr(commit_diff, "_MOST_LIST_BYTES", 250)
    write(repository, *(f"many/{number:03}" for number in range(100)))

    text = diff_of(repository)

    assert ": 100 added\nA  many/000\n" in text
    listed = text.count("\nA  ")
    assert 0 < listed < 100
    assert f"\nand {100 - listed} more\n\ndiff --git" in text


@pytest.mark.parametrize("change", ["nothing", "edited", "other commit", "left out", "commit not here"])
def test_a_submodule_is_compared_file_by_file(tmp_path: Path, repository: Path, change: str) -> None:
    """The files of a submodule are compared with the commit that the outer commit names, if that is here."""
    library = make(tmp_path / "library", "lib.py", "util.py")
    git(repository, "submodule", "add", "-q", str(library), "lib")
    commit(repository)
    if change == "edited":
        write(repository, "lib/lib.py", content="edited\n")
    elif change == "other commit":
        write(repository, "lib/util.py", content="newer\n")
        commit(repository / "lib")
    elif change == "left out":
        write(repository, ".gpuqueueignore", content="lib\n")
    elif change == "commit not here":
        git(repository, "update-index", "--cacheinfo", f"160000,{'1' * 40},lib")
        git(repository, "commit", "-q", "-m", "next")
    _, _, text = diff_of(repository).partition(head_of(repository))

    assert text.startswith(
        {
            "nothing": "\n",
            "edited": ": 1 modified\nM  lib/lib.py\n",
            "other commit": ": 1 modified\nM  lib/util.py\n",
            "left out": ": 1 added, 2 left out\nA  .gpuqueueignore\nD  lib/lib.py (left out of the snapshot)\n",
            "commit not here": "\nthe submodule lib is not compared: its commit is not on this machine\n",
        }[change]
    )


def test_a_directory_of_the_work_tree_is_compared_alone(repository: Path) -> None:
    """With a directory of its own, other parts of the commit are no difference, and paths begin in the directory."""
    write(repository, "train.py", "src/model.py", content="y\n")

    taken = take_snapshot(repository / "src", root=repository / "src")

    assert taken.diff is not None
    assert b": 1 modified\nM  model.py\n\ndiff --git a/model.py b/model.py\n" in taken.diff


def test_without_a_commit_there_is_none(tmp_path: Path) -> None:
    """A directory without git, one that git ignores, and a repository without a commit have no difference."""
    write(tmp_path / "plain", "a.py")
    write(tmp_path / "new", "a.py")
    git(tmp_path / "new", "init", "-q")
    repository = make(tmp_path / "repository", "a.py")
    write(repository, ".git/info/exclude", content="out/\n")
    write(repository, "out/a.py")

    for directory in (tmp_path / "plain", tmp_path / "new", repository / "out"):
        taken = take_snapshot(directory, root=directory)
        assert (None, ()) == (taken.diff, taken.notes)


def test_a_disk_without_executable_bits_is_no_difference(repository: Path) -> None:
    """If git ignores the bit, so do we."""
    (repository / "train.py").chmod(0o755)
    assert ": 1 modified\nM  train.py\n" in diff_of(repository)

    git(repository, "config", "core.fileMode", "false")

    assert f"no difference to commit {head_of(repository)}\n" == diff_of(repository)


def test_an_unchanged_tree_is_compared_once(tmp_path: Path, repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The cache has the last text. It counts for the same files, the same commit and the same allowed secrets only."""
    write(repository, "key.txt", content=KEY)
    commit(repository)
    write(repository, "key.txt", content="none\n")
    (repository / "latin").write_bytes(b"\xe4\n")
    compared: list[str] = []
    text = commit_diff.CommitDiff.text

    def counted(self: commit_diff.CommitDiff, manifest: Manifest, git_ids: Mapping[str, str]) -> bytes:
        compared.append("once more")
        return text(self, manifest, git_ids)

    monkeypatch.setattr(commit_diff.CommitDiff, "text", counted)

    def taken(*allowed: str) -> tuple[bytes | None, int]:
        compared.clear()
        return take_snapshot(repository, cache=tmp_path / "cache", allowed=allowed).diff, len(compared)

    first, _ = taken()
    assert (first, 0) == taken()
    assert first is not None
    assert b"\n+\xe4\n" in first
    assert b"secret" not in first
    shown, count = taken("key.txt")
    assert (True, 1) == (b"secret" in (shown or b""), count)
    commit(repository)
    assert (f"no difference to commit {head_of(repository)}\n".encode(), 1) == taken()
    write(repository, "latin")
    assert 1 == taken()[1]
    write(repository, ".gpuqueueignore", content="train.py\n")
    assert [1, 1] == [taken()[1], taken()[1]]  # that a file is left out, and not deleted, depends on the disk


def test_the_users_configuration_has_no_effect(
    tmp_path: Path, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither colours nor other prefixes of the user are in the text."""
    write(repository, "train.py", content="y\n")
    plain = diff_of(repository)
    for scope in ("color.ui=always", "diff.noprefix=true", "diff.context=0", "diff.external=/bin/false"):
        name, _, value = scope.partition("=")
        git(repository, "config", name, value)
        git(repository, "config", "--file", str(tmp_path / ".gitconfig"), name, value)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("GIT_EXTERNAL_DIFF", "/bin/false")

    assert plain == diff_of(repository)


def test_a_damaged_repository_does_not_stop_a_submit(repository: Path) -> None:
    """If git cannot read the commit, the code travels all the same, and a note says what is missing."""
    tree = git(repository, "rev-parse", "HEAD^{tree}").strip()
    (repository / ".git/objects" / tree[:2] / tree[2:]).unlink()

    taken = take_snapshot(repository)

    assert taken.diff is None
    (note,) = taken.notes
    assert note.startswith("how the code differs from its commit is not recorded: git cannot list ")


def test_names_in_a_hostile_commit_lead_nowhere(tmp_path: Path, repository: Path) -> None:
    """A commit can hold any name. It is shown without what a terminal would obey, and no path outside is looked at."""
    make(tmp_path / "outside", "secret.py")
    (tmp_path / "\x1b[31m").touch()
    blob = git(repository, "rev-parse", "HEAD:train.py").strip()
    entries = [(b"100644", b"..", blob), (b"100644", b"\x1b[31m", blob), (b"100644", b"\xff.py", blob)]
    entries.append((b"160000", b"a/../../outside", "1" * 40))
    tree = b"".join(mode + b" " + name + b"\0" + bytes.fromhex(git_id) for mode, name, git_id in entries)
    (tmp_path / "tree").write_bytes(tree)
    made = git(repository, "hash-object", "-t", "tree", "-w", "--literally", str(tmp_path / "tree")).strip()
    hostile = git(repository, "commit-tree", "-m", "hostile", made).strip()
    git(repository, "update-ref", "HEAD", hostile)

    text = diff_of(repository)

    assert ": 2 added, 4 deleted\n" in text
    assert "\x1b" not in text
    assert "left out" not in text
