"""Selects the files of a directory without git: all that ignore files and the default patterns do not leave out."""

from __future__ import annotations

import os
import stat

from gpuqueue.snapshot.ignore import Ignored, IgnoreRules
from gpuqueue.snapshot.limits import IGNORE_FILE, Limits
from gpuqueue.snapshot.selection import Excluded, Selection
from gpuqueue.snapshot.tree import Tree

#: Left out unless an ignore file takes them back in (``!*.pt``): what tools make, and weights, which are large.
DEFAULT_EXCLUDES = (
    *(".hg/", ".svn/", ".DS_Store"),
    *(".venv/", "venv/", "node_modules/", ".tox/", ".nox/"),
    *("__pycache__/", ".mypy_cache/", ".pytest_cache/", ".ruff_cache/", ".hypothesis/", ".ipynb_checkpoints/"),
    *("wandb/", "mlruns/", "lightning_logs/"),
    *("*.pt", "*.pth", "*.ckpt", "*.safetensors"),
)
#: Left out always, as by git itself.
_GIT = ".git"
_GIT_IGNORE_FILE = ".gitignore"


def select_in_directory(tree: Tree, limits: Limits) -> Selection:
    """Return the files in *tree*. Stops early once it has found far more than *limits* allows.

    Raises:
        SnapshotRefused: a directory or an ignore file cannot be read.

    """
    walk = _Walk(tree)
    folders = [""]
    while folders and len(walk.found) <= 2 * limits.files:
        folders.extend(walk.through(folders.pop()))
    excluded = (Excluded(pattern=pattern, paths=len(paths), example=paths[0]) for pattern, paths in walk.left.items())
    return Selection(found=tuple(walk.found), excluded=tuple(excluded))


class _Walk:
    def __init__(self, tree: Tree) -> None:
        self.found: list[tuple[str, os.stat_result]] = []
        #: The paths that each default pattern left out, and ``.git``.
        self.left: dict[str, list[str]] = {}
        self._tree = tree
        self._own, self._git, self._defaults = IgnoreRules(), IgnoreRules(), IgnoreRules(DEFAULT_EXCLUDES)
        self._ignored = Ignored([self._own, self._git, self._defaults])

    def through(self, folder: str) -> list[str]:
        """Add the files in *folder*, and return the directories in it that are not left out."""
        names = self._tree.listed(folder)
        start = f"{folder}/" if folder else ""
        for name, rules in ((IGNORE_FILE, self._own), (_GIT_IGNORE_FILE, self._git)):
            if name in names:
                rules.add(folder, self._tree.ignore_lines(f"{start}{name}"))
        folders = []
        for name in names:
            path = f"{start}{name}"
            if name == _GIT:
                self.left.setdefault(_GIT, []).append(path)
                continue
            about = self._tree.stat(path)
            if about is None:  # deleted since
                continue
            is_folder = stat.S_ISDIR(about.st_mode)
            match = self._ignored.by(path, folder=is_folder)
            if match is not None:
                if match.rules is self._defaults:
                    self.left.setdefault(match.pattern, []).append(path)
            elif is_folder:
                folders.append(path)
            else:
                self.found.append((path, about))
        return folders
