"""Describes how a snapshot differs from the commit that it was taken from: a list of files, and a unified diff.

The text is kept with the snapshot, so that it can be read without the repository. It may not show more than the
snapshot does: of files that the snapshot does not have, only the names are in it, and nothing of files with private
keys.

git compares the two in a repository of our own that has only the files that differ. So nothing of the user's
configuration has an effect, and no object is added to the user's repository.
"""

from __future__ import annotations

import os
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from gpuqueue.files import git
from gpuqueue.files.errors import SnapshotRefused
from gpuqueue.files.git import git_hash_of, git_id_of
from gpuqueue.files.limits import DIFF_BYTES
from gpuqueue.files.manifest import Entry, Manifest
from gpuqueue.files.names import path_fault
from gpuqueue.files.secret_files import begins_like_key, is_allowed
from gpuqueue.files.tree import Tree, read_again
from gpuqueue.text.sanitize import plain

#: Modes of git: a file, one that may be executed, a symbolic link, and a submodule.
FILE, EXECUTABLE, LINK, SUBMODULE = "100644", "100755", "120000", "160000"
#: Modes that only old versions of git wrote.
_OLD_MODES = {"100664": FILE, "100775": EXECUTABLE}
#: Deepest submodule in submodules that is read. A commit cannot hold itself, but may go on for long.
_MOST_DEPTH = 8
#: Largest text, in bytes, and largest list of files in it, in bytes.
MOST_BYTES, _MOST_LIST_BYTES = DIFF_BYTES, 2**18
#: Largest file whose difference is shown, and most bytes that git gets to compare.
_MOST_FILE_BYTES, _MOST_COMPARED_BYTES = 2**20, 8 * 2**20
_TOO_MUCH = "not shown: the differences are too long together"
#: Room for the last line of a list that is cut, and for the empty line below it.
_MORE_BYTES = 50
_LEFT_OUT = "left out of the snapshot"
_WORDS = {"A": "added", "M": "modified", "D": "deleted", _LEFT_OUT: "left out"}
_MODES = {FILE, EXECUTABLE}
_BEGIN = b"diff --git "


@dataclass(frozen=True, slots=True)
class Committed:
    """A file of a commit: its mode, its object id, and the directory of the repository that has the object."""

    mode: str
    git_id: str
    folder: str


class CommitFiles:
    """The files of *commit* in *tree*, a git work tree or a directory of one. Submodules are expanded.

    Nothing of them is checked out or filtered.

    ``unknown`` are the submodules whose commit is not on this machine.
    """

    def __init__(self, tree: Tree, work_tree: Path, commit: str) -> None:
        """Read the names.

        Raises:
            SnapshotRefused: git fails, for example because the commit does not exist.

        """
        self.files: dict[str, Committed] = {}
        self.unknown: list[str] = []
        self._tree = tree
        self._work_trees = {"": work_tree}
        self._add("", commit, 0)

    def is_mode_kept(self) -> bool:
        """Return whether the disk keeps the executable bit, as far as the repository knows."""
        words = ("config", "--type=bool", "--default=true", "core.fileMode")
        return self._git("", *words).strip() != b"false"

    def contents(self, files: Iterable[Committed], most_bytes: int) -> Iterator[tuple[Committed, bytes | None]]:
        """Yield each of *files* with its content; None if it has more than *most_bytes* or is not on this machine."""
        by_folder: dict[str, list[Committed]] = {}
        for each in files:
            by_folder.setdefault(each.folder, []).append(each)
        for folder, found in by_folder.items():
            ids = [each.git_id for each in found]
            heads = self._git(folder, "cat-file", "--batch-check=%(objectsize)", given=_id_lines(ids)).split(b"\n")
            sizes = zip(ids, heads, strict=False)  # behind the last head is the end of its line
            wanted = [each for each, size in sizes if size.isdigit() and int(size) <= most_bytes]
            output = self._git(folder, "cat-file", "--batch", given=_id_lines(wanted))
            known = dict(zip(wanted, _batch_contents(output), strict=True))
            yield from ((each, known.get(each.git_id)) for each in found)

    def _add(self, folder: str, commit: str, depth: int) -> None:
        for line in os.fsdecode(self._git(folder, "ls-tree", "-r", "-z", commit)).split("\0"):
            about, _, name = line.partition("\t")
            if not name:
                continue
            mode, _, git_id = about.split(" ")
            path = f"{folder}/{name}" if folder else name
            is_nested = mode == SUBMODULE and depth < _MOST_DEPTH and path_fault(path) is None
            if not is_nested or self._tree.stat(f"{path}/.git") is None:
                self.files[path] = Committed(_OLD_MODES.get(mode, mode), git_id, folder)
                continue
            self._work_trees[path] = self._tree.root / path
            try:
                self._add(path, git_id, depth + 1)
            except SnapshotRefused:
                self.unknown.append(path)

    def _git(self, folder: str, *words: str, given: bytes = b"") -> bytes:
        return git.in_work_tree(self._tree.root / folder, self._work_trees[folder], words, given)[0]


def _id_lines(ids: Iterable[str]) -> bytes:
    return "".join(f"{each}\n" for each in ids).encode("ascii")


def _batch_contents(output: bytes) -> Iterator[bytes]:
    """Yield the contents in the *output* of ``git cat-file --batch``."""
    at = 0
    while at < len(output):
        end = output.index(b"\n", at)
        size_bytes = int(output[at:end].rpartition(b" ")[2])
        yield output[end + 1 : end + 1 + size_bytes]
        at = end + 1 + size_bytes + 1


@dataclass(slots=True)
class _Change:
    """A path that differs: A, M or D as in git, its mode and content before and after, and why they are not shown."""

    path: str
    status: str
    old: Committed | None = None
    new: tuple[str, str] | None = None
    before: bytes | None = None
    after: bytes | None = None
    hidden: str | None = None


class CommitDiff:
    """The difference between *commit* and the snapshot of *tree*, a git work tree or a directory of one.

    Files in *tree* that the snapshot does not have are left out of it. *allowed* are the patterns of secrets that may
    travel. ``depends_on_disk``: the text has more than what follows from the commit, the snapshot and *allowed*.
    """

    def __init__(self, tree: Tree, work_tree: Path, commit: str, allowed: Sequence[str]) -> None:
        """Read the names of the commit's files.

        Raises:
            SnapshotRefused: git fails, for example because the commit does not exist.

        """
        self._tree, self._commit, self._allowed = tree, commit, allowed
        self._files = CommitFiles(tree, work_tree, commit)
        self.depends_on_disk = bool(self._files.unknown)

    def text(self, manifest: Manifest, git_ids: Mapping[str, str]) -> bytes:
        """Return the difference to the snapshot with *manifest*. *git_ids* has the object ids of its files by path.

        Raises:
            SnapshotRefused: git fails.

        """
        changes = self._changes(manifest, git_ids)
        if not changes:
            return f"no difference to commit {self._commit}\n{self._notes()}".encode()
        self._fill(changes, {each.path: each for each in manifest.entries})
        shown = [each for each in changes if each.hidden is None]
        room_bytes = MOST_BYTES - _MOST_LIST_BYTES
        parts = []
        for change, part in zip(shown, _compared(shown), strict=True):
            if len(part) > room_bytes:
                change.hidden = _TOO_MUCH
            else:
                room_bytes -= len(part)
                parts.append(part)
        return self._head(changes) + b"".join([b"\n", *parts] if parts else [])

    def _changes(self, manifest: Manifest, git_ids: Mapping[str, str]) -> list[_Change]:
        found = []
        git_hash = git_hash_of(self._commit) or ""
        before = dict(self._files.files)
        for entry in manifest.entries:
            new = _of_entry(entry, git_ids, git_hash)
            old = before.pop(entry.path, None)
            if self._is_unknown(entry.path) or (old is not None and (old.mode, old.git_id) == new):
                continue
            found.append(_Change(entry.path, "A" if old is None else "M", old, new))
        found += [_Change(path, "D", old, hidden=self._why_absent(path, old)) for path, old in before.items()]
        if any(_is_mode_only(each) for each in found) and not self._files.is_mode_kept():
            found = [each for each in found if not _is_mode_only(each)]
        return sorted(found, key=lambda each: each.path.encode("utf-8", "surrogateescape"))

    def _is_unknown(self, path: str) -> bool:
        return any(path.startswith(f"{each}/") for each in self._files.unknown)

    def _why_absent(self, path: str, old: Committed) -> str:
        if old.mode == SUBMODULE:
            return "a submodule"
        is_left_out = path_fault(path) is None and self._tree.stat(path) is not None
        self.depends_on_disk |= is_left_out
        return _LEFT_OUT if is_left_out else ""

    def _fill(self, changes: list[_Change], entries: dict[str, Entry]) -> None:
        """Add the contents to compare, or why they are not shown."""
        modified = [each for each in changes if each.status == "M" and each.old is not None]
        for each in modified:
            if each.old is not None and each.old.mode == SUBMODULE:
                each.hidden = "was a submodule"
        olds = {each.old for each in modified if each.old is not None and each.hidden is None}
        known = dict(self._files.contents(olds, _MOST_FILE_BYTES))
        left_bytes = _MOST_COMPARED_BYTES
        for each in changes:
            if each.hidden is None:
                each.hidden = self._filled(each, entries[each.path], known, left_bytes)
                left_bytes -= 0 if each.hidden else len(each.before or b"") + len(each.after or b"")

    def _filled(
        self, change: _Change, entry: Entry, known: dict[Committed, bytes | None], left_bytes: int
    ) -> str | None:
        """Add the contents of one file, or return why they are not shown."""
        if change.old is not None:
            change.before = known[change.old]
            if change.before is None:
                return "not shown: the committed file is large, or not on this machine"
            if begins_like_key(change.before) and not is_allowed(change.path, self._allowed):
                return "not shown: the commit has a private key in it"
        if (entry.size_bytes or 0) > _MOST_FILE_BYTES:
            return "not shown: the file is large"
        if len(change.before or b"") + (entry.size_bytes or 0) > left_bytes:
            return _TOO_MUCH
        try:
            change.after = self._content(entry)
        except SnapshotRefused:
            self.depends_on_disk = True
            return "not shown: the file has changed since"
        return None

    def _content(self, entry: Entry) -> bytes:
        if entry.sha256 is None:
            return (entry.target or "").encode()
        return b"".join(read_again(self._tree.root, entry.path, entry.sha256))

    def _head(self, changes: Sequence[_Change]) -> bytes:
        counts = Counter(_LEFT_OUT if each.hidden == _LEFT_OUT else each.status for each in changes)
        counted = ", ".join(f"{counts[what]} {word}" for what, word in _WORDS.items() if counts[what])
        lines = [f"difference to commit {self._commit}: {counted}\n{self._notes()}"]
        room_bytes = _MOST_LIST_BYTES - len(lines[0].encode()) - _MORE_BYTES
        for number, each in enumerate(changes):
            line = f"{each.status}  {plain(each.path)}{f' ({each.hidden})' if each.hidden else ''}\n"
            room_bytes -= len(line.encode())
            if room_bytes < 0:
                lines.append(f"and {len(changes) - number} more\n")
                break
            lines.append(line)
        return "".join(lines).encode()

    def _notes(self) -> str:
        return "".join(
            f"the submodule {plain(each)} is not compared: its commit is not on this machine\n"
            for each in self._files.unknown[:10]
        )


def _of_entry(entry: Entry, git_ids: Mapping[str, str], git_hash: str) -> tuple[str, str]:
    """Return the mode and the object id that git would give *entry*."""
    if entry.target is not None:
        return LINK, git_id_of(entry.target.encode(), git_hash)
    return EXECUTABLE if entry.executable else FILE, git_ids[entry.path]


def _is_mode_only(change: _Change) -> bool:
    old, new = change.old, change.new
    return old is not None and new is not None and old.git_id == new[1] and {old.mode, new[0]} == _MODES


def _compared(changes: Sequence[_Change]) -> list[bytes]:
    """Return the difference of each of *changes*, which are sorted as git does, as git prints it.

    Raises:
        SnapshotRefused: git fails.

    """
    if not changes:
        return []
    what = "git cannot compare the snapshot with its commit"
    with tempfile.TemporaryDirectory(prefix="gpuqueue-diff-") as made:
        own = Path(made)
        for folder in ("objects", "refs"):
            (own / folder).mkdir()
        (own / "HEAD").write_text("ref: refs/heads/new\n", "ascii")
        places = {"GIT_DIR": made, "GIT_CONFIG_NOSYSTEM": "1", "GIT_ATTR_NOSYSTEM": "1"}
        places |= {"HOME": made, "XDG_CONFIG_HOME": made}  # there is no configuration of the user
        git.run(own, ("fast-import", "--quiet"), places, what=what, given=b"".join(_imported(changes)))
        words = (
            "diff-tree",
            "-p",
            "--no-renames",
            "--no-ext-diff",
            "--no-textconv",
            "refs/heads/old",
            "refs/heads/new",
        )
        output, _ = git.run(own, ("-c", "core.quotePath=false", *words), places, what=what)
    found = list(_by_path(output))
    if len(found) != len(changes):
        raise SnapshotRefused(f"{what}: it shows {len(found)} of {len(changes)} files")
    return found


def _imported(changes: Sequence[_Change]) -> Iterator[bytes]:
    """Yield the input of ``git fast-import`` for two commits: the files before and after."""
    for name in ("old", "new"):
        yield f"commit refs/heads/{name}\ncommitter a <a> 0 +0000\ndata 0\n".encode()
        for each in changes:
            mode = (each.old and each.old.mode) if name == "old" else (each.new and each.new[0])
            content = each.before if name == "old" else each.after
            if mode is not None and content is not None:
                path = each.path.replace('"', '\\"')
                yield f'M {mode} inline "{path}"\ndata {len(content)}\n'.encode()
                yield content
                yield b"\n"


def _by_path(output: bytes) -> Iterator[bytes]:
    """Yield the part of each path in the *output* of git. A file that became a link has two, which belong together.

    No line of a file begins as a part does, because lines of files begin with a space, a plus or a minus.
    """
    head = b""
    part: list[bytes] = []
    for line in output.split(b"\n")[:-1]:
        if line.startswith(_BEGIN) and line != head:
            if part:
                yield b"".join(part)
            head, part = line, []
        part += [line, b"\n"]
    if part:
        yield b"".join(part)
