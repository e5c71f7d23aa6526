"""Tests of packing while a job changes its files: nothing is followed, and nothing is cut short in silence."""

from __future__ import annotations

import os
import tarfile
from pathlib import Path
from typing import Any

import pytest
from results_copy import Copy

from gpuqueue.files.archive import CHUNK_BYTES
from workers.results import pack as packing
from workers.results.pack import PackFailed


@pytest.fixture
def copy(tmp_path: Path) -> Copy:
    """Return a copy of no code."""
    return Copy(tmp_path / "run" / "code")


class Once:
    """Does something at the first step after the walk, which is the first write of the archive."""

    def __init__(self, copy: Copy, act: Any) -> None:
        self._copy, self._act, self._steps = copy, act, len([*copy.tree.rglob("*")])

    def __call__(self) -> None:
        """Count a step."""
        self._steps -= 1
        if self._steps == -1:
            self._act()


@pytest.mark.parametrize("swapped", ["file", "folder", "pipe", "gone"])
def test_a_file_that_is_swapped_while_packing_is_not_followed(copy: Copy, tmp_path: Path, swapped: str) -> None:
    """A file or directory that becomes a link, a pipe, or vanishes after it was found, is left out."""
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "x").write_bytes(b"secret")
    copy.write("a", b"first")
    copy.write("d/x", b"mine")
    copy.write("z", b"last")

    def swap() -> None:
        (copy.tree / "d" / "x").unlink()
        if swapped == "file":
            (copy.tree / "d" / "x").symlink_to(tmp_path / "outside" / "x")
        elif swapped == "folder":
            (copy.tree / "d").rmdir()
            (copy.tree / "d").symlink_to(tmp_path / "outside")
        elif swapped == "pipe":
            os.mkfifo(copy.tree / "d" / "x")

    assert {"a": (b"first", "644"), "z": (b"last", "644")} == copy.pack("*", progress=Once(copy, swap))


def test_a_file_that_grows_has_the_size_at_its_opening(copy: Copy) -> None:
    """What a job appends meanwhile is not in the archive, which is complete."""
    content = os.urandom(3 * CHUNK_BYTES + 1)
    big = copy.write("big", content)

    def grow() -> None:
        with big.open("ab") as file:
            file.write(b"more" * CHUNK_BYTES)

    assert {"big": (content, "644")} == copy.pack("*", progress=Once(copy, grow))


def test_a_file_that_shrinks_ends_the_archive_with_an_error(copy: Copy) -> None:
    """The archive is cut short, so that nobody takes it for a whole one, and the message names the file."""
    big = copy.write("big", os.urandom(3 * CHUNK_BYTES))

    with pytest.raises(PackFailed, match="'big' became shorter while it was read: wait until"):
        copy.pack("*", progress=Once(copy, lambda: os.truncate(big, CHUNK_BYTES)))

    with pytest.raises(tarfile.ReadError), tarfile.open(copy.archive, "r|") as opened:
        opened.getmembers()


@pytest.mark.parametrize(("cuts", "expected"), [(1, b"xx"), (2, None)])
def test_a_file_that_shrinks_at_its_beginning_is_read_once_more(
    copy: Copy, monkeypatch: pytest.MonkeyPatch, cuts: int, expected: bytes | None
) -> None:
    """A job that writes a small file again is no reason to give up, unless it happens again."""
    file = copy.write("file", b"xxxx")
    read, left = packing.read_exactly, [cuts]

    def cut(fd: int, size_bytes: int) -> bytes:
        if left[0]:
            left[0] -= 1
            os.truncate(file, size_bytes // 2)
        return read(fd, size_bytes)

    monkeypatch.setattr(packing, "read_exactly", cut)

    if expected is None:
        with pytest.raises(PackFailed, match="'file' became shorter"):
            copy.pack("*")
    else:
        assert {"file": (expected, "644")} == copy.pack("*")


def test_a_sparse_file_needs_no_memory(copy: Copy) -> None:
    """Files are read in pieces."""
    file = copy.write("sparse")
    os.truncate(file, 64 * 2**20)

    assert bytes(64 * 2**20) == copy.pack("*")["sparse"][0]
