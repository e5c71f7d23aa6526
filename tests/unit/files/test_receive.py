"""Fetched files in a directory: what is made, what stays, and what a hostile archive cannot do."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import io
import os
import stat
import tarfile
import tempfile
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from archives import END, Entry, archive, file, link, raw
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuqueue.errors import BadRequest, GpuQueueError, Refused, ServiceUnreachable
from gpuqueue.files import archive as archives
from gpuqueue.files.errors import ArchiveCutShort, ArchiveRefused, FileDiffers, NotWritable
from gpuqueue.files.receive import STAGING, Arrival, Received, receive


def received(content: bytes, directory: Path, *, replace: bool = False, **how: Any) -> Received:
    """Write the files of an archive into *directory*."""
    return receive(io.BytesIO(content), str(directory), replace=replace, **how)


def tree(directory: Path) -> dict[str, str]:
    """Return what is below *directory*: contents of files, targets of links."""
    return {
        str(each.relative_to(directory)): f"-> {each.readlink()}" if each.is_symlink() else each.read_text()
        for each in directory.rglob("*")
        if each.is_symlink() or not each.is_dir()
    }


@pytest.fixture
def new(tmp_path: Path) -> Path:
    """Return the path of a directory that is not there yet, in an otherwise empty one."""
    return tmp_path / "results-1"


# ---- what is made ----------------------------------------------------------------------------------------------------


def test_files_and_links_are_made(new: Path) -> None:
    """Files, directories and links that stay inside are made, and nothing else is left there."""
    sizes: list[int] = []
    entries = [file("a", b""), file("r/b.csv", b"1,2\n"), file("r/d/c"), link("r/last", "d/c"), link("s", "r/none")]

    found = received(archive(entries), new, seen=sizes.append)

    assert {"a": "", "r/b.csv": "1,2\n", "r/d/c": "one", "r/last": "-> d/c", "s": "-> r/none"} == tree(new)
    assert Received(files=5, size_bytes=7) == found
    assert [4, 7] == sizes


def test_a_file_is_executable_or_not_and_has_no_other_mode(new: Path) -> None:
    """Setuid, setgid and sticky bits, and rights of others, are not taken over."""
    before = os.umask(0o022)
    try:
        received(archive([file("a", mode=0o7777), file("b", mode=0o6666), file("c", mode=0o000)]), new)
    finally:
        os.umask(before)

    assert [0o755, 0o644, 0o644] == [stat.S_IMODE((new / each).stat().st_mode) for each in "abc"]


def test_an_empty_archive_makes_nothing(new: Path) -> None:
    """An archive without files makes no directory."""
    assert Received() == received(archive([]), new)
    assert not new.exists()


def test_a_large_file_arrives_whole(new: Path) -> None:
    """A file of many chunks arrives unchanged, and only one chunk at a time is in memory."""
    content = os.urandom(2**20) * 24 + b"end"
    sent = archive([file("large", content), file("z")])

    tracemalloc.start()
    try:
        received(sent, new)
        most_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()

    assert content == (new / "large").read_bytes()
    assert most_bytes < 8 * 2**20


def test_a_directory_with_other_files_is_used(new: Path) -> None:
    """Files of the directory that are not in the archive stay. The directory itself may be a link."""
    (new.parent / "elsewhere").mkdir()
    (new.parent / "elsewhere/mine").write_text("mine")
    new.symlink_to("elsewhere")

    received(archive([file("a")]), new)

    assert {"a": "one", "mine": "mine"} == tree(new.parent / "elsewhere")


# ---- what is there before --------------------------------------------------------------------------------------------


def test_equal_files_are_skipped(new: Path) -> None:
    """A file or link that the directory has with the same content is not written again."""
    sent = archive([file("a", b"x" * 3_000_000), file("empty", b""), link("l", "a")])
    received(sent, new)

    def seen() -> dict[str, tuple[int, int]]:  # without the time of the last access, which reading changes
        return {each: ((new / each).lstat().st_ino, (new / each).lstat().st_mtime_ns) for each in ("a", "empty", "l")}

    before = seen()

    assert Received(files=3, size_bytes=3_000_000, skipped=3) == received(sent, new)
    assert before == seen()


LARGE = b"x" * 2_500_000


@pytest.mark.parametrize(
    ("there", "comes"),
    [(b"two", b"one"), (b"longer", b"one"), (b"", b"one"), (b"one", b""), (LARGE + b"1", LARGE + b"2")],
    ids=["content", "size", "empty", "emptied", "last byte"],
)
def test_a_file_with_another_content_is_replaced_only_on_demand(new: Path, there: bytes, comes: bytes) -> None:
    """A file with another content is kept without --replace, and replaced with it."""
    new.mkdir()
    (new / "b").write_bytes(there)
    sent = archive([file("a"), file("b", comes), file("c")])

    with pytest.raises(
        FileDiffers, match=r"results-1/b is there with another content. Nothing was replaced: add --rep"
    ):
        received(sent, new)
    assert there == (new / "b").read_bytes()
    assert {"a", "b"} == {each.name for each in new.iterdir()}

    assert Received(files=3, size_bytes=6 + len(comes), skipped=1) == received(sent, new, replace=True)
    assert comes == (new / "b").read_bytes()
    assert {"a", "b", "c"} == {each.name for each in new.iterdir()}


@pytest.mark.parametrize("links", [True, False], ids=["hard links", "none"])
@pytest.mark.parametrize("entry", [file("b", bytes(3_000_000)), link("b", "a")], ids=["file", "link"])
def test_a_file_that_appears_on_the_way_is_not_replaced(
    new: Path, monkeypatch: pytest.MonkeyPatch, entry: Entry, *, links: bool
) -> None:
    """Another program writes a file of the same name during the transfer. Only --replace replaces it."""
    take, symlink = Arrival.take, os.symlink

    def taken(self: Arrival, chunk: bytes) -> None:
        take(self, chunk)
        if len(chunk) > 3:
            (new / "b").write_text("mine")

    def linked(target: str, path: str, *, dir_fd: int) -> None:
        symlink(target, path, dir_fd=dir_fd)
        (new / "b").write_text("mine")

    monkeypatch.setattr(Arrival, "take", taken)
    monkeypatch.setattr(os, "symlink", linked)
    if not links:
        monkeypatch.setattr(os, "link", _no_hard_link)

    with pytest.raises(FileDiffers, match=r"results-1/b is there with another content"):
        received(archive([file("a"), entry]), new)
    assert {"a": "one", "b": "mine"} == tree(new)

    assert 1 == received(archive([file("a"), entry]), new, replace=True).skipped
    assert "mine" != (new / "b").read_text()


def _no_hard_link(*_: object, **_how: object) -> None:
    raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))


def test_a_file_system_needs_no_hard_links(new: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files and links arrive on a file system without hard links."""
    monkeypatch.setattr(os, "link", _no_hard_link)

    received(archive([file("a"), link("b", "a")]), new)

    assert {"a": "one", "b": "-> a"} == tree(new)


@pytest.mark.parametrize("entry", [file("b"), link("b", "a")], ids=["file", "link"])
def test_a_link_that_is_there_is_not_followed(new: Path, entry: Entry) -> None:
    """A link in the place of a file differs from it. With --replace the link is replaced, and its target stays."""
    new.mkdir()
    outside = new.parent / "outside"
    outside.write_text("before")
    (new / "b").symlink_to(outside)
    sent = archive([file("a"), entry])

    with pytest.raises(FileDiffers):
        received(sent, new)
    received(sent, new, replace=True)

    assert "before" == outside.read_text()
    assert {"a": "one", "b": "one" if entry[1] else "-> a"} == tree(new)


@pytest.mark.parametrize("entry", [file("b"), link("b", "a")], ids=["file", "link"])
def test_a_directory_in_the_place_of_a_file_stays(new: Path, entry: Entry) -> None:
    """A directory in the place of a file is not removed, even with --replace."""
    (new / "b").mkdir(parents=True)
    (new / "b/mine").touch()

    with pytest.raises(Refused, match=r"results-1/b is a directory"):
        received(archive([entry]), new, replace=True)
    assert {"b/mine": ""} == tree(new)


def test_a_directory_that_is_a_file_or_a_link_is_not_used(new: Path) -> None:
    """No file is written through a link to a directory, or below a file."""
    (new / "there").mkdir(parents=True)
    (new / "link").symlink_to(new / "there")
    (new / "file").touch()

    for path in ("link/a", "file/a"):
        with pytest.raises(Refused, match="a part of its path is a file or a link here"):
            received(archive([file(path)]), new, replace=True)
    assert {"file": "", "link": f"-> {new}/there"} == tree(new)


def test_a_file_cannot_be_the_directory(new: Path) -> None:
    """If the directory is a file, the message names the option for another directory."""
    new.write_text("mine")

    with pytest.raises(BadRequest, match=r"results-1 is a file: name a directory with --to"):
        received(archive([file("a")]), new)
    assert "mine" == new.read_text()


def test_a_second_fetch_into_a_directory_is_refused(new: Path) -> None:
    """A fetch is refused while another one writes into the same directory."""
    (new / STAGING).mkdir(parents=True)
    fd = os.open(new / STAGING, os.O_RDONLY)
    fcntl.flock(fd, fcntl.LOCK_EX)
    try:
        with pytest.raises(Refused, match="another gpuqueue fetch writes into"):
            received(archive([file("a")]), new)
    finally:
        os.close(fd)
    assert Received(files=1, size_bytes=3) == received(archive([file("a")]), new)


def test_the_rest_of_a_killed_fetch_is_deleted(new: Path) -> None:
    """Incomplete files are in a separate directory, which the next fetch empties."""
    (new / STAGING).mkdir(parents=True)
    (new / STAGING / "part").write_bytes(b"half")

    received(archive([file("a")]), new)

    assert ["a"] == [each.name for each in new.iterdir()]


# ---- what goes wrong on the way --------------------------------------------------------------------------------------


def test_what_is_whole_stays_if_the_archive_is_cut_anywhere(new: Path) -> None:
    """An archive that is cut at any place is an error. Each of its files arrives completely or not at all."""
    contents = {"a": b"", "b": bytes(1024), "c": b"x" * 700}
    whole = archive([link("0", "b"), *(file(name, content) for name, content in contents.items())])
    end = len(whole.rstrip(b"\0")) + -len(whole.rstrip(b"\0")) % 512

    for length in (*range(0, end + 1024, 256), end + 1023):
        directory = new / str(length)
        with pytest.raises(ArchiveCutShort, match=r"was cut short.*: run the same command again, which keeps them"):
            received(whole[:length], directory)
        if directory.exists():
            found = {each.name: each.read_bytes() for each in directory.iterdir() if not each.is_symlink()}
            assert found.items() <= contents.items()
    assert Received(files=4, size_bytes=1724) == received(whole[: end + 1024], new / "whole")


def test_a_broken_connection_is_a_cut(new: Path) -> None:
    """After a broken connection the message says what has arrived and where, why it ended, and what to do."""
    sent = io.BytesIO(archive([file("a"), file("b", bytes(300_000))]))

    class Broken:
        def read(self, size: int, /) -> bytes:
            if sent.tell() > 200_000:
                raise ServiceUnreachable("the service does not answer")
            return sent.read(size)

    with pytest.raises(ArchiveCutShort) as caught:
        receive(Broken(), str(new), replace=False)

    assert (
        f"the archive was cut short in 'b': the service does not answer. 1 file, 3B, arrived in {new}: run the same "
        "command again, which keeps them"
    ) == str(caught.value)
    assert {"a": "one"} == tree(new)


def test_an_interrupt_leaves_no_half_file(new: Path) -> None:
    """After Ctrl-C in the middle of a file the files before it are complete, and nothing of that file is left."""

    def seen(size_bytes: int) -> None:
        if size_bytes > 100:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        received(archive([file("a"), file("b", bytes(3_000_000))]), new, seen=seen)

    assert {"a": "one"} == tree(new)
    assert ["a"] == [each.name for each in new.iterdir()]


def test_a_full_disk_is_one_line(new: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the disk is full, the message says what has arrived, and that a second try keeps it."""

    def full(self: Arrival, chunk: bytes) -> None:
        if len(chunk) > 10:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        take(self, chunk)

    take = Arrival.take
    monkeypatch.setattr(Arrival, "take", full)

    with pytest.raises(NotWritable) as caught:
        received(archive([file("a"), file("r/b", bytes(20)), file("r/c")]), new)

    assert (
        f"cannot write {new}/r/b: No space left on device. 1 file, 3B, arrived in {new}: once that is solved, run the "
        "same command again, which keeps them"
    ) == str(caught.value)
    assert {"a": "one"} == tree(new)


def test_a_file_that_the_disk_cannot_hold_is_not_begun(new: Path) -> None:
    """A file that is larger than the free space ends the fetch, and nothing of the file is written."""
    sent = raw(file("a")[0], b"one") + raw(file("huge", size=2**62)[0]) + bytes(4096)

    with pytest.raises(NotWritable, match=r"huge: it has 4194304T, and only .* are free there\. 1 file, 3B, arrived"):
        received(sent, new)
    assert {"a": "one"} == tree(new)


def test_a_directory_without_permission_is_one_line(new: Path) -> None:
    """The message names a directory that cannot be made."""
    new.parent.joinpath("there").touch()

    with pytest.raises(NotWritable, match=r"cannot write .*/there/new: Not a directory\. Nothing has arrived"):
        received(archive([file("a")]), new.parent / "there/new")


# ---- hostile archives ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/etc/passwd", "../up", "a/../../up", "a/..", ".."])
def test_a_path_that_leads_out_ends_the_fetch(new: Path, path: str) -> None:
    """A path out of the directory ends the fetch, because gpuqueue's own service sends no such path."""
    with pytest.raises(ArchiveRefused, match="in the archive leads out of the directory"):
        received(archive([file("a"), file(path), file("b")]), new)
    assert {"a": "one"} == tree(new)
    assert ["results-1"] == [each.name for each in new.parent.iterdir()]


@pytest.mark.parametrize(
    ("kind", "what"),
    [
        (tarfile.LNKTYPE, "a hard link"),
        (tarfile.CHRTYPE, "a device"),
        (tarfile.BLKTYPE, "a device"),
        (tarfile.FIFOTYPE, "a pipe"),
        (tarfile.DIRTYPE, "a directory"),
        (tarfile.CONTTYPE, "of an unknown kind"),
        (tarfile.GNUTYPE_SPARSE, "a sparse file"),
        (b"Z", "of an unknown kind"),
    ],
    ids=lambda each: each if isinstance(each, str) else None,
)
def test_nothing_but_files_and_links_is_made(new: Path, kind: bytes, what: str) -> None:
    """Hard links, devices, pipes, directories, sparse files and unknown kinds end the fetch."""
    odd = file("odd", b"", type=kind, linkname="a", devmajor=1, devminor=3)[0]

    with pytest.raises(ArchiveRefused, match=f"'odd' in the archive is {what}: only files and links"):
        received(raw(file("a")[0], b"one") + raw(odd) + END, new)
    assert {"a": "one"} == tree(new)


@pytest.mark.parametrize(
    "headers",
    [
        {"GNU.sparse.map": "0,1", "GNU.sparse.size": "1099511627776"},
        {"GNU.sparse.size": "1099511627776"},
        {"GNU.sparse.realsize": "1099511627776", "GNU.sparse.name": "/etc/passwd"},
    ],
    ids=["map", "size", "realsize"],
)
def test_a_sparse_file_is_refused_in_each_form(new: Path, headers: dict[str, str]) -> None:
    """A sparse file is refused: it could be a terabyte that takes no room in the archive."""
    with pytest.raises(ArchiveRefused, match="a sparse file"):
        received(archive([file("a", pax_headers=headers)]), new)
    assert not new.exists()


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("a\x1b[2J", "has control characters"),
        ("a\nb", "has control characters"),
        ("a\u202eb", "has control characters"),
        ("a\udcff", "is not UTF-8"),
        ("a\\b", "has a backslash"),
        ("a//b", "has an empty part"),
        ("./a", "has the part '.'"),
        ("x" * 300, "has a part of more than 255 bytes"),
        ("x/" * 101 + "x", "has more than 100 parts"),
        (".git/config", "belongs to a git directory"),
        ("r/.GIT/hooks/post-commit", "belongs to a git directory"),
        (f"{STAGING}/part", "which gpuqueue uses itself"),
        (STAGING.upper(), "which gpuqueue uses itself"),
    ],
    ids=repr,
)
def test_a_name_that_not_every_system_can_have_is_left_out(new: Path, path: str, why: str) -> None:
    """A file whose name some systems do not allow is left out, and the others are fetched.

    Any job can make such a file.
    """
    found = received(archive([file("0"), file(path), file("z")]), new)

    assert {"0": "one", "z": "one"} == tree(new)
    assert [path] == [each.path for each in found.left_out]
    assert why in found.left_out[0].why
    assert (2, 6) == (found.files, found.size_bytes)


@pytest.mark.parametrize(
    ("paths", "left"),
    [
        (["a", "A"], ["A"]),
        (["d/x", "D/y"], ["D/y"]),
        (["é", "e\u0301"], ["e\u0301"]),
        (["a", "a"], ["a"]),
        (["a", "a/b"], ["a/b"]),
        (["a/b", "a"], ["a"]),
    ],
    ids=str,
)
def test_names_that_are_one_where_case_is_ignored_are_left_out(new: Path, paths: list[str], left: list[str]) -> None:
    """Of names that differ only in case or in form, the first one is fetched and the others are left out.

    Otherwise a file could replace another one of the same archive.
    """
    found = received(archive([file(path, str(number).encode()) for number, path in enumerate(paths)]), new)

    assert {paths[0]: "0"} == tree(new)
    assert left == [each.path for each in found.left_out]


@pytest.mark.parametrize("target", ["/etc/passwd", "../up", "d/../../up", "..", "a\x1b", ""])
def test_a_link_that_leads_out_is_left_out(new: Path, target: str) -> None:
    """A link that leads out of the directory is left out."""
    found = received(archive([file("a"), link("d/l", target), link("l", target)]), new)

    assert {"a"} == {*tree(new)} - {"d/l"}
    assert target == "../up" or {"d/l", "l"} == {each.path for each in found.left_out}
    for each in new.rglob("*"):
        assert each.resolve().is_relative_to(new.resolve())


def test_links_that_lead_out_together_are_left_out(new: Path) -> None:
    """Two links are left out if each one stays inside, and the path through both leads out."""
    found = received(archive([link("d/up", ".."), link("l", "d/up/../x"), file("z")]), new)

    assert {"z": "one"} == tree(new)
    assert ["d/up", "l"] == [each.path for each in found.left_out]


def test_links_of_two_archives_do_not_lead_out_together(new: Path) -> None:
    """A link is left out if its path leads out through a link of an earlier fetch."""
    received(archive([link("p/q/up", "../..")]), new)
    assert {"p/q/up": "-> ../.."} == tree(new)

    found = received(archive([link("l", "p/q/up/../x")]), new)

    assert {"p/q/up": "-> ../.."} == tree(new)
    assert (0, ["l"]) == (found.files, [each.path for each in found.left_out])


def test_no_file_is_written_by_way_of_a_link_of_the_archive(new: Path) -> None:
    """Links are made after all files, and nothing is written below a link."""
    outside = new.parent / "outside"
    outside.mkdir()

    found = received(archive([link("a", "b"), file("a/x"), file("b/y"), link("c", "b"), link("c/z", "y")]), new)

    assert {"a": "-> b", "b/y": "one", "c": "-> b"} == tree(new)
    assert ["a/x", "c/z"] == [each.path for each in found.left_out]
    assert [] == list(outside.iterdir())


# ---- bombs -----------------------------------------------------------------------------------------------------------


def test_a_header_of_any_size_takes_no_memory(new: Path) -> None:
    """A name, a target or a header of a gigabyte ends the fetch after some kilobytes."""

    class Endless:
        def __init__(self, start: bytes) -> None:
            self.start = start
            self.sent_bytes = 0

        def read(self, size: int, /) -> bytes:
            part, self.start = self.start[:size], self.start[size:]
            self.sent_bytes += size
            return part or b"1" * size

    for kind in (tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK):
        source = Endless(raw(file("long", size=2**30, type=kind)[0]))
        with pytest.raises(ArchiveRefused, match="headers of more than 65536 bytes for one file"):
            receive(source, str(new), replace=False)
        assert source.sent_bytes < 2**18


def test_a_chain_of_headers_is_refused(new: Path) -> None:
    """A long chain of headers is refused, and does not exhaust the stack."""
    chain = raw(file("x", size=2, type=tarfile.GNUTYPE_LONGNAME)[0], b"a\0") * 60_000

    with pytest.raises(ArchiveRefused):
        received(chain + END, new)


def test_too_many_files_are_refused(new: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The number of files is limited. Files that are left out count as well."""
    monkeypatch.setattr(archives, "MOST_FILES", 20)

    for name in ("f{}", "a\\{}"):
        with pytest.raises(ArchiveRefused, match="more than 20 files: name patterns"):
            received(archive(file(name.format(number)) for number in range(21)), new)


def test_too_many_directories_are_refused(new: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The number of directories is limited, because they take room too."""
    monkeypatch.setattr(archives, "MAX_FOLDERS", 20)

    with pytest.raises(ArchiveRefused, match="more than 20 directories"):
        received(archive(file(f"{number}/" * 10 + "x") for number in range(9)), new)


def test_a_compressed_archive_is_refused(new: Path) -> None:
    """A compressed archive is refused, so that no small download fills the disk."""
    made = io.BytesIO()
    with tarfile.open(mode="w:gz", fileobj=made) as tar:
        tar.addfile(file("a")[0], io.BytesIO(b"one"))

    with pytest.raises(ArchiveRefused, match="the archive is damaged"):
        received(made.getvalue() + bytes(1024), new)
    assert not new.exists()


def test_a_header_for_all_files_is_refused(new: Path) -> None:
    """A header for all files is refused: its size could grow with each file."""
    with pytest.raises(ArchiveRefused, match="a header for all files"):
        received(archive([file("a")], pax_headers={"comment": "x"}), new)


def test_data_behind_the_end_is_bounded(new: Path) -> None:
    """The reader stops if data goes on after the end of the archive."""

    class Endless(io.BytesIO):
        def read(self, size: int | None = -1, /) -> bytes:
            return super().read(size) or bytes(size or 0)

    with pytest.raises(ArchiveRefused):
        receive(Endless(archive([file("a")])), str(new), replace=False)
    assert {"a": "one"} == tree(new)


@pytest.mark.parametrize("size", [-1, -512, -(2**40)])
def test_a_negative_size_is_refused(new: Path, size: int) -> None:
    """A negative size is refused: the reader would move backwards in the archive."""
    for kind in (tarfile.REGTYPE, tarfile.XHDTYPE, tarfile.GNUTYPE_LONGNAME):
        with pytest.raises((ArchiveRefused, ArchiveCutShort)):
            received(raw(file("a", size=size, type=kind)[0]) + raw(file("b")[0], b"one") + END, new)


# ---- fuzz ------------------------------------------------------------------------------------------------------------

NAMES = st.lists(
    st.sampled_from(["a", "A", "b", "c", "..", ".", "", STAGING, ".git", "\x1b", "é", "\udcff"]), min_size=1, max_size=4
).map("/".join)
KINDS = st.sampled_from(
    [tarfile.REGTYPE] * 6
    + [tarfile.SYMTYPE] * 4
    + [tarfile.LNKTYPE, tarfile.DIRTYPE, tarfile.FIFOTYPE, b"L", b"x", b"S"]
)
CONTENTS = st.sampled_from([b"", b"one", b"two", bytes(600), b"path=../up\n", b"13 path=../x\n"])
ENTRIES = st.lists(st.tuples(NAMES, KINDS, CONTENTS, NAMES, st.integers(-2, 0o7777)), max_size=8)


def hostile(entries: list[tuple[str, bytes, bytes, str, int]], form: int) -> bytes:
    """Return an archive of such entries."""
    made = b""
    for path, kind, content, target, mode in entries:
        size = len(content) if kind != tarfile.SYMTYPE else 0
        info = file(path, type=kind, linkname=target, mode=max(0, mode), size=-1 if mode == -2 else size)[0]
        made += raw(info, content if size else b"", format=form)
    return made + END


@contextlib.contextmanager
def prepared() -> Iterator[Path]:
    """Yield a directory that has a file, a directory and a link with names of the archive's entries."""
    with tempfile.TemporaryDirectory() as top:
        new = Path(top).resolve() / "deep/new"
        (new / "b").mkdir(parents=True)
        (new / "A").write_text("mine")
        (new / "c").symlink_to("b")
        yield new


def check_inside(new: Path) -> None:
    """Check that nothing was made outside the directory, that no link leads out, and that its first content stays."""
    assert ["new"] == [each.name for each in new.parent.iterdir()]
    assert ["deep"] == [each.name for each in new.parents[1].iterdir()]
    assert not (new / STAGING).exists()
    assert ("mine", "b") == ((new / "A").read_text(), str((new / "c").readlink()))
    for each in new.rglob("*"):
        assert each.resolve().is_relative_to(new)
        assert not stat.S_IMODE(each.lstat().st_mode) & 0o7000
        assert each.is_symlink() or each.is_dir() or each.is_file()


@settings(deadline=None)
@given(ENTRIES, st.sampled_from([tarfile.GNU_FORMAT, tarfile.PAX_FORMAT]), st.integers(0, 12_000))
def test_nothing_is_ever_written_outside_by_a_fetch(
    entries: list[tuple[str, bytes, bytes, str, int]], form: int, cut: int
) -> None:
    """No archive, complete or cut, writes anything outside the directory or replaces anything in it."""
    with prepared() as new:
        sent = hostile(entries, form)
        for content in (sent, sent[:cut]):
            with contextlib.suppress(ArchiveRefused, ArchiveCutShort, Refused):
                received(content, new)
            assert ["deep"] == [each.name for each in new.parents[1].iterdir()]
            check_inside(new)


@settings(deadline=None)
@given(ENTRIES, st.lists(st.tuples(st.integers(0, 5000), st.integers(0, 255)), max_size=12))
def test_a_damaged_archive_is_an_error_of_ours(
    entries: list[tuple[str, bytes, bytes, str, int]], changes: list[tuple[int, int]]
) -> None:
    """An archive with changed bytes gives files or one of gpuqueue's errors."""
    with prepared() as new:
        sent = bytearray(hostile(entries, tarfile.GNU_FORMAT))
        for at, value in changes:
            sent[at % len(sent)] = value
        _with_checksums(sent)
        with contextlib.suppress(GpuQueueError):
            received(bytes(sent), new)
        check_inside(new)


def _with_checksums(sent: bytearray) -> None:
    """Correct the checksum of each block, so that the reader accepts it."""
    for at in range(0, len(sent), 512):
        block = sent[at : at + 512]
        if any(block):
            checksum = 256 + sum(block[:148]) + sum(block[156:])
            sent[at + 148 : at + 156] = b"%06o\0 " % (checksum & 0o777777)
