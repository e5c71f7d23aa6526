"""Tests of taking files out of an earlier archive, which may be damaged or come from a job."""

from __future__ import annotations

import io
import os
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from results_copy import Copy, contents, notes_in, nothing

from gpuqueue.files.ignore import rules_of
from gpuqueue.files.names import LEFT_OUT_NOTES
from workers.results import command
from workers.results.command import repack
from workers.results.pack import ArchiveRequest, PackFailed

Repack = Callable[..., dict[str, Any]]


@pytest.fixture
def repacked(tmp_path: Path) -> Repack:
    """Return a function that takes files out of an archive, and returns what the new archive has."""

    def packed(archive: bytes, *patterns: str, notes: list[str] | None = None) -> dict[str, Any]:
        (tmp_path / "old.tar").write_bytes(archive)
        source = os.open(tmp_path / "old.tar", os.O_RDONLY)
        output = os.open(tmp_path / "new.tar", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        try:
            found = repack(source, ArchiveRequest.of(patterns, rules_of(patterns)), output, nothing)
        finally:
            os.close(source)
            os.close(output)
        if notes is not None:
            notes.extend(found)
        return contents(tmp_path / "new.tar")

    return packed


@pytest.fixture
def archive(tmp_path: Path) -> bytes:
    """Return an archive with files of several sizes, long names and a link."""
    copy = Copy(tmp_path / "run" / "code")
    copy.write("a", b"x" * 1000, mode=0o755)
    copy.write("out/" + "long" * 40, b"y" * 512)
    copy.write("out/Größe")
    copy.link("out/link", "../a")
    copy.pack("*")
    return copy.archive.read_bytes()


def test_an_archive_is_passed_on_as_it_is(repacked: Repack, archive: bytes, tmp_path: Path) -> None:
    """Without patterns, it has everything, byte for byte."""
    repacked(archive)

    assert archive == (tmp_path / "new.tar").read_bytes()


def test_patterns_select_members(repacked: Repack, archive: bytes) -> None:
    """They mean the same as for the directory."""
    assert ["a"] == [*repacked(archive, "a")]
    assert ["out/Größe", "out/link"] == [*repacked(archive, "out/", "!/out/long*")][:2]
    assert {"out/link": "-> ../a"} == repacked(archive, "link")


def test_an_archive_that_is_cut_anywhere_is_refused(repacked: Repack, archive: bytes) -> None:
    """No beginning of an archive is taken for a whole one."""
    for length in range(0, len(archive), 100):
        with pytest.raises(PackFailed, match="the archive of the results is damaged"):
            repacked(archive[:length])


def hostile(*members: tuple[str, dict[str, Any]]) -> bytes:
    """Return an archive that no packing makes."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT) as made:
        for name, fields in members:
            info = tarfile.TarInfo(name)
            for field, value in fields.items():
                setattr(info, field, value)
            made.addfile(info, io.BytesIO(b"x" * info.size))
    return file.getvalue()


@pytest.mark.parametrize(
    "members",
    [
        [("d", {"type": tarfile.DIRTYPE})],
        [("d", {"type": tarfile.CHRTYPE, "devmajor": 1, "devminor": 3})],
        [("d", {"type": tarfile.FIFOTYPE})],
        [("a", {}), ("d", {"type": tarfile.LNKTYPE, "linkname": "a"})],
        [("b", {}), ("a", {})],
        [("a", {}), ("a", {})],
        [("a", {"pax_headers": {"comment": "x" * 200_000}})],
        [("../a", {})],
        [("a/../../b", {})],
        [("/etc/passwd", {})],
        [("a", {"pax_headers": {"size": "-1"}})],
        [("a", {"pax_headers": {"size": "9" * 30}})],
        [("a", {"pax_headers": {"GNU.sparse.size": "9" * 18, "size": "9" * 18}})],
    ],
)
def test_what_no_packing_makes_is_refused(repacked: Repack, members: list[tuple[str, dict[str, Any]]]) -> None:
    """Devices, hard links, paths that lead out, an order or sizes that cannot be: the archive is damaged."""
    with pytest.raises(PackFailed, match="the archive of the results is damaged"):
        repacked(hostile(*members))


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("a//b", {}),
        ("esc\x1b[31m", {}),
        ("back\\slash", {}),
        ("l", {"type": tarfile.SYMTYPE, "linkname": "../x"}),
        ("l", {"type": tarfile.SYMTYPE, "linkname": "/etc"}),
        ("l", {"type": tarfile.SYMTYPE, "linkname": "esc\x1b"}),
    ],
)
def test_what_leads_out_is_left_out(repacked: Repack, name: str, fields: dict[str, Any], tmp_path: Path) -> None:
    """Names and links that packing would have left out are not passed on, and a line says so."""
    notes: list[str] = []

    found = repacked(hostile((name, fields or {"size": 600}), ("z", {"size": 1})), notes=notes)

    assert {"z": (b"x", "644")} == found
    assert 1 == len(notes)
    assert notes[0].isprintable()
    assert notes == notes_in(tmp_path / "new.tar")


def test_what_was_left_out_before_is_still_named(repacked: Repack, tmp_path: Path) -> None:
    """The notes of an archive are passed on with any part of it. A file of the job with their name is not packed."""
    copy = Copy(tmp_path / "run" / "code")
    copy.write("a", b"x")
    copy.write(LEFT_OUT_NOTES, b"forged")
    copy.link("out", "/etc")
    assert ["a"] == [*copy.pack("*")]
    notes: list[str] = []

    assert {} == repacked(copy.archive.read_bytes(), "none", notes=notes)
    assert copy.notes == notes == notes_in(tmp_path / "new.tar")
    assert notes[0].startswith("left out the link 'out'")


def test_notes_without_an_end_are_damage(repacked: Repack) -> None:
    """A job may have written them."""
    with pytest.raises(PackFailed, match="its list of what was left out cannot be read"):
        repacked(hostile((LEFT_OUT_NOTES, {"size": 2**20})))


def test_no_more_members_than_files_can_be_packed(repacked: Repack, monkeypatch: pytest.MonkeyPatch) -> None:
    """An archive without an end is given up."""
    monkeypatch.setattr(command, "MOST_FILES", 2)

    assert ["a", "b"] == [*repacked(hostile(("a", {}), ("b", {})))]
    with pytest.raises(PackFailed):
        repacked(hostile(("a", {}), ("b", {}), ("c", {})))


BLOCKS = st.lists(
    st.one_of(st.binary(max_size=40).map(lambda each: each.ljust(512, b"\0")), st.just(hostile(("a", {"size": 3})))),
    max_size=4,
).map(b"".join)


@settings(deadline=None)
@given(BLOCKS, st.data())
def test_any_bytes_are_an_archive_or_refused(tmp_path_factory: pytest.TempPathFactory, text: bytes, data: Any) -> None:
    """Whatever the file has, the result is an archive or one error."""
    place = tmp_path_factory.mktemp("any")
    if text:
        at = data.draw(st.integers(0, len(text) - 1))
        text = text[:at] + bytes([data.draw(st.integers(0, 255))]) + text[at + 1 :]
    (place / "old").write_bytes(text)
    source, output = os.open(place / "old", os.O_RDONLY), os.open(place / "new", os.O_WRONLY | os.O_CREAT)
    try:
        repack(source, ArchiveRequest.of((), ()), output, nothing)
    except PackFailed:
        return
    finally:
        os.close(source)
        os.close(output)
    found = [*contents(place / "new")]
    assert sorted(found) == found
    assert not any({"", ".", ".."} & {*path.split("/")} for path in found)
