"""Tests of the manifest's text and of its reader, which gets hostile input."""

from __future__ import annotations

import hashlib
from string import printable

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gpuqueue.files.errors import InvalidManifest
from gpuqueue.files.limits import Limits
from gpuqueue.files.manifest import HEADER, Entry, Kind, Manifest, address_of, read_manifest

SHA = hashlib.sha256(b"one").hexdigest()


def file(path: str, sha256: str = SHA, size_bytes: int = 3) -> str:
    """Return the line of a file."""
    return f"file\t{sha256}\t{size_bytes}\t{path}"


def link(path: str, target: str) -> str:
    """Return the line of a link."""
    return f"link\t{target}\t{path}"


def text(*lines: str) -> bytes:
    """Return the text of a manifest with these lines, which may be invalid."""
    return "".join(f"{line}\n" for line in (HEADER, *lines)).encode("utf-8", "surrogateescape")


def test_the_text_is_canonical_and_its_hash_is_the_address() -> None:
    """A manifest has one text, which can be read, and the address is the SHA-256 of it."""
    manifest = Manifest(
        (
            Entry(path="a/run.sh", executable=True, sha256=SHA, size_bytes=3),
            Entry(path="b", sha256=SHA, size_bytes=3),
            Entry(path="latest", kind=Kind.LINK, target="a/run.sh"),
        )
    )

    assert text(f"exec\t{SHA}\t3\ta/run.sh", file("b"), link("latest", "a/run.sh")) == manifest.text()
    assert manifest == read_manifest(manifest.text())
    assert hashlib.sha256(manifest.text()).hexdigest() == manifest.address() == address_of(manifest.text())
    assert 6 == manifest.size_bytes()
    assert {SHA: 3} == manifest.blobs()


def test_a_directory_without_files_has_a_manifest() -> None:
    """The manifest of nothing is the first line alone."""
    assert Manifest(()) == read_manifest(text())


HOSTILE = {
    "absolute": (text(file("/etc/passwd")), "is an absolute path"),
    "parent": (text(file("a/../../b")), "has the part '..'"),
    "parent first": (text(file("..")), "has the part '..'"),
    "here": (text(file("./a")), "has the part '.'"),
    "empty part": (text(file("a//b")), "has an empty part"),
    "directory": (text(file("a/")), "has an empty part"),
    "no path": (text(file("")), "is empty"),
    "backslash": (text(file("a\\b")), "has a backslash"),
    "NUL": (text(file("a\0b")), "has control characters"),
    "escape": (text(file("\x1b[2Ja")), "has control characters"),
    "C1 escape": (text(file("\x9b2Ja")), "has control characters"),
    "carriage return": (text(file("a\r")), "has control characters"),
    "direction": (text(file("a\u202etxt.exe")), "has control characters"),
    "line separator": (text(file("a\u2028b")), "has control characters"),
    "not UTF-8": (text(file("\udcff")), "is not UTF-8"),
    "encoded surrogate": (text(file("a")).replace(b"\ta\n", b"\t\xed\xb3\xbf\n"), "is not UTF-8"),
    "long part": (text(file("a" * 256)), "has a part of more than 255 bytes"),
    "long part of few characters": (text(file("é" * 128)), "has a part of more than 255 bytes"),
    "long path": (text(file("a/" * 90 + "b" * 200 + "/" + "c" * 250 + "/" + "d" * 250 + "/" + "e" * 250)), "is longer"),
    "deep path": (text(file("a/" * 100 + "b")), "has more than 100 parts"),
    "git directory": (text(file("sub/.git/config")), "belongs to a git directory"),
    "git directory without case": (text(file(".GIT/hooks/post-checkout")), "belongs to a git directory"),
    "twice": (text(file("a"), file("a")), "'a' is there twice"),
    "not sorted": (text(file("b"), file("a")), "are not sorted"),
    "case": (text(file("A"), file("a")), "are the same where upper and lower case are"),
    "case of a directory": (text(file("A/x"), file("a/y")), "'A' and 'a' are the same"),
    "case of file and directory": (text(file("A"), file("a/y")), "'A' and 'a' are the same"),
    "case beyond ASCII": (text(file("STRASSE"), file("straße")), "are the same"),
    "composed letters": (text(file("e\u0301"), file("\u00e9")), "are the same"),
    "file and directory": (text(file("a"), file("a/b")), "'a' is a file, but 'a/b' is below it"),
    "file and directory apart": (text(file("a"), file("a-b"), file("a/b/c")), "'a' is a file, but 'a/b/c' is below it"),
    "below a link": (text(link("a", "b"), file("a/y"), file("b/x")), "'a' is a link, but"),
    "link out": (text(link("a", "../b")), "leads out of the snapshot"),
    "link far out": (text(link("a/b/c", "../../../b")), "leads out of the snapshot"),
    "link to an absolute path": (text(link("a", "/etc/passwd")), "is an absolute path"),
    "link out and in": (text(link("a", "../snapshot/b")), "leads out of the snapshot"),
    "link by a link": (text(link("a", "d/e/.."), link("b", "a/../../c"), file("d/e/f")), "leads out of the snapshot"),
    "link by a link up": (text(link("d/e/up", "../.."), link("x", "d/e/up/..")), "leads out of the snapshot"),
    "link through a file": (text(file("f"), link("l", "f/../../x")), "leads out of the snapshot"),
    "circle": (text(link("a", "b"), link("b", "a")), "in a circle"),
    "circle of one": (text(link("a", "a")), "in a circle"),
    "link without target": (text("link\t\ta"), "which is empty"),
    "link with an escape": (text(link("a", "\x1b]0;x\x07")), "has control characters"),
    "hard link": (text("hardlink\tb\ta"), "is neither file nor link"),
    "device": (text("device\t8,0\ta"), "is neither file nor link"),
    "pipe": (text("fifo\t\ta"), "is neither file nor link"),
    "directory entry": (text("dir\ta"), "is neither file nor link"),
    "mode": (text(f"file\t{SHA}\t3\t4755\ta"), "is neither file nor link"),
    "kind with space": (text(f"file \t{SHA}\t3\ta"), "is neither file nor link"),
    "upper case hash": (text(file("a", SHA.upper())), "is no SHA-256"),
    "short hash": (text(file("a", SHA[:40])), "is no SHA-256"),
    "hash is a path": (text(file("a", "../../etc/passwd")), "is no SHA-256"),
    "negative size": (text(f"file\t{SHA}\t-1\ta"), "is no size of a file"),
    "size with sign": (text(f"file\t{SHA}\t+1\ta"), "is no size of a file"),
    "size with zero": (text(f"file\t{SHA}\t01\ta"), "is no size of a file"),
    "size in other digits": (text(f"file\t{SHA}\t\u0661\ta"), "is no size of a file"),
    "size with point": (text(f"file\t{SHA}\t1.0\ta"), "is no size of a file"),
    "size with underscore": (text(f"file\t{SHA}\t1_0\ta"), "is no size of a file"),
    "no size": (text(f"file\t{SHA}\t\ta"), "is no size of a file"),
    "huge size": (text(f"file\t{SHA}\t{'9' * 5000}\ta"), "is no size of a file"),
    "size above all": (text(f"file\t{SHA}\t9999999999999999\ta"), "is no size of a file"),
    "two sizes": (
        text(file("a", size_bytes=3), file("b", size_bytes=4)),
        "has the content of another file, but not its size",
    ),
    "file above limit": (text(file("a", size_bytes=20 * 2**20 + 1)), "above the limit of"),
    "total above limit": (
        text(*(file(f"f{n:02}", size_bytes=20 * 2**20) for n in range(11))),
        "above the limit of 200M",
    ),
    "no header": (b"", "begins with ''"),
    "other version": (b"gpuqueue-snapshot 2\n", "begins with 'gpuqueue-snapshot 2'"),
    "cut": (text(file("a"))[:-1], "does not end with a line end"),
    "empty line": (text(""), "is neither file nor link"),
    "line ends of Windows": (text(file("a")).replace(b"\n", b"\r\n"), "begins with"),
    "byte order mark": (b"\xef\xbb\xbf" + text(), "begins with"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_manifest_is_refused_in_one_plain_line(name: str) -> None:
    """Each hostile manifest is refused; the message is one line that no terminal obeys."""
    hostile, why = HOSTILE[name]

    with pytest.raises(InvalidManifest) as raised:
        read_manifest(hostile)

    message = str(raised.value)
    assert why in message
    assert message.isprintable(), "the message has control characters"


def test_the_line_is_named() -> None:
    """The message names the line of the text."""
    with pytest.raises(InvalidManifest, match=r"^line 3 of the manifest: the path '/b' is an absolute path$"):
        read_manifest(text(file("a"), file("/b")))


def test_counts_above_the_limit_are_refused_before_they_are_parsed() -> None:
    """A text with too many lines, or too many bytes, is refused by its size alone."""
    lines = text(*(file(f"{n:04}") for n in range(11)))

    assert 11 == len(read_manifest(lines, Limits(files=11)).entries)
    with pytest.raises(InvalidManifest, match="more than 10 entries"):
        read_manifest(lines, Limits(files=10))
    with pytest.raises(InvalidManifest, match="more than 8388608 bytes"):
        read_manifest(b"\n" * (8 * 2**20 + 1))


def test_links_that_stay_inside_are_fine() -> None:
    """Links to files, directories, other links, the root, and to what the job may make stay inside."""
    fine = text(
        link("a", "d/e"),
        file("d/e/f"),
        link("d/e/up", "../.."),
        link("gone", "not/there/../yet"),
        link("root", "."),
        link("slashes", "d//e/"),
        link("x", "a/up/d/e/f"),
    )

    assert fine == read_manifest(fine).text()


def test_directories_above_the_limit_are_refused() -> None:
    """Few files cannot make very many directories."""
    deep = "d/" * 90

    assert 500 == len(read_manifest(text(*(file(f"{n:03}/{deep}f") for n in range(500)))).entries)
    with pytest.raises(InvalidManifest, match="more than 50000 directories"):
        read_manifest(text(*(file(f"{n:03}/{deep}f") for n in range(600))))


def test_many_links_on_top_of_each_other_end_soon() -> None:
    """A tower of links that each go twice through the one below is refused, and does not take exponential time."""
    tower = [link("l00", "d"), *(link(f"l{n:02}", f"l{n - 1:02}/../l{n - 1:02}") for n in range(1, 60))]

    with pytest.raises(InvalidManifest, match="links"):
        read_manifest(text(*tower))


def test_a_thousand_links_in_a_row_are_refused_without_a_traceback() -> None:
    """A chain longer than the kernel follows is refused from either end."""
    for chain in (
        [link(f"l{n:04}", f"l{n + 1:04}") for n in range(2000)],
        [link(f"l{n:04}", f"l{n - 1:04}") for n in range(1, 2000)],
    ):
        with pytest.raises(InvalidManifest, match="links"):
            read_manifest(text(*chain))


PARTS = st.text(st.sampled_from("aAb.\\/ \t\n\0\x1bé\u0301\u202e"), max_size=6)
LINES = st.one_of(
    st.builds(lambda path, size: f"file\t{SHA}\t{size}\t{path}", PARTS, st.integers(-1, 3)),
    st.builds(lambda target, path: f"link\t{target}\t{path}", PARTS, PARTS),
    st.text(printable, max_size=20),
)


@settings(deadline=None)
@given(st.lists(LINES, max_size=6).map(lambda lines: text(*sorted(lines, key=lambda line: line.split("\t")[-1]))))
@example(text(link("a", "b/.."), link("b", "c/c"), link("c/c", "..")))
def test_whatever_is_read_is_safe_and_canonical(hostile: bytes) -> None:
    """A text is refused with one error, or it is exactly the text of a manifest whose paths stay inside."""
    try:
        manifest = read_manifest(hostile)
    except InvalidManifest:
        return

    assert hostile == manifest.text()
    for entry in manifest.entries:
        assert not entry.path.startswith("/")
        assert {"", ".", ".."}.isdisjoint(entry.path.split("/"))
        assert entry.path.isprintable()


@settings(deadline=None)
@given(st.binary(max_size=200))
def test_any_bytes_are_refused_or_read(hostile: bytes) -> None:
    """No bytes raise another error."""
    for given_bytes in (hostile, HEADER.encode() + b"\n" + hostile):
        try:
            manifest = read_manifest(given_bytes)
        except InvalidManifest:
            continue
        assert given_bytes == manifest.text()


@pytest.mark.parametrize(
    "fields",
    [
        {"kind": "device"},
        {"kind": Kind.LINK, "target": "b"},
        {"kind": Kind.LINK, "target": "b", "sha256": None, "executable": True, "size_bytes": None},
        {"target": "b"},
        {"size_bytes": True},
        {"size_bytes": 3.0},
        {"size_bytes": None},
        {"sha256": None},
    ],
)
def test_a_value_validates_itself(fields: dict[str, object]) -> None:
    """An entry that no text can express cannot be made."""
    with pytest.raises(InvalidManifest):
        Entry(**{"path": "a", "sha256": SHA, "size_bytes": 3, **fields})  # type: ignore[arg-type]
