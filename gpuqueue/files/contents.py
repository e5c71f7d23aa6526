"""Reads each file once, and remembers the hashes of those that have not changed since the last snapshot.

The cache is one file for each directory, in the cache directory of the user. A file counts as unchanged if its device,
inode, size, modification time and change time are as they were. No program can set a change time, so a file that is
written and gets its old modification time back is read again. The cache also has the last difference from a commit.

Times are only as fine as the clock of the file system. A file may be written again within the same tick after it was
read, and then nothing shows that it changed. So a file whose times are younger than a margin when the snapshot begins
is not remembered. (git has the same rule for its index.)

A cache that is damaged, or belongs to another account, is ignored and replaced. Nothing here ever fails a snapshot.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
import time
from contextlib import suppress
from pathlib import Path

from gpuqueue.files import limits as size_limits
from gpuqueue.files.errors import SnapshotRefused
from gpuqueue.files.folders import CHUNK_BYTES
from gpuqueue.files.git import git_digest, git_hash_of
from gpuqueue.files.limits import IGNORE_FILE, Limits, ignore_line
from gpuqueue.files.names import quoted
from gpuqueue.files.secret_files import begins_like_key
from gpuqueue.files.tree import Tree
from gpuqueue.lazy.frozen import dataclass

#: How often a file is read if it changes while it is read.
_TRIES = 2
#: How old the times of a file must be, in seconds. FAT has the coarsest clock: 2 seconds.
MARGIN_S = 2.0
#: Largest cache of one directory, in bytes. 20 000 files with paths of 300 bytes need less.
MOST_BYTES = 16 * 2**20
#: Most directories that are remembered. The least recently used cache is deleted first.
MOST_FILES = 64
_HEADER, _PREFIX = b"gpuqueue-hashes 2 ", "hashes-"
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC

#: What is remembered of a file: five numbers of its status, and the fields of its content.
_Row = list[object]


@dataclass(frozen=True, slots=True)
class Content:
    """What one read of a file yields: also whether it begins like a private key, and its object id, if asked for."""

    sha256: str
    size_bytes: int
    is_key: bool
    git_id: str | None = None


class HashCache:
    """The hashes of the files of one snapshot, those that are known and those that are found. One thread uses it."""

    def __init__(self, directory: Path | None, root: Path) -> None:
        """Read the cache of *root* in *directory*; None: nothing is remembered."""
        self._since_ns = time.time_ns() - int(MARGIN_S * 1e9)
        self._path = None if directory is None else _path(directory, root)
        self._known, self._known_diff = ({}, []) if self._path is None else _read_cache(self._path)
        self._found: dict[str, _Row] = {}
        self._diff: list[str] = []

    def get(self, path: str, about: os.stat_result) -> Content | None:
        """Return the content of the file *path* with the status *about*, or None if it must be read."""
        row = self._known.get(path)
        if row is None or row[:5] != _identity(about):
            return None
        match row[5:]:
            case [str(sha256), int(size_bytes), bool(is_key), None | str() as git_id]:
                content = Content(sha256, size_bytes, is_key, git_id)
            case _:
                return None
        self._found[path] = row
        return content

    def add(self, path: str, about: os.stat_result, content: Content) -> None:
        """Remember the *content* of a file that was read, whose status was *about* before and after."""
        if self._path is not None and max(about.st_mtime_ns, about.st_ctime_ns) < self._since_ns:
            what = [content.sha256, content.size_bytes, content.is_key, content.git_id]
            self._found[path] = [*_identity(about), *what]

    def diff(self, key: str) -> bytes | None:
        """Return the difference that was added with this *key*, or None if it was another one."""
        if self._known_diff[:1] != [key]:
            return None
        self._diff = self._known_diff
        return self._diff[1].encode("utf-8", "surrogateescape")

    def add_diff(self, key: str, text: bytes) -> None:
        """Remember the difference *text*, in place of the last one. *key* names all that it depends on."""
        self._diff = [key, text.decode("utf-8", "surrogateescape")]

    def save(self) -> None:
        """Write the cache if it has changed. It then has the files of this snapshot only."""
        if self._path is None or (self._found, self._diff) == (self._known, self._known_diff):
            return
        content = json.dumps({"files": self._found, "diff": self._diff}, separators=(",", ":")).encode("ascii")
        if len(content) > MOST_BYTES:
            return
        with suppress(OSError):
            if _is_own(self._path.parent):
                _write_cache(self._path, _HEADER + hashlib.sha256(content).hexdigest().encode() + b"\n" + content)


def forget(directory: Path | None, root: Path) -> None:
    """Delete the cache of *root*: a file does not have the content that it names."""
    if directory is not None:
        with suppress(OSError):
            _path(directory, root).unlink()


def _path(directory: Path, root: Path) -> Path:
    return directory / (_PREFIX + hashlib.sha256(os.fsencode(root)).hexdigest()[:32])


def _identity(about: os.stat_result) -> _Row:
    return [about.st_dev, about.st_ino, about.st_size, about.st_mtime_ns, about.st_ctime_ns]


def _read_cache(path: Path) -> tuple[dict[str, _Row], list[str]]:
    """Return the rows of the files by path, and the key and the text of the last difference."""
    try:
        with open(os.open(path, _READ), "rb") as file:
            about = os.fstat(file.fileno())
            if not stat.S_ISREG(about.st_mode) or about.st_uid != os.geteuid() or about.st_mode & 0o022:
                return {}, []
            head, content = file.readline(256), file.read(MOST_BYTES + 1)
        if head != _HEADER + hashlib.sha256(content).hexdigest().encode() + b"\n":
            return {}, []
        known = json.loads(content)
        return known["files"], known["diff"]
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        return {}, []


def _is_own(directory: Path) -> bool:
    """Return whether *directory*, or the first one above that exists, belongs to this account: not after ``sudo``."""
    existing = next(each for each in (directory, *directory.parents) if each.exists())
    return existing.stat().st_uid == os.geteuid()


def _write_cache(path: Path, content: bytes) -> None:
    """Replace the file *path* at once, so that another process reads either the old or the new one."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not path.exists():
        _make_room(path.parent)
    made = path.with_name(f".{path.name}.{os.urandom(4).hex()}")
    try:
        with open(os.open(made, _NEW, 0o600), "wb") as file:
            file.write(content)
        made.replace(path)
    except BaseException:
        with suppress(OSError):
            made.unlink()
        raise


def _make_room(directory: Path) -> None:
    """Delete the caches that were written longest ago, and what killed processes left, so that one more fits."""
    partial = [each for each in directory.glob(f".{_PREFIX}*") if each.stat().st_mtime < time.time() - 3600]
    caches = sorted(directory.glob(f"{_PREFIX}*"), key=lambda each: each.stat().st_mtime, reverse=True)
    for each in (*partial, *caches[MOST_FILES - 1 :]):
        each.unlink(missing_ok=True)


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
            if content.size_bytes == before.st_size and _identity(before) == _identity(after):
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


def _read(fd: int, most_bytes: int, git_hash: str | None) -> Content:
    """Return the content of the open file, of which no more than *most_bytes* are read."""
    digest, left_bytes, is_key = hashlib.sha256(), most_bytes, False
    git = None if git_hash is None else git_digest(most_bytes, git_hash)
    while left_bytes and (part := os.read(fd, min(CHUNK_BYTES, left_bytes))):
        if left_bytes == most_bytes:
            is_key = begins_like_key(part)
        digest.update(part)
        if git is not None:
            git.update(part)
        left_bytes -= len(part)
    return Content(digest.hexdigest(), most_bytes - left_bytes, is_key, None if git is None else git.hexdigest())
