"""Tests of the command that packs, in its own process: what it needs, and how it ends."""

from __future__ import annotations

import contextlib
import io
import os
import signal
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterator
from fcntl import F_GETPIPE_SZ, fcntl
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from results_copy import Copy, contents, notes_in, nothing

from gpuqueue.errors import Unreadable
from gpuqueue.files.ignore import rules_of
from gpuqueue.files.names import LEFT_OUT_NOTES
from gpuqueue.files.pack_program import MOST_BYTES, PackRequest
from workers.results import command
from workers.results import pack as packing
from workers.results.command import pack_results, repack
from workers.results.pack import ArchiveRequest, NoCopy, PackFailed

PROGRAM = "import sys; from workers.cli import main; sys.argv = ['gpuqueue-worker', *sys.argv[1:]]; main()"


@pytest.fixture
def copy(tmp_path: Path) -> Copy:
    """Return a copy of no code."""
    return Copy(tmp_path / "run" / "code")


@pytest.fixture
def output(tmp_path: Path) -> Iterator[int]:
    """Return an open file for the archive."""
    fd = os.open(tmp_path / "output", os.O_WRONLY | os.O_CREAT)
    yield fd
    os.close(fd)


def asked(directory: Path, *patterns: str, source: str | None = None) -> PackRequest:
    """Return a request."""
    return PackRequest(directory=str(directory), patterns=patterns, source=source)


def run(text: bytes) -> subprocess.CompletedProcess[bytes]:
    """Run ``gpuqueue-worker pack`` with the request *text*."""
    words = [sys.executable, "-c", PROGRAM, "pack"]
    return subprocess.run(words, input=text, capture_output=True, check=False, timeout=60)


def test_the_archive_goes_to_standard_output(copy: Copy, tmp_path: Path) -> None:
    """The output has nothing else; what was left out is on standard error."""
    copy.take()
    copy.write("made", b"x")
    copy.link("out", "/etc")

    done = run(asked(tmp_path / "run").text())

    assert (0, 1) == (done.returncode, done.stderr.count(b"\n")), done.stderr
    assert done.stderr.startswith(b"gpuqueue-worker: left out the link 'out'")
    (tmp_path / "output").write_bytes(done.stdout)
    assert {"made": (b"x", "644")} == contents(tmp_path / "output")


@pytest.mark.parametrize(
    ("directory", "patterns", "source", "code", "said"),
    [
        ("run", [], None, 1, b"the list of the job's files is missing"),
        ("none", ["*"], None, 3, b"there is no copy of the code of this run"),
        ("run/code", ["*"], None, 3, b"there is no copy of the code of this run"),
        ("run", [], "results.tar", 3, b"there is no archive 'results.tar' of this run"),
        ("run", [], "code/tree/file", 1, b"the archive of the results is damaged"),
        ("run", ["#"], None, 2, b"it is a comment"),
    ],
)
def test_what_is_wrong_is_one_line_and_an_exit_code(
    copy: Copy, tmp_path: Path, directory: str, patterns: list[str], source: str | None, code: int, said: bytes
) -> None:
    """There is no traceback, and no archive that could be taken for a complete one."""
    copy.write("file", b"x" * 600)

    done = run(asked(tmp_path / directory, *patterns, source=source).text())

    assert (code, 1, b"") == (done.returncode, done.stderr.count(b"\n"), done.stdout), done.stderr
    assert said in done.stderr


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b"", "it is no JSON"),
        (b"[" * 100_000, "it is no JSON"),
        (b'{"directory": "' + b"x" * MOST_BYTES + b'"}', "it is no JSON"),
        (b"[]", "it is no object"),
        (b'{"directory": 1, "patterns": []}', "'directory' is 1, not a text"),
        (b'{"directory": "x"}', "'patterns' is missing"),
    ],
)
def test_an_input_that_is_no_request_is_refused(text: bytes, said: str) -> None:
    """Nothing is packed, and no input of any size is held in memory."""
    with pytest.raises(Unreadable, match=said):
        PackRequest.read(text[:MOST_BYTES])


def test_a_request_is_read_as_it_was_written(tmp_path: Path) -> None:
    """Also a path that is no UTF-8."""
    whole = asked(tmp_path / "\udcff", "-x", "é", source="results.tar")
    with whole.as_input() as given:
        assert whole == PackRequest.read(os.read(given, MOST_BYTES))


def test_no_argument_names_the_run(copy: Copy, tmp_path: Path) -> None:
    """Every user of a host can read the arguments of all processes."""
    copy.write("file", b"x" * 2**20)
    words = [sys.executable, "-c", PROGRAM, "pack"]
    with asked(tmp_path / "run", "private*", "file").as_input() as given:
        process = subprocess.Popen(words, stdin=given, stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.read(512)
    shown = Path(f"/proc/{process.pid}/cmdline").read_bytes()
    process.stdout.close()
    process.wait(timeout=60)

    assert [os.fsencode(each) for each in words] == shown.split(b"\0")[:-1]


def test_an_earlier_archive_is_read_from_the_run_directory(copy: Copy, tmp_path: Path, output: int) -> None:
    """Its name is relative to the run directory, whether the copy is still there or not."""
    copy.write("a")
    copy.write("b")
    copy.pack("*")
    copy.archive.rename(tmp_path / "run" / "results.tar")
    (copy.tree / "a").unlink()

    pack_results(asked(tmp_path / "run", "a", source="results.tar"), None, output)

    assert ["a"] == [*contents(tmp_path / "output")]


@pytest.mark.parametrize("put", [lambda path: path.symlink_to("/etc/passwd"), os.mkfifo, Path.mkdir])
def test_something_else_in_place_of_the_archive_is_not_read(
    copy: Copy, tmp_path: Path, output: int, put: Callable[[Path], object]
) -> None:
    """A job that has the account of the worker can put anything there. No link is followed, and no pipe waited for."""
    copy.write("file")
    put(tmp_path / "run" / "results.tar")

    with pytest.raises(NoCopy):
        pack_results(asked(tmp_path / "run", source="results.tar"), None, output)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory to another account")
def test_the_copy_of_another_account_is_not_read_without_the_launcher(copy: Copy, tmp_path: Path, output: int) -> None:
    """Root could read it, but follows no names in a directory that another account can change."""
    copy.write("file")
    os.chown(copy.code, 54321, -1)

    with pytest.raises(PackFailed, match="belongs to the user id 54321: call this as that account"):
        pack_results(asked(tmp_path / "run", "*"), None, output)
    with pytest.raises(PackFailed, match=r"the launcher .*none cannot be used: No such file"):
        pack_results(asked(tmp_path / "run", "*"), str(tmp_path / "none"), output)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory to another account")
def test_a_launcher_that_packs_for_long_is_not_interrupted(
    copy: Copy, tmp_path: Path, output: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The launcher bounds a time without progress. An alarm here once ended every archive after a minute."""
    left: list[tuple[float, float]] = []

    def pack_code(*_: object) -> tuple[int, str]:
        left.append(signal.getitimer(signal.ITIMER_REAL))
        return 0, ""

    monkeypatch.setattr(command, "pack_code", pack_code)
    copy.write("file")
    os.chown(copy.code, 54321, -1)
    pack_results(asked(tmp_path / "run", "*"), "launcher", output)

    assert [(0.0, 0.0)] == left


@pytest.fixture
def full_pipe() -> Iterator[tuple[int, int]]:
    """Return both ends of a pipe that has no room."""
    reader, writer = os.pipe()
    os.write(writer, bytes(fcntl(writer, F_GETPIPE_SZ)))
    yield reader, writer
    for fd in (reader, writer):
        with contextlib.suppress(OSError):
            os.close(fd)


def test_a_reader_that_does_not_read_is_given_up(
    copy: Copy, tmp_path: Path, full_pipe: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A write that blocks ends after a bounded time."""
    monkeypatch.setattr(packing, "STALL_S", 1.0)
    monkeypatch.setattr(command, "STALL_S", 1.0)
    copy.write("file", b"x" * 600)

    with pytest.raises(PackFailed, match="packing made no progress for 1 s"):
        pack_results(asked(tmp_path / "run", "*"), None, full_pipe[1])


def test_a_reader_that_is_gone_ends_it(copy: Copy, tmp_path: Path, full_pipe: tuple[int, int]) -> None:
    """It ends before anything is written, so also during a long search."""
    copy.write("file")
    os.close(full_pipe[0])

    with pytest.raises(BrokenPipeError):
        pack_results(asked(tmp_path / "run", "none"), None, full_pipe[1])


def test_a_pattern_that_takes_for_ever_is_given_up(
    copy: Copy, tmp_path: Path, output: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Patterns come from users, and some need exponential time."""
    monkeypatch.setattr(packing, "STALL_S", 1.0)
    monkeypatch.setattr(command, "STALL_S", 1.0)
    copy.write("a" * 200)

    with pytest.raises(PackFailed, match=r"packing made no progress for 1 s.* or a pattern is too complicated"):
        pack_results(asked(tmp_path / "run", "*a" * 30 + "*b"), None, output)


# ---- Tests of taking files out of an earlier archive, which may be damaged or come from a job ------------------------

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
