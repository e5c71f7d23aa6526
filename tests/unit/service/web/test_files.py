"""The files of the page: kept by browsers for a year, and yet new at the next load after a change."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from gpuqueue.service.web.files import NEEDED, NoPage, PageFiles

OWN = Path(__file__).parents[4] / "gpuqueue" / "web"


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Return a directory with a small page."""
    (tmp_path / "index.html").write_text('<script src="static/@tree@/app.js"></script>')
    (tmp_path / "app.js").write_text("let one = 1;\n" * 100)
    (tmp_path / "notes.md").write_text("not a part of the page")
    for each in NEEDED:
        (tmp_path / each).parent.mkdir(exist_ok=True)
        (tmp_path / each).write_text("")
    return tmp_path


def test_a_changed_file_has_a_new_address(directory: Path) -> None:
    """The page names its files by the hash of all of them, which a change of any changes."""
    files = PageFiles(directory)
    first = files.current()["index.html"].content
    assert f'<script src="static/{files.tree}/app.js"></script>' == first.decode()
    before = files.tree
    assert files.current() is files.current()
    (directory / "app.js").write_text("let two = 2;")
    assert b"let two = 2;" == files.current()["app.js"].content
    assert files.tree != before
    assert files.tree.encode() in files.current()["index.html"].content


def test_only_files_of_a_page_are_served(directory: Path) -> None:
    """Other files beside them are not, and no path leads out of the directory."""
    files = PageFiles(directory).current()
    assert {"index.html", "app.js", *NEEDED} == set(files)


def test_a_bundle_is_served_only_for_the_modules_that_it_was_made_of(directory: Path) -> None:
    """After a change of a module the modules are served again: nobody looks at a page that is older than its source."""
    files = PageFiles(directory)
    files.current()
    of_modules = files.tree
    (directory / "built").mkdir()
    (directory / "built" / "app.js").write_text("let all = 1;")
    (directory / "built" / "index.html").write_text('<script src="static/@tree@/built/app.js"></script>')
    assert {"index.html", "app.js", *NEEDED} == set(files.current()), "an unfinished bundle is none"
    assert of_modules == files.tree
    (directory / "built" / ".tree").write_text(of_modules)
    (directory / "built" / "app.js").write_text("let all = 2;")
    found = files.current()
    assert f'<script src="static/{of_modules}/built/app.js"></script>' == found["index.html"].content.decode()
    assert b"let all = 2;" == found["built/app.js"].content

    (directory / "app.js").write_text("let two = 2;")
    assert {"index.html", "app.js", *NEEDED} == set(files.current())
    assert b"built" not in files.current()["index.html"].content


def test_a_large_file_is_compressed_once(directory: Path) -> None:
    """The compressed bytes are those of the file. A small one stays as it is."""
    files = PageFiles(directory).current()
    compressed = files["app.js"].compressed
    assert compressed is not None
    assert gzip.decompress(compressed) == files["app.js"].content
    assert None is files["index.html"].compressed


def test_without_the_third_party_parts_there_is_no_page(directory: Path) -> None:
    """And once they are there, there is one, without a restart."""
    part = directory / NEEDED[0]
    part.unlink()
    files = PageFiles(directory)
    with pytest.raises(NoPage, match=NEEDED[0]):
        files.current()
    part.write_text("")
    assert "index.html" in files.current()


def test_the_page_needs_no_other_site_and_no_inline_code() -> None:
    """No file of ours names another host, and no element has code or style of its own: the policy would forbid it."""
    for path in [*OWN.glob("*.*"), *OWN.glob("views/*"), *OWN.glob("parts/*")]:
        text = path.read_text(encoding="utf-8")
        allowed = text.replace("http://www.w3.org/2000/svg", "")
        assert "http://" not in allowed, path
        assert "https://" not in allowed, path
    page = (OWN / "index.html").read_text(encoding="utf-8")
    for forbidden in ("onclick", "onload", "style=", "javascript:", "<style", "<script>"):
        assert forbidden not in page.lower()


def test_no_module_writes_markup() -> None:
    """What users write reaches the document as text only: no module uses a way around."""
    for path in OWN.rglob("*.js"):
        if "vendor" not in path.parts:
            text = path.read_text(encoding="utf-8")
            for forbidden in (
                "innerHTML",
                "outerHTML",
                "insertAdjacentHTML",
                "document.write",
                "eval(",
                "new Function",
            ):
                assert forbidden not in text, path
