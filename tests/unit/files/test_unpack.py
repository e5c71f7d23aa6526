"""Tests of unpacking: what is made, what a hostile sender cannot do, and that nothing stays after a failure."""

from __future__ import annotations

import hashlib
import io
import os
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuqueue.files.errors import InvalidManifest, UnpackFailed
from gpuqueue.files.manifest import (
    ACCEPTED_BEFORE,
    STREAM_HEADER,
    Entry,
    Kind,
    Manifest,
    StreamReader,
    read_manifest,
    stream_size_bytes,
    write_stream,
)
from gpuqueue.files.take import take_snapshot
from gpuqueue.files.unpack import Unpacked, unpack_stream

ROOT = Path(__file__).parents[3]
CONTENTS = {hashlib.sha256(each).hexdigest(): each for each in (b"", b"one", b"print(1)\n")}
ONE = hashlib.sha256(b"one").hexdigest()
Blob = Callable[[str, int], Iterable[bytes]]


def blob(sha256: str, _: int = 0) -> list[bytes]:
    """Return a blob byte by byte."""
    return [bytes([each]) for each in CONTENTS[sha256]]


class Sender:
    """Sends a snapshot: the manifest *text*, and each blob as *blob* returns it."""

    def __init__(self, text: bytes, blob: Blob) -> None:
        self._chunks, self._rest = self._sent(text, blob), b""

    def read(self, size: int, /) -> bytes:
        """Return at most *size* bytes, none at the end."""
        self._rest = self._rest or next(self._chunks, b"")
        part, self._rest = self._rest[:size], self._rest[size:]
        return part

    @staticmethod
    def _sent(text: bytes, blob: Blob) -> Iterator[bytes]:
        yield STREAM_HEADER + b"%d\n" % len(text) + text
        for sha256, size_bytes in read_manifest(text, ACCEPTED_BEFORE).blobs().items():
            yield from blob(sha256, size_bytes)


def unpack(text: bytes, blob: Blob, directory: str, **how: Any) -> Unpacked:
    """Unpack what a sender sends."""
    return unpack_stream(Sender(text, blob), directory, **how)


def file(path: str, content: bytes = b"one", *, executable: bool = False) -> Entry:
    """Return the entry of a file."""
    sha256 = hashlib.sha256(content).hexdigest()
    return Entry(path=path, sha256=sha256, size_bytes=len(content), executable=executable)


def link(path: str, target: str) -> Entry:
    """Return the entry of a link."""
    return Entry(path=path, kind=Kind.LINK, target=target)


def manifest(*entries: Entry) -> Manifest:
    """Return the manifest with these entries."""
    return Manifest(tuple(sorted(entries, key=lambda each: each.path)))


def tree(directory: Path) -> dict[str, str]:
    """Return what is below *directory*: contents and modes of files, targets of links."""
    return {
        str(each.relative_to(directory)): f"-> {each.readlink()}"
        if each.is_symlink()
        else f"{stat.S_IMODE(each.stat().st_mode):o} {each.read_text() if each.is_file() else ''}".strip()
        for each in directory.rglob("*")
    }


@pytest.fixture
def umask() -> Iterable[None]:
    """Set the usual umask."""
    before = os.umask(0o022)
    yield
    os.umask(before)


@pytest.mark.usefixtures("umask")
def test_the_same_tree_is_made_again(tmp_path: Path) -> None:
    """Files, modes, directories and links are made, also files of the same content, and the working directory."""
    made = manifest(
        *(file("a/run.sh", executable=True), file("a/b/same"), file("empty", b""), file("z", b"print(1)\n")),
        *(link("a/l", "b/same"), link("gone", "later")),
    )

    unpacked = unpack(made.text(), blob, str(tmp_path / "new"), address=made.address(), cwd="w/d")

    assert {
        "a": "755",
        "a/b": "755",
        "a/b/same": "644 one",
        "a/l": "-> b/same",
        "a/run.sh": "755 one",
        "empty": "644",
        "gone": "-> later",
        "w": "755",
        "w/d": "755",
        "z": "644 print(1)",
    } == {name: each.strip() for name, each in tree(tmp_path / "new").items()}
    assert (str(tmp_path / "new/w/d"), 6, 15) == (unpacked.cwd, unpacked.files, unpacked.size_bytes)
    assert 0o700 == stat.S_IMODE((tmp_path / "new").stat().st_mode)


def test_the_umask_of_the_job_counts(tmp_path: Path) -> None:
    """A stricter umask makes stricter modes."""
    before = os.umask(0o077)
    try:
        unpack(manifest(file("a", executable=True)).text(), blob, str(tmp_path / "new"))
    finally:
        os.umask(before)

    assert {"a": "700 one"} == tree(tmp_path / "new")


def test_each_content_is_asked_for_once_in_order(tmp_path: Path) -> None:
    """A content that many files share is sent once."""
    asked = []

    def counted(sha256: str, size_bytes: int) -> list[bytes]:
        asked.append((sha256, size_bytes))
        return blob(sha256)

    made = manifest(file("a"), file("b", b"print(1)\n"), file("c"), file("d/e"))
    unpack(made.text(), counted, str(tmp_path / "new"))

    assert list(made.blobs().items()) == asked
    assert ["one"] * 3 == [(tmp_path / "new" / each).read_text() for each in ("a", "c", "d/e")]


BROKEN: dict[str, Blob] = {
    "other content": lambda *_: [b"two"],
    "too short": lambda *_: [b"on"],
    "nothing": lambda *_: [],
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_wrong_content_leaves_nothing(tmp_path: Path, name: str) -> None:
    """A blob that is not the manifest's ends the unpacking, and all that was made is removed."""
    made = manifest(file("a/first", b""), file("a/second"), link("a/l", "first"))

    with pytest.raises(UnpackFailed, match=r"for 'a/second'|cut short on its way"):
        unpack(made.text(), lambda sha, n: BROKEN[name](sha, n) if sha == ONE else [], str(tmp_path / "new"))

    assert [] == list(tmp_path.iterdir())


def test_an_error_of_the_sender_leaves_nothing(tmp_path: Path) -> None:
    """A connection that breaks ends the unpacking, and all that was made is removed."""

    def broken(_: str, __: int) -> Iterable[bytes]:
        yield b"o"
        raise ConnectionError("reset by peer")

    with pytest.raises(UnpackFailed, match="reset by peer"):
        unpack(manifest(file("a/b")).text(), broken, str(tmp_path / "new"))

    assert [] == list(tmp_path.iterdir())


def test_a_directory_that_exists_is_never_touched(tmp_path: Path) -> None:
    """Neither a directory, nor a file, nor a link at the place is used or removed."""
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder/kept").touch()
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to("folder")
    (tmp_path / "dangling").symlink_to("elsewhere")
    before = tree(tmp_path)

    for place in ("folder", "file", "link", "dangling", "missing/new"):
        with pytest.raises(UnpackFailed, match="cannot make"):
            unpack(manifest(file("a")).text(), blob, str(tmp_path / place))

    assert before == tree(tmp_path)


@pytest.mark.parametrize("swapped", ["directory", "file"])
def test_a_link_that_appears_meanwhile_is_not_followed(tmp_path: Path, swapped: str) -> None:
    """Another process that swaps a directory or file for a link gets nothing written outside."""
    outside, new = tmp_path / "outside", tmp_path / "new"
    outside.mkdir()
    (outside / "c").write_text("before")

    def swapping(sha256: str, _: int) -> list[bytes]:
        if sha256 == ONE and swapped == "directory":
            (new / "b").symlink_to(outside)
        elif sha256 == ONE:
            (new / "b").mkdir()
            (new / "b/c").symlink_to(outside / "c")
        return blob(sha256)

    with pytest.raises(UnpackFailed, match="cannot unpack"):
        unpack(manifest(file("a"), file("b/c", b"print(1)\n")).text(), swapping, str(new))

    assert {"outside", "outside/c"} == set(tree(tmp_path))
    assert "before" == (outside / "c").read_text()


def test_a_copy_of_the_manifest_is_left_on_request(tmp_path: Path) -> None:
    """The text is in the file, which only its owner reads. After a failure there is no file."""
    made = manifest(file("a"))

    unpack(made.text(), blob, str(tmp_path / "new"), copy=str(tmp_path / "copy"))

    assert made.text() == (tmp_path / "copy").read_bytes()
    assert 0o600 == stat.S_IMODE((tmp_path / "copy").stat().st_mode)
    with pytest.raises(UnpackFailed, match="is not that of the snapshot"):
        unpack(made.text(), lambda *_: [b"two"], str(tmp_path / "other"), copy=str(tmp_path / "none"))
    with pytest.raises(UnpackFailed, match="File exists"):
        unpack(made.text(), blob, str(tmp_path / "other"), copy=str(tmp_path / "copy"))
    assert {"new", "new/a", "copy"} == set(tree(tmp_path))


def test_the_address_is_checked_first(tmp_path: Path) -> None:
    """A manifest that is not the expected one makes nothing."""
    made = manifest(file("a"))

    with pytest.raises(InvalidManifest, match="is not the one with the address"):
        unpack(made.text(), blob, str(tmp_path / "new"), address="0" * 64)
    assert [] == list(tmp_path.iterdir())


@pytest.mark.parametrize("cwd", ["/tmp", "..", "a/../..", "", "f", "f/below", "l", "l/below", ".git"])
def test_a_working_directory_that_is_none_is_refused(tmp_path: Path, cwd: str) -> None:
    """The working directory is a directory of the snapshot, not outside, not a file and not a link."""
    with pytest.raises(InvalidManifest, match="working directory"):
        unpack(manifest(file("f"), link("l", ".")).text(), blob, str(tmp_path / "new"), cwd=cwd)
    assert [] == list(tmp_path.iterdir())


def test_a_stream_carries_a_whole_snapshot(tmp_path: Path) -> None:
    """A snapshot that is taken, streamed and unpacked is the same snapshot."""
    source = tmp_path / "source"
    (source / "d").mkdir(parents=True)
    for name in ("a.py", "d/b.py", "d/same.py"):
        (source / name).write_text(name[-4:])
    (source / "l").symlink_to("d/b.py")
    taken = take_snapshot(source)
    stream = b"".join(write_stream(taken.manifest, taken.blob))

    unpack_stream(io.BytesIO(stream), str(tmp_path / "new"), address=taken.address)

    assert len(stream) == stream_size_bytes(taken.manifest)
    assert taken.address == take_snapshot(tmp_path / "new").address


def test_a_stream_that_is_cut_anywhere_leaves_nothing(tmp_path: Path) -> None:
    """No prefix of a stream is taken for a whole one."""
    stream = b"".join(write_stream(manifest(file("a"), file("b", b"")), blob))

    for length in range(len(stream)):
        with pytest.raises((UnpackFailed, InvalidManifest)):
            unpack_stream(io.BytesIO(stream[:length]), str(tmp_path / "new"))
    assert [] == list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "start", [b"x" * 100, b"gpuqueue-snapshot-stream 1 -1\n", b"gpuqueue-snapshot-stream 1 999999999\n", b"\n"]
)
def test_another_stream_is_refused(start: bytes) -> None:
    """What is no stream is refused by its first line."""
    with pytest.raises(UnpackFailed, match="so it is no snapshot"):
        StreamReader(io.BytesIO(start))


NAMES = st.lists(st.sampled_from(["a", "b", "c", "..", "."]), min_size=1, max_size=4).map("/".join)
LINES = st.one_of(
    NAMES.map(lambda path: f"file\t{ONE}\t3\t{path}"),
    st.tuples(NAMES, NAMES).map(lambda both: f"link\t{both[0]}\t{both[1]}"),
)


@settings(deadline=None)
@given(st.lists(LINES, max_size=8, unique_by=lambda line: line.split("\t")[-1]))
def test_nothing_is_ever_written_outside(lines: list[str]) -> None:
    """Whatever the manifest says, it is refused, or everything that is made, and each of its links, stays inside."""
    text = "\n".join(["gpuqueue-snapshot 1", *sorted(lines, key=lambda line: line.split("\t")[-1]), ""]).encode()
    with tempfile.TemporaryDirectory() as top:
        new = Path(top).resolve() / "deep/new"
        new.parent.mkdir()
        try:
            unpack(text, blob, str(new))
        except InvalidManifest:
            assert [] == list(new.parent.iterdir())
            return
        assert ["new"] == [each.name for each in new.parent.iterdir()]
        assert ["deep"] == [each.name for each in Path(top).iterdir()]
        for each in new.rglob("*"):
            assert each.resolve().is_relative_to(new)
            assert each.is_symlink() or each.is_dir() or each.read_bytes() == b"one"


def test_unpacking_needs_the_standard_library_only(tmp_path: Path) -> None:
    """It runs with an interpreter without installed packages, and loads few modules of gpuqueue."""
    made = manifest(file("a"))
    stream = tmp_path / "stream"
    stream.write_bytes(b"".join(write_stream(made, blob)))
    program = (
        f"import sys; sys.path.insert(0, {str(ROOT)!r}); import gpuqueue.files.unpack as unpacking; "
        f"unpacking.unpack_stream(open({str(stream)!r}, 'rb'), {str(tmp_path / 'new')!r}); "
        "print(*sorted({each for each in sys.modules if each.split('.')[0] not in sys.stdlib_module_names}))"
    )

    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", program], capture_output=True, text=True, check=True, timeout=60
    )

    assert "one" == (tmp_path / "new/a").read_text()
    parts = ("errors", "folders", "limits", "manifest", "names", "unpack")
    others = ("errors", "lazy", "lazy.frozen", "lazy.imports", "text", "text.sanitize", "text.units", "version")
    ours = {f"gpuqueue.{each}" for each in others} | {f"gpuqueue.files.{each}" for each in parts}
    assert {"__main__", "gpuqueue", "gpuqueue.files", *ours} == set(done.stdout.split()) | {"__main__"}
