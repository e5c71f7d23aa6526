"""Reads the files of a commit: their names, modes and contents. Nothing of them is checked out or filtered."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from gpuqueue.lazy.frozen import dataclass
from gpuqueue.snapshot import git_run
from gpuqueue.snapshot.errors import SnapshotRefused
from gpuqueue.snapshot.names import path_fault
from gpuqueue.snapshot.tree import Tree

#: Modes of git: a file, one that may be executed, a symbolic link, and a submodule.
FILE, EXECUTABLE, LINK, SUBMODULE = "100644", "100755", "120000", "160000"
#: Modes that only old versions of git wrote.
_OLD_MODES = {"100664": FILE, "100775": EXECUTABLE}
#: Deepest submodule in submodules that is read. A commit cannot hold itself, but may go on for long.
_MOST_DEPTH = 8


@dataclass(frozen=True, slots=True)
class Committed:
    """A file of a commit: its mode, its object id, and the directory of the repository that has the object."""

    mode: str
    git_id: str
    folder: str


class CommitFiles:
    """The files of *commit* in *tree*, a git work tree or a directory of one. Submodules are expanded.

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
            heads = self._git(folder, "cat-file", "--batch-check=%(objectsize)", given=_lines(ids)).split(b"\n")
            sizes = zip(ids, heads, strict=False)  # behind the last head is the end of its line
            wanted = [each for each, size in sizes if size.isdigit() and int(size) <= most_bytes]
            known = dict(
                zip(wanted, _batch(self._git(folder, "cat-file", "--batch", given=_lines(wanted))), strict=True)
            )
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
        return git_run.in_work_tree(self._tree.root / folder, self._work_trees[folder], words, given)[0]


def _lines(ids: Iterable[str]) -> bytes:
    return "".join(f"{each}\n" for each in ids).encode("ascii")


def _batch(output: bytes) -> Iterator[bytes]:
    """Yield the contents in the *output* of ``git cat-file --batch``."""
    at = 0
    while at < len(output):
        end = output.index(b"\n", at)
        size_bytes = int(output[at:end].rpartition(b" ")[2])
        yield output[end + 1 : end + 1 + size_bytes]
        at = end + 1 + size_bytes + 1
