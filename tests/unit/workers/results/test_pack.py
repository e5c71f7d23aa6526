"""Tests of packing: what is in the archive, what is left out, and what is refused."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tracemalloc
from pathlib import Path

import pytest
from results_copy import Copy

from workers.results import pack as packing
from workers.results.pack import NoCopy, PackFailed


@pytest.fixture
def copy(tmp_path: Path) -> Copy:
    """Return a copy of no code."""
    return Copy(tmp_path / "run" / "code")


def test_only_what_the_job_made_or_changed_is_packed(copy: Copy) -> None:
    """A file counts as changed by its content, its executable bit, or by being a link now; a link by its target."""
    for name in ("same", "content", "size", "bit", "kind", "gone"):
        copy.write(name, b"before")
    copy.write("bin/same", b"#!", mode=0o755)
    for name in ("link", "moved"):
        copy.link(name, "same")
    copy.take()
    copy.write("content", b"after!")
    copy.write("size", b"longer than before")
    copy.write("bit", b"before", mode=0o755)
    (copy.tree / "gone").unlink()
    for name, target in (("kind", "same"), ("moved", "size")):
        (copy.tree / name).unlink()
        copy.link(name, target)
    copy.write("out/new", b"new", mode=0o600)
    copy.write("out/empty")

    assert {
        "bit": (b"before", "755"),
        "content": (b"after!", "644"),
        "kind": "-> same",
        "moved": "-> size",
        "out/empty": (b"", "644"),
        "out/new": (b"new", "644"),
        "size": (b"longer than before", "644"),
    } == copy.pack()
    assert [] == copy.notes


def test_with_patterns_all_files_that_match_are_packed(copy: Copy) -> None:
    """Also those of the snapshot; below a directory that matches, everything. No manifest is needed."""
    for name in ("a.pt", "a.txt", "out/x/y.log", "out/b.pt", "other/out.d/c", "b/a.pt"):
        copy.write(name, name.encode())

    assert ["a.pt", "b/a.pt", "out/b.pt", "out/x/y.log"] == [*copy.pack("*.pt", "out/")]
    assert ["b/a.pt", "out/b.pt"] == [*copy.pack("*.pt", "!/a.pt")]
    assert [] == [*copy.pack("none")]


def test_what_tools_make_is_left_out_unless_a_pattern_names_it(copy: Copy) -> None:
    """Caches, virtual environments and git directories are packed only for a pattern that has their name."""
    for name in ("a/__pycache__/x.pyc", ".venv/bin", "venv/bin", "node_modules/x/y", "my.venv"):
        copy.write(name)
    copy.take()
    copy.write(".git/config")
    copy.write("made")
    copy.write("a/__pycache__/new.pyc")

    assert ["made"] == [*copy.pack()]
    assert ["made", "my.venv"] == [*copy.pack("*")]
    assert ["a/__pycache__/new.pyc", "a/__pycache__/x.pyc"] == [*copy.pack("__pycache__/")]
    assert ["node_modules/x/y"] == [*copy.pack("/node_modules/x")]


def test_names_are_sorted_and_long_or_unusual_ones_survive(copy: Copy) -> None:
    """Names of more than 100 bytes, of other scripts, and equal but for their case."""
    names = ["Größe/数据.txt", "a-b", "a/b", "A/b", "/".join(["x" * 90] * 10), "b " * 60]
    for name in names:
        copy.write(name.strip(), name.encode())

    assert sorted(name.strip() for name in names) == [*copy.pack("*")]
    assert [] == copy.notes


def test_the_system_s_tar_reads_it(copy: Copy, tmp_path: Path) -> None:
    """The archive is one for every tool, with the times of the files."""
    os.utime(copy.write("a/b", b"x" * 1000), (1, 2))
    copy.link("l", "a/b")
    copy.pack("*")
    tar = shutil.which("tar")
    if tar is None:
        pytest.skip("no tar here")
    (tmp_path / "to").mkdir()

    subprocess.run([tar, "-xf", copy.archive, "-C", tmp_path / "to"], check=True, timeout=30)

    assert (b"x" * 1000, 2.0) == ((tmp_path / "to/l").read_bytes(), (tmp_path / "to/a/b").stat().st_mtime)


def test_links_that_lead_out_are_left_out(copy: Copy) -> None:
    """Also by way of another link, or in a circle. An absolute link within the tree becomes a relative one."""
    copy.write("d/file", b"x")
    copy.link("d/in", "file")
    copy.link("d/whole", f"{copy.tree}/d/file")
    copy.link("root", str(copy.tree))
    copy.link("later", "not/there")
    copy.link("out", "../../outside")
    copy.link("absolute", "/etc")
    copy.link("via", "absolute/passwd")
    copy.link("circle", "circle")

    assert {"d/file": (b"x", "644"), "d/in": "-> file", "d/whole": "-> file", "later": "-> not/there"} == copy.pack("*")
    (line,) = copy.notes
    assert line.startswith(
        "left out the link 'absolute', which leads out of the copy of the code, or in a circle, and "
    )


def test_what_is_no_file_is_left_out(copy: Copy) -> None:
    """A pipe holds up nobody, and a socket or an empty directory is nothing to pack."""
    os.mkfifo(copy.tree / "pipe")
    (copy.tree / "empty").mkdir()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(copy.tree / "socket"))
        copy.write("file", b"x")

        assert ["file"] == [*copy.pack("*")]


def test_names_that_others_cannot_have_are_left_out_with_a_line(copy: Copy) -> None:
    """Names that are not UTF-8, have control characters or are too deep: one line, however many there are."""
    for name in (b"caf\xe9", b"esc\x1b[31m", b"line\nend"):
        (copy.tree / os.fsdecode(name)).touch()
    deep = copy.tree
    for _ in range(120):
        deep /= "d"
        deep.mkdir()
    (deep / "file").touch()
    copy.write("fine")

    assert ["fine"] == [*copy.pack("*")]
    (line,) = copy.notes
    assert line.startswith("left out ")
    assert line.endswith(", and 3 more like it")
    assert line.isprintable()


def test_too_many_files_are_refused(copy: Copy, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only files that would be packed count, so patterns help, as the message says."""
    monkeypatch.setattr(packing, "MOST_FILES", 3)
    for number in range(10):
        copy.write(f"many/{number}")
    copy.write("few/1")

    assert ["few/1"] == [*copy.pack("few/")]
    with pytest.raises(PackFailed, match="more than 3 files: name those that you want by patterns"):
        copy.pack("*")
    assert 0 == copy.archive.stat().st_size


def test_files_that_are_not_wanted_need_no_memory(copy: Copy) -> None:
    """However many files a job makes, only those that are packed are remembered."""
    for number in range(3000):
        (copy.tree / f"a-file-with-a-long-name-{number:0100}").touch()
    copy.write("wanted")
    copy.pack("wanted")  # compiles and imports everything
    tracemalloc.start()
    try:
        assert ["wanted"] == [*copy.pack("wanted")]
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()

    assert peak_bytes < 200_000  # less than the names would take


@pytest.mark.parametrize("text", [None, b"", b"gpuqueue-snapshot 1\nlink\t../../x\ty\n", b"\xff" * 100])
def test_without_the_list_of_the_job_s_files_patterns_are_needed(copy: Copy, text: bytes | None) -> None:
    """A manifest that is missing or damaged is an error with what to do, not an empty archive."""
    copy.write("file")
    if text is not None:
        (copy.code / "manifest").write_bytes(text)

    with pytest.raises(PackFailed, match=r"the list of the job's files is .*: name the files that you"):
        copy.pack()
    assert ["file"] == [*copy.pack("file")]


def test_a_manifest_that_is_a_pipe_or_a_link_is_none(copy: Copy, tmp_path: Path) -> None:
    """Nothing waits for it, and nothing outside is read."""
    (tmp_path / "elsewhere").write_text("gpuqueue-snapshot 1\n")
    os.mkfifo(copy.code / "manifest")
    with pytest.raises(PackFailed, match="is missing"):
        copy.pack()
    (copy.code / "manifest").unlink()
    (copy.code / "manifest").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(PackFailed, match="is missing"):
        copy.pack()


def test_a_tree_that_is_gone_or_a_link_is_no_copy(copy: Copy, tmp_path: Path) -> None:
    """The caller learns that there is nothing, and nothing outside is read."""
    copy.tree.rmdir()
    with pytest.raises(NoCopy):
        copy.pack("*")
    copy.tree.symlink_to(tmp_path)
    with pytest.raises(NoCopy):
        copy.pack("*")
