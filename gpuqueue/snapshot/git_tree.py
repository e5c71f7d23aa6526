"""Selects the files of a git work tree: tracked and untracked ones, without those that ignore files leave out.

``git ls-files`` gives the names, and the files are read from the disk. So the index and the object store stay as they
are, and no filter, hook or monitor program of the repository runs, whose configuration may come from anywhere.
"""

from __future__ import annotations

import os
import shlex
import stat
from collections.abc import Iterator
from pathlib import Path

from gpuqueue.snapshot.errors import SnapshotRefused
from gpuqueue.snapshot.ignore import Ignored, IgnoreRules
from gpuqueue.snapshot.limits import IGNORE_FILE, Limits
from gpuqueue.snapshot.names import quoted
from gpuqueue.snapshot.selection import Selection
from gpuqueue.snapshot.tree import Tree
from gpuqueue.text.sanitize import in_one_line

#: Settings of the repository that would run programs or write to it.
_SAFE = (
    *("-c", "core.fsmonitor=false", "-c", "core.untrackedCache=false", "-c", f"core.hooksPath={os.devnull}"),
    *("-c", "core.splitIndex=false", "-c", "submodule.recurse=false"),
)
#: No lock, no question, and no fetch of missing objects, for which the configuration may name any program.
_ENVIRONMENT = {
    "GIT_OPTIONAL_LOCKS": "0",
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_NO_LAZY_FETCH": "1",
    "GIT_ALLOW_PROTOCOL": "none",
    "LC_ALL": "C",
}
#: Mode of a submodule in the index.
_SUBMODULE = b"160000"
#: Time limit of one call of git, in seconds. A network disk that does not answer would block it forever.
_MOST_S = 300.0


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
        output, warnings = _run_git(self._tree.root / folder, work_tree, words)
        self.notes.extend(note for note in warnings if note not in self.notes)
        return output


def _run_git(directory: Path, work_tree: Path, words: tuple[str, ...]) -> tuple[str, Iterator[str]]:
    """Return the output of git in *directory*, and its warnings."""
    import subprocess  # noqa: PLC0415 - imports slow down the start of a command

    environ = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}  # set in git hooks
    # git finds the repository by itself, so that it checks the owner. It may not search above, or take a work tree that
    # the configuration names.
    environ |= {**_ENVIRONMENT, "GIT_WORK_TREE": str(work_tree), "GIT_CEILING_DIRECTORIES": str(work_tree.parent)}
    try:
        done = subprocess.run(
            ["git", *_SAFE, *words],  # noqa: S607 - the user's git
            cwd=directory,
            env=environ,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
            timeout=_MOST_S,
        )
    except FileNotFoundError:
        raise SnapshotRefused(f"{quoted(str(work_tree))} is a git work tree, but git is not installed") from None
    except (OSError, subprocess.SubprocessError) as error:
        raise SnapshotRefused(f"git cannot list {quoted(str(work_tree))}: {in_one_line(str(error))}") from None
    errors = os.fsdecode(done.stderr)
    if done.returncode:
        raise SnapshotRefused(f"git cannot list {quoted(str(work_tree))}: {in_one_line(' '.join(errors.split()))}")
    return os.fsdecode(done.stdout), (f"git: {in_one_line(line)}" for line in errors.splitlines())
