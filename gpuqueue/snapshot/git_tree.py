"""Selects the files of a git work tree: tracked and untracked ones, without those that ignore files leave out.

``git ls-files`` gives the names, and the files are read from the disk. So the index and the object store stay as they
are, and no filter, hook or monitor program of the repository runs, whose configuration may come from anywhere.
"""

from __future__ import annotations

import os
import shlex
import stat
from pathlib import Path

from gpuqueue.snapshot import git_run
from gpuqueue.snapshot.errors import SnapshotRefused
from gpuqueue.snapshot.ignore import Ignored, IgnoreRules
from gpuqueue.snapshot.limits import IGNORE_FILE, Limits
from gpuqueue.snapshot.names import quoted
from gpuqueue.snapshot.selection import Selection
from gpuqueue.snapshot.tree import Tree

#: Mode of a submodule in the index.
_SUBMODULE = b"160000"


def select_in_git(tree: Tree, work_tree: Path, limits: Limits) -> Selection:
    """Return the files in *tree*, which is the git *work_tree* or a directory of it.

    Files of initialised submodules and of other repositories in the tree are included. Deleted files are left out.
    Stops early once it has found far more than *limits* allows.

    Raises:
        SnapshotRefused: a submodule is not initialised, git fails or is not installed, or an ignore file is no file.

    """
    selected = _GitSelection(tree, 2 * limits.files)
    selected.add("", work_tree)
    return Selection(found=tuple(selected.found), notes=tuple(selected.notes))


class _GitSelection:
    def __init__(self, tree: Tree, most: int) -> None:
        self.found: list[tuple[str, os.stat_result]] = []
        self.notes: list[str] = []
        self._tree = tree
        self._most = most
        self._rules = IgnoreRules(tree.ignore_lines(IGNORE_FILE))
        self._ignored = Ignored([self._rules])

    def add(self, folder: str, work_tree: Path) -> None:
        """Add the files of the repository with the *work_tree* that are in *folder*, "" for the root."""
        names = self._listed(folder, work_tree)
        for path in names:
            if path.endswith(f"/{IGNORE_FILE}"):
                self._rules.add(path.rpartition("/")[0], self._tree.ignore_lines(path))
        folders = []
        for path in names:
            if len(self.found) > self._most:
                return
            about = self._tree.stat(path)
            if about is None:  # deleted, but still in the index
                continue
            is_folder = stat.S_ISDIR(about.st_mode)
            if self._ignored.by(path, folder=is_folder) is not None:
                continue
            if is_folder:
                folders.append(path)
            else:
                self.found.append((path, about))
        self._add_nested(folders, folder, work_tree)

    def _add_nested(self, folders: list[str], folder: str, work_tree: Path) -> None:
        missing = []
        for path in folders:
            if self._tree.stat(f"{path}/.git") is not None:
                self.add(path, self._tree.root / path)
            else:
                missing.append(path)
        if missing:  # or a tracked file is now a directory, whose files git lists one by one
            submodules = self._submodules(folder, work_tree)
            empty = [path for path in missing if path in submodules]
            if empty:
                named = ", ".join(quoted(path) for path in empty)
                raise SnapshotRefused(
                    f"the submodule {named} is not checked out. Run: git -C {shlex.quote(str(work_tree))} submodule "
                    f"update --init --recursive. Or leave it out by a line in {IGNORE_FILE}"
                )

    def _listed(self, folder: str, work_tree: Path) -> list[str]:
        words = ("ls-files", "-z", "--cached", "--others", "--exclude-standard")
        listed = {name.removesuffix("/") for name in self._git(folder, work_tree, *words).split("\0")}
        return sorted(f"{folder}/{name}" if folder else name for name in listed if name)

    def _submodules(self, folder: str, work_tree: Path) -> set[str]:
        entries = self._git(folder, work_tree, "ls-files", "-z", "--stage").split("\0")
        named = (entry.partition("\t") for entry in entries)
        return {
            f"{folder}/{name}" if folder else name for about, _, name in named if about.startswith(_SUBMODULE.decode())
        }

    def _git(self, folder: str, work_tree: Path, *words: str) -> str:
        output, warnings = git_run.in_work_tree(self._tree.root / folder, work_tree, words)
        self.notes.extend(note for note in warnings if note not in self.notes)
        return os.fsdecode(output)
