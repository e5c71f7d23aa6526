"""Opens the directories of a tree one by one, so that no link below its root is ever followed. Standard library only.

Between a check and an open, another process may replace a directory by a link. A directory that is opened by the
descriptor of its parent, without following links, is the one that was meant.
"""

from __future__ import annotations

import contextlib
import os

#: ``O_PATH`` also opens a directory without read permission. Not every system has ``O_PATH``.
_PATH_ONLY = getattr(os, "O_PATH", os.O_RDONLY)
_FOLDER = _PATH_ONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class Folders:
    """The directories below a root. The root and the directories of the last path stay open until ``close``."""

    def __init__(self, root: str | int, *, make: bool = False) -> None:
        """Open the directory *root*, whose own path may have links, or which is already open.

        With *make*, missing directories are made.
        """
        self._make = make
        self._open: list[tuple[str, int]] = []
        path, parent = (root, None) if isinstance(root, str) else (".", root)
        self._root = os.open(path, _PATH_ONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=parent)

    def close(self) -> None:
        """Close all directories."""
        self._keep(0)
        os.close(self._root)

    def of(self, path: str) -> tuple[int, str]:
        """Return the open directory of *path* and its name there. The directory stays open until the next call.

        Raises:
            OSError: a directory is missing, or is a link or no directory.

        """
        *parts, name = path.split("/")
        same = 0
        for part, (known, _) in zip(parts, self._open, strict=False):
            if part != known:
                break
            same += 1
        self._keep(same)
        for part in parts[same:]:
            self._enter(part)
        return self._last(), name

    def _enter(self, part: str) -> None:
        if self._make:
            with contextlib.suppress(FileExistsError):
                os.mkdir(part, 0o755, dir_fd=self._last())
        self._open.append((part, os.open(part, _FOLDER, dir_fd=self._last())))

    def _last(self) -> int:
        return self._open[-1][1] if self._open else self._root

    def _keep(self, count: int) -> None:
        while len(self._open) > count:
            os.close(self._open.pop()[1])
