"""Reads each file once: its hashes, and whether it begins like a private key."""

from __future__ import annotations

import hashlib
import os
import stat

from gpuqueue.snapshot import limits as size_limits
from gpuqueue.snapshot.errors import SnapshotRefused
from gpuqueue.snapshot.git_ids import git_digest, git_hash_of
from gpuqueue.snapshot.hash_cache import Content, HashCache
from gpuqueue.snapshot.key_files import begins_like_key
from gpuqueue.snapshot.limits import IGNORE_FILE, Limits, ignore_line
from gpuqueue.snapshot.names import quoted
from gpuqueue.snapshot.tree import Tree

_CHUNK_BYTES = 2**20
#: How often a file is read if it changes while it is read.
_TRIES = 2


class Contents:
    """Reads files of *tree*, except those that *cache* knows. ``found`` has what was read and what was known.

    With *git_hash*, the name of a hash function, each content has its object id in git.
    """

    def __init__(self, tree: Tree, limits: Limits, cache: HashCache, git_hash: str | None = None) -> None:
        self.tree = tree
        self.found: dict[str, Content] = {}
        self._limits, self._cache, self._git_hash = limits, cache, git_hash

    def keys(self) -> list[str]:
        """Return the paths of the files that begin like a private key."""
        return [path for path, content in self.found.items() if content.is_key]

    def git_ids(self) -> dict[str, str]:
        """Return the object ids of the files by path."""
        return {path: content.git_id for path, content in self.found.items() if content.git_id is not None}

    def of(self, path: str) -> tuple[Content, bool]:
        """Return the content of the regular file *path*, and whether its owner may execute it.

        The file is opened even if the cache knows it: a network disk may show an old status of one that is not open.

        Raises:
            SnapshotTooLarge: the file has grown above the limit.
            SnapshotRefused: it cannot be read, or changes while it is read.

        """
        for _ in range(_TRIES):
            with self.tree.opened(path) as (fd, before):
                content = self._known(path, before)
                if content is not None:
                    self.found[path] = content
                    return content, bool(before.st_mode & stat.S_IXUSR)
                size_limits.check([(path, before.st_size)], self._limits)
                content = _read(fd, before.st_size, self._git_hash)
                after = os.fstat(fd)
            if content.size_bytes == before.st_size and _state(before) == _state(after):
                self._cache.add(path, after, content)
                self.found[path] = content
                return content, bool(after.st_mode & stat.S_IXUSR)
        raise SnapshotRefused(
            f"{quoted(path)} changes while it is read. Wait until nothing writes to it, or leave it out by the line "
            f"{ignore_line(path)} in {IGNORE_FILE}"
        )

    def _known(self, path: str, about: os.stat_result) -> Content | None:
        content = self._cache.get(path, about)
        if content is None or self._git_hash is None:
            return content
        return content if git_hash_of(content.git_id or "") == self._git_hash else None


def _state(about: os.stat_result) -> tuple[int, int, int]:
    return about.st_size, about.st_mtime_ns, about.st_ctime_ns


def _read(fd: int, most_bytes: int, git_hash: str | None) -> Content:
    """Return the content of the open file, of which no more than *most_bytes* are read."""
    digest, left_bytes, is_key = hashlib.sha256(), most_bytes, False
    git = None if git_hash is None else git_digest(most_bytes, git_hash)
    while left_bytes and (part := os.read(fd, min(_CHUNK_BYTES, left_bytes))):
        if left_bytes == most_bytes:
            is_key = begins_like_key(part)
        digest.update(part)
        if git is not None:
            git.update(part)
        left_bytes -= len(part)
    return Content(digest.hexdigest(), most_bytes - left_bytes, is_key, None if git is None else git.hexdigest())
