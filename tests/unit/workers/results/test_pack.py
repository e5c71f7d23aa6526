"""Tests of packing: what is in the archive, what is left out, and what is refused."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tarfile
import tempfile
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from long_search import search
from results_copy import Copy

from gpuqueue.files.archive import CHUNK_BYTES
from gpuqueue.files.ignore import Ignored, IgnoreRules, rule_of, rules_of
from workers.results import pack as packing
from workers.results.pack import ArchiveRequest, NoCopy, PackFailed, Progress, Wanted


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


# ---- Tests of the reports that packing goes on -----------------------------------------------------------------------


def test_a_reader_that_is_gone_is_noticed_without_a_write() -> None:
    """The next step ends the work, whether the archive goes to a pipe or to a socket."""
    reader, writer = os.pipe()
    ours, theirs = socket.socketpair()
    steps = [Progress(writer, lambda: None), Progress(ours.fileno(), lambda: None)]
    os.close(reader)
    theirs.close()

    for step in steps:
        with pytest.raises(BrokenPipeError):
            step()
    os.close(writer)
    ours.close()


def test_steps_are_reported_once_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    """A report for each of a million files would cost more than the files."""
    reports: list[None] = []
    with open(os.devnull, "wb") as output:  # noqa: PTH123 - of os
        step = Progress(output.fileno(), lambda: reports.append(None))
        monkeypatch.setattr(packing, "EVERY_S", 3600.0)
        for _ in range(1000):
            step()

    assert 1 == len(reports)


# Tests of what packing loads: it runs in the launcher, as a user who may not be able to read this installation.

ROOT = Path(__file__).parents[4]
PROGRAM = """
import os, sys
sys.path.insert(0, {root!r})
import workers.launcher.main
from workers.results.pack import pack
from workers.results.pack import ArchiveRequest
before = set(sys.modules)
request = ArchiveRequest.read(ArchiveRequest.of(["*"], [("^(?:.+/)?[^/]+$", True)]).text())
for each in (request, request._replace(rules=None)):
    notes = pack(os.open({code!r}, os.O_RDONLY), each, os.open(os.devnull, os.O_WRONLY), lambda: None)
print(len(notes), *sorted(set(sys.modules) - before))
print(*sorted(each for each in before if each.split(".")[0] not in sys.stdlib_module_names))
"""


def test_packing_loads_nothing_after_the_launcher_has_started(tmp_path: Path) -> None:
    """All that it needs is loaded by then, and is the standard library or a small part of gpuqueue."""
    copy = Copy(tmp_path / "code")
    copy.write("same", b"x")
    copy.take()
    copy.write("Größe/" + "long" * 40, b"x")
    copy.write("back\\slash")
    copy.link("out", "/etc")

    done = subprocess.run(
        [sys.executable, "-I", "-S", "-X", "utf8", "-c", PROGRAM.format(root=str(ROOT), code=str(copy.code))],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )

    loaded_later, ours = done.stdout.splitlines()
    assert "2" == loaded_later
    packages = {".".join(each.split(".")[:2]) for each in ours.split()}
    parts = ("errors", "files", "lazy", "model", "system", "text", "version")
    gpuqueue = {"gpuqueue", *(f"gpuqueue.{each}" for each in parts)}
    launcher = {"workers", *(f"workers.{each}" for each in ("launcher", "results", "run", "shim"))}
    assert {"__main__"} >= packages - gpuqueue - launcher


# ---- Tests of packing with random trees and patterns, beside independent answers -------------------------------------

PART = st.text(st.sampled_from("ab.-_ é"), min_size=1, max_size=3).filter(lambda each: each.strip(".") != "")
PATH = st.lists(PART, min_size=1, max_size=3).map("/".join)
FILE = st.tuples(st.binary(max_size=600), st.sampled_from(["644", "755"]))
PATTERN = st.lists(st.sampled_from(["a", "b", "*", "**", "/", "!", "?", "[ab]", "é", "."]), min_size=1, max_size=5).map(
    "".join
)


def fitting(tree: dict[str, Any]) -> dict[str, Any]:
    """Return the entries that can be on a disk together: nothing is below a file."""
    return {path: each for path, each in tree.items() if not any(path.startswith(f"{other}/") for other in tree)}


TREE = st.dictionaries(PATH, FILE, max_size=8).map(fitting)


def write(copy: Copy, tree: dict[str, Any]) -> None:
    """Make the files of *tree* the only ones of the copy."""
    shutil.rmtree(copy.tree)
    copy.tree.mkdir()
    for path, (content, mode) in tree.items():
        copy.write(path, content, mode=int(mode, 8))


@search(30)
@given(before=TREE, after=TREE)
@example(before={"a": (b"x", "644")}, after={"a": (b"x", "755")})
def test_a_round_trip_has_exactly_the_changes(before: dict[str, Any], after: dict[str, Any]) -> None:
    """What the archive has is what differs, byte for byte, whatever the trees are."""
    with tempfile.TemporaryDirectory() as place:
        copy = Copy(Path(place) / "run" / "code")
        write(copy, before)
        copy.take()
        write(copy, after)

        found = copy.pack()

    assert sorted((path, each) for path, each in after.items() if before.get(path) != each) == [*found.items()]


@search(30)
@given(TREE, st.lists(PATTERN, min_size=1, max_size=4))
@example({"a/b": (b"", "644")}, ["a/", "!a/b"])
def test_patterns_mean_what_they_mean_in_an_ignore_file(tree: dict[str, Any], patterns: list[str]) -> None:
    """What an ignore file with these patterns would leave out is packed, and nothing else."""
    patterns = [each for each in patterns if each.removeprefix("!").strip("/") and rule_of(each) is not None]
    ignored = Ignored([IgnoreRules(patterns)])
    with tempfile.TemporaryDirectory() as place:
        copy = Copy(Path(place) / "run" / "code")
        write(copy, tree)
        copy.take()

        found = copy.pack(*patterns) if patterns else {}

    expected = sorted(path for path in tree if ignored.by(path, folder=False) is not None)
    assert expected == [*found]
    wanted = Wanted(ArchiveRequest.of(patterns, rules_of(patterns)))
    assert not patterns or expected == sorted(filter(wanted.has, tree))


# Tests of packing while a job changes its files: nothing is followed, and nothing is cut short in silence.


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
