"""Finds the files to pack below a directory, without following a link. Standard library only.

The memory is bounded by :data:`MOST_FILES` and by the depth of the tree, however many files the job has made.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

from gpuqueue.snapshot.links import faulty_links
from gpuqueue.snapshot.names import LEFT_OUT_NOTES, target_fault
from workers.results.changes import Changes
from workers.results.errors import PackFailed
from workers.results.files import GONE, open_folder
from workers.results.left_out import LeftOut
from workers.results.wanted import Wanted

#: Most files and links in an archive.
MOST_FILES = 100_000


class Walk:
    """One search of a directory. ``found`` has each path, with the target of a link and None for a file."""

    def __init__(self, wanted: Wanted, changes: Changes | None, left: LeftOut, progress: Callable[[], object]) -> None:
        """Search for what is *wanted* and, with *changes*, new or changed."""
        self.found: dict[str, str | None] = {}
        self._wanted = wanted
        self._changes = changes
        self._left = left
        self._progress = progress

    def through(self, tree: int) -> None:
        """Search the open directory *tree*, and drop the links that lead out of it.

        Raises:
            PackFailed: there are too many files.

        """
        self._root = f"{os.readlink(f'/proc/self/fd/{tree}')}/"
        self._folder(tree, "", taken=self._wanted.everything)
        for path in sorted(faulty_links({path: each for path, each in self.found.items() if each is not None})):
            self._left.link(path)
            del self.found[path]

    def _folder(self, folder: int, start: str, *, taken: bool) -> None:
        """Search an open directory, whose paths begin with *start*. With *taken*, all below it is wanted."""
        for entry in self._entries(folder, start):
            self._progress()
            if self._wanted.leaves_out(entry.name):
                continue
            path = f"{start}{entry.name}"
            if path == LEFT_OUT_NOTES:
                continue
            is_folder = self._is_folder(entry, path)
            takes = taken or self._wanted.takes(path, folder=is_folder)
            fault = target_fault(path)
            if fault is not None:
                if takes or is_folder:
                    self._left.name(path, fault)
            elif is_folder:
                self._enter(folder, entry.name, path, taken=takes)
            elif takes:
                self._take(folder, entry, path)

    def _entries(self, folder: int, start: str) -> Iterator[os.DirEntry[str]]:
        try:
            with os.scandir(folder) as entries:
                yield from entries
        except OSError as error:
            self._left.unreadable(start or ".", error)

    def _is_folder(self, entry: os.DirEntry[str], path: str) -> bool:
        try:
            return entry.is_dir(follow_symlinks=False)
        except OSError as error:  # on file systems whose directories do not say what their entries are
            self._left.unreadable(path, error)
            return False

    def _enter(self, folder: int, name: str, path: str, *, taken: bool) -> None:
        try:
            below = open_folder(name, folder)
        except OSError as error:
            self._left.unreadable(path, error)
            return
        if below is None:
            return
        try:
            self._folder(below, f"{path}/", taken=taken)
        finally:
            os.close(below)

    def _take(self, folder: int, entry: os.DirEntry[str], path: str) -> None:
        """Add a regular file or a link, if it is new or changed. Sockets, pipes and devices are left out."""
        target = None
        try:
            if entry.is_symlink():
                target = os.readlink(entry.name, dir_fd=folder)
            elif not entry.is_file(follow_symlinks=False):
                return
        except OSError as error:
            if error.errno not in GONE:
                self._left.unreadable(path, error)
            return
        if self._changes is not None and not self._changes.has(path, entry.name, folder):
            return
        if target is not None:
            target = self._inside(path, target)
            if not target.startswith("/") and (fault := target_fault(target)) is not None:
                self._left.name(path, f"is a link to a path that {fault}")
                return
        if len(self.found) >= MOST_FILES:
            raise PackFailed(f"there are more than {MOST_FILES} files: name those that you want by patterns")
        self.found[path] = target

    def _inside(self, path: str, target: str) -> str:
        """Return *target* relative to the link *path* if it is an absolute path in the tree, else unchanged."""
        if not target.startswith(self._root):
            return target
        return os.path.relpath(target[len(self._root) :] or ".", os.path.dirname(path) or ".")
