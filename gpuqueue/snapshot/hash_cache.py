"""Remembers the hashes of files that have not changed since the last snapshot of the same directory.

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

from gpuqueue.lazy.frozen import dataclass

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
        self._known, self._known_diff = ({}, []) if self._path is None else _read(self._path)
        self._found: dict[str, _Row] = {}
        self._diff: list[str] = []

    def get(self, path: str, about: os.stat_result) -> Content | None:
        """Return the content of the file *path* with the status *about*, or None if it must be read."""
        row = self._known.get(path)
        if row is None or row[:5] != _state(about):
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
            self._found[path] = [*_state(about), *what]

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
                _write(self._path, _HEADER + hashlib.sha256(content).hexdigest().encode() + b"\n" + content)


def forget(directory: Path | None, root: Path) -> None:
    """Delete the cache of *root*: a file does not have the content that it names."""
    if directory is not None:
        with suppress(OSError):
            _path(directory, root).unlink()


def _path(directory: Path, root: Path) -> Path:
    return directory / (_PREFIX + hashlib.sha256(os.fsencode(root)).hexdigest()[:32])


def _state(about: os.stat_result) -> _Row:
    return [about.st_dev, about.st_ino, about.st_size, about.st_mtime_ns, about.st_ctime_ns]


def _read(path: Path) -> tuple[dict[str, _Row], list[str]]:
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


def _write(path: Path, content: bytes) -> None:
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
