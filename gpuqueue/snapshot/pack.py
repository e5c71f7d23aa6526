"""Makes the manifest of the selected files."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path

from gpuqueue.lazy.frozen import dataclass
from gpuqueue.snapshot import limits as size_limits
from gpuqueue.snapshot.contents import Contents
from gpuqueue.snapshot.errors import InvalidManifest, SnapshotRefused
from gpuqueue.snapshot.limits import IGNORE_FILE, Limits, ignore_line
from gpuqueue.snapshot.manifest import MAX_TEXT_BYTES, Entry, Kind, Manifest
from gpuqueue.snapshot.names import path_fault, quoted
from gpuqueue.snapshot.tree import Tree

_CHUNK_BYTES = 2**20


@dataclass(frozen=True, slots=True)
class Packed:
    """A manifest, the path of a file for each blob, and a line for each path that was skipped."""

    manifest: Manifest
    sources: dict[str, str]
    notes: tuple[str, ...]


def pack(contents: Contents, found: Sequence[tuple[str, os.stat_result]], limits: Limits) -> Packed:
    """Return the snapshot of the paths *found* in the tree of *contents*. Limits are checked before any file is read.

    Raises:
        SnapshotTooLarge: a limit is exceeded.
        SnapshotRefused: a file cannot be read, changes while it is read, or cannot be in a snapshot.

    """
    known = [each for each in sorted(found, key=_path) if _has_kind(each[1])]
    size_limits.check([(path, about.st_size if stat.S_ISREG(about.st_mode) else 0) for path, about in known], limits)
    for path, _ in known:
        fault = path_fault(path)
        if fault is not None:
            raise SnapshotRefused(f"the path {quoted(path)} {fault}: rename it, or leave it out in {IGNORE_FILE}")
    entries = tuple(_entry(contents, path, about) for path, about in known)
    try:
        manifest = Manifest(entries)
    except InvalidManifest as error:
        raise SnapshotRefused(f"{error}. Mend it, or leave it out by a line in {IGNORE_FILE}") from None
    sizes = [(each.path, each.size_bytes or 0) for each in entries]
    size_limits.check(sizes, limits)  # files may have grown since
    if len(manifest.text()) > MAX_TEXT_BYTES:
        raise SnapshotRefused(f"the paths together are too long. Leave out files by lines in {IGNORE_FILE}")
    sources = {each.sha256: each.path for each in entries if each.sha256 is not None}
    notes = tuple(f"skipped {quoted(path)}, which is no file" for path, about in found if not _has_kind(about))
    return Packed(manifest, sources, notes)


def read_again(root: Path, path: str, sha256: str) -> Iterator[bytes]:
    """Yield the content of the file *path* below *root* for sending.

    Raises:
        SnapshotRefused: the file cannot be read, or its content no longer has the hash *sha256*.

    """
    digest = hashlib.sha256()
    with closing(Tree(root)) as tree, tree.opened(path) as (fd, _):
        while part := os.read(fd, _CHUNK_BYTES):
            digest.update(part)
            yield part
    if digest.hexdigest() != sha256:
        raise SnapshotRefused(f"{quoted(path)} has changed since the snapshot was taken: submit again")


def _path(each: tuple[str, os.stat_result]) -> str:
    return each[0]


def _has_kind(about: os.stat_result) -> bool:
    return stat.S_ISREG(about.st_mode) or stat.S_ISLNK(about.st_mode)


def _entry(contents: Contents, path: str, about: os.stat_result) -> Entry:
    if stat.S_ISLNK(about.st_mode):
        target = _inside(contents.tree.root, path, contents.tree.target(path))
        try:
            return Entry(path=path, kind=Kind.LINK, target=target)
        except InvalidManifest as error:
            raise SnapshotRefused(
                f"{error}. Leave it out by the line {ignore_line(path)} in {IGNORE_FILE}, or copy what it leads to"
            ) from None
    content, executable = contents.of(path)
    return Entry(path=path, executable=executable, sha256=content.sha256, size_bytes=content.size_bytes)


def _inside(root: Path, path: str, target: str) -> str:
    """Return *target* relative to the link *path* if it is an absolute path within *root*, else unchanged."""
    start = f"{root}/"
    if not target.startswith(start):
        return target
    return os.path.relpath(target[len(start) :] or ".", os.path.dirname(path) or ".")
