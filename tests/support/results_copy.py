"""The code directory of a run, and the archive that packing makes of it."""

from __future__ import annotations

import hashlib
import os
import tarfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from gpuqueue.files.ignore import rules_of
from gpuqueue.files.manifest import Entry, Kind, Manifest
from gpuqueue.files.names import LEFT_OUT_NOTES
from workers.results.pack import ArchiveRequest, pack


def nothing() -> None:
    """Do nothing with a step of the work."""


class Copy:
    """The code directory of a run, as unpacking has left it, and what a job does there."""

    def __init__(self, code: Path) -> None:
        self.code = code
        self.tree = code / "tree"
        self.tree.mkdir(parents=True)
        self.notes: list[str] = []
        self.archive = code.parent / "archive.tar"

    def write(self, path: str, content: bytes = b"", *, mode: int = 0o644) -> Path:
        """Write a file below the tree, with its directories."""
        file = self.tree / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)
        file.chmod(mode)
        return file

    def link(self, path: str, target: str) -> None:
        """Make a link below the tree."""
        (self.tree / path).parent.mkdir(parents=True, exist_ok=True)
        (self.tree / path).symlink_to(target)

    def take(self) -> None:
        """Let what is there now be the snapshot."""
        found = [self._entry(each) for each in self.tree.rglob("*") if each.is_symlink() or each.is_file()]
        manifest = Manifest(tuple(sorted(found, key=lambda each: each.path)))
        (self.code / "manifest").write_bytes(manifest.text())

    def _entry(self, file: Path) -> Entry:
        path = file.relative_to(self.tree).as_posix()
        if file.is_symlink():
            return Entry(path=path, kind=Kind.LINK, target=str(file.readlink()))
        content, executable = file.read_bytes(), bool(file.stat().st_mode & 0o100)
        sha256 = hashlib.sha256(content).hexdigest()
        return Entry(path=path, sha256=sha256, size_bytes=len(content), executable=executable)

    def pack(self, *patterns: str, progress: Callable[[], object] = nothing) -> dict[str, Any]:
        """Pack, and return what is in the archive."""
        code = os.open(self.code, os.O_RDONLY)
        output = os.open(self.archive, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        try:
            self.notes = pack(code, ArchiveRequest.of(patterns, rules_of(patterns)), output, progress)
        finally:
            os.close(code)
            os.close(output)
        assert notes_in(self.archive) == self.notes
        return contents(self.archive)


def contents(archive: Path) -> dict[str, Any]:
    """Return the members of an archive in their order: content and mode of a file, target of a link.

    Notes about what was left out are not among them.
    """
    with tarfile.open(archive, "r|") as opened:
        found = dict(_members(opened))
    assert archive.read_bytes().endswith(bytes(1024))
    return {path: each for path, each in found.items() if path != LEFT_OUT_NOTES}


def notes_in(archive: Path) -> list[str]:
    """Return the lines of an archive about what was left out, which are in its last member."""
    with tarfile.open(archive, "r|") as opened:
        (*_, last) = [("", None), *_members(opened)]
    return last[1][0].decode().splitlines() if last[0] == LEFT_OUT_NOTES else []


def _members(opened: tarfile.TarFile) -> Iterable[tuple[str, Any]]:
    for each in opened:
        assert (0, 0, "", "") == (each.uid, each.gid, each.uname, each.gname)
        if each.issym():
            yield each.name, f"-> {each.linkname}"
        else:
            file = opened.extractfile(each)
            assert file is not None
            yield each.name, (file.read(), f"{each.mode:o}")
