"""Decides which files a job has made or changed, by the manifest of the snapshot. Standard library only."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable

from gpuqueue.snapshot.errors import InvalidManifest
from gpuqueue.snapshot.manifest import ACCEPTED_BEFORE, MAX_TEXT_BYTES, Entry, read_manifest
from workers.results.errors import PackFailed
from workers.results.files import CHUNK_BYTES, is_executable, open_file, read_exactly
from workers.shim.code import MANIFEST

_TO_DO = "name the files that you want by patterns"


class Changes:
    """The files of the snapshot that a copy was made from."""

    def __init__(self, code: int, progress: Callable[[], object]) -> None:
        """Read the manifest in the open directory *code*. The job may have changed it, but only for its own files.

        Raises:
            PackFailed: there is none, or it is damaged.

        """
        try:
            text = _read(code)
            entries = () if text is None else read_manifest(text, ACCEPTED_BEFORE).entries
        except OSError as error:
            raise PackFailed(f"the list of the job's files cannot be read: {error.strerror}: {_TO_DO}") from None
        except InvalidManifest as error:
            raise PackFailed(f"the list of the job's files is damaged: {error}: {_TO_DO}") from None
        if text is None:
            raise PackFailed(f"the list of the job's files is missing, so nobody knows what the job made: {_TO_DO}")
        self._entries = {each.path: each for each in entries}
        self._progress = progress

    def has(self, path: str, name: str, folder: int) -> bool:
        """Return whether *path*, which is *name* in the open directory *folder*, is new or changed.

        A file that cannot be read counts as changed.
        """
        entry = self._entries.get(path)
        if entry is None:
            return True
        try:
            if entry.target is not None:
                return os.readlink(name, dir_fd=folder) != entry.target
            found = open_file(name, folder)
        except OSError:
            return True
        if found is None:
            return True
        fd, about = found
        try:
            same = about.st_size == entry.size_bytes and is_executable(about) == entry.executable
            return not same or not self._has_content(fd, entry)
        except OSError:
            return True
        finally:
            os.close(fd)

    def _has_content(self, fd: int, entry: Entry) -> bool:
        digest, left_bytes = hashlib.sha256(), entry.size_bytes or 0
        while left_bytes and (part := os.read(fd, min(left_bytes, CHUNK_BYTES))):
            digest.update(part)
            left_bytes -= len(part)
            self._progress()
        return left_bytes == 0 and digest.hexdigest() == entry.sha256


def _read(code: int) -> bytes | None:
    found = open_file(MANIFEST, code)
    if found is None:
        return None
    fd, _ = found
    try:
        return read_exactly(fd, MAX_TEXT_BYTES + 1)
    finally:
        os.close(fd)
