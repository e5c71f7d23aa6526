"""Reads a file once: its hash, and whether it begins like a private key."""

from __future__ import annotations

import hashlib
import os
import stat

from gpuqueue.snapshot import limits as size_limits
from gpuqueue.snapshot.errors import SnapshotRefused
from gpuqueue.snapshot.hash_cache import Content, HashCache
from gpuqueue.snapshot.key_files import begins_like_key
from gpuqueue.snapshot.limits import IGNORE_FILE, Limits, ignore_line
from gpuqueue.snapshot.names import quoted
from gpuqueue.snapshot.tree import Tree

_CHUNK_BYTES = 2**20
#: How often a file is read if it changes while it is read.
_TRIES = 2


def read(tree: Tree, path: str, limits: Limits, cache: HashCache) -> tuple[Content, bool]:
    """Return the content of the regular file *path*, and whether its owner may execute it.

    The file is opened even if *cache* knows it, because a network disk may show an old status of one that is not open.

    Raises:
        SnapshotTooLarge: the file has grown above the limit.
        SnapshotRefused: it cannot be read, or changes while it is read.

    """
    for _ in range(_TRIES):
        with tree.opened(path) as (fd, before):
            content = cache.get(path, before)
            if content is not None:
                return content, bool(before.st_mode & stat.S_IXUSR)
            size_limits.check([(path, before.st_size)], limits)
            content = _read(fd, before.st_size)
            after = os.fstat(fd)
        if content.size_bytes == before.st_size and _state(before) == _state(after):
            cache.add(path, after, content)
            return content, bool(after.st_mode & stat.S_IXUSR)
    raise SnapshotRefused(
        f"{quoted(path)} changes while it is read. Wait until nothing writes to it, or leave it out by the line "
        f"{ignore_line(path)} in {IGNORE_FILE}"
    )


def _state(about: os.stat_result) -> tuple[int, int, int]:
    return about.st_size, about.st_mtime_ns, about.st_ctime_ns


def _read(fd: int, most_bytes: int) -> Content:
    """Return the content of the open file, of which no more than *most_bytes* are read."""
    digest, left_bytes, is_key = hashlib.sha256(), most_bytes, False
    while left_bytes and (part := os.read(fd, min(_CHUNK_BYTES, left_bytes))):
        if left_bytes == most_bytes:
            is_key = begins_like_key(part)
        digest.update(part)
        left_bytes -= len(part)
    return Content(digest.hexdigest(), most_bytes - left_bytes, is_key)
