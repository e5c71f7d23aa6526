"""Tests that the documentation's pictures come from scripts of the repository, show today's tables, and are used."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from itertools import groupby
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from browser_pages import PROGRAMS

from gpuqueue.cli.output import devices, history_columns, queue_table
from gpuqueue.cli.output.why_text import HEAD as WHY_HEAD
from gpuqueue.cli.top.lines import device_columns
from gpuqueue.history.revision import REVISION
from gpuqueue.service.web.files import NoPage, PageFiles

ROOT = Path(__file__).resolve().parents[2]
PICTURES = ROOT / "docs" / "pictures"
MOST_BYTES = 200_000
OF_PAGE = {f"page-{view}.png" for view in ("devices", "queue", "job", "statistics")}
PNG = b"\x89PNG\r\n\x1a\n"


def made(script: str, directory: Path) -> set[str]:
    """Run a script that makes pictures; return their file names."""
    done = subprocess.run(
        [sys.executable, str(PICTURES / script), str(directory)],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return {entry.name for entry in directory.iterdir()}


def heads(picture: Path) -> set[tuple[str, ...]]:
    """Return the heads of the tables in an SVG: the lines of text with only capitals, as their columns."""
    texts = [each for each in ET.parse(picture).iter() if each.tag.endswith("}text")]  # noqa: S314 - our own
    shown = (tuple(each.text or "" for each in row) for _, row in groupby(texts, key=lambda each: each.get("y")))
    return {row for row in shown if len(row) > 1 and re.fullmatch(r"[A-Z /]+", "".join(row))}


def words(picture: Path) -> str:
    """Return the text of an SVG."""
    return " ".join(ET.parse(picture).getroot().itertext())  # noqa: S314 - our own


@pytest.mark.full
@pytest.mark.timeout(400)
def test_the_film_and_the_still_are_recorded(tmp_path: Path) -> None:
    """Each step of the walk has its frame, and no picture shows details of the machine that made it."""
    assert {"first-steps.svg", "top.svg"} == made("record.py", tmp_path)

    film = words(tmp_path / "first-steps.svg")
    for seen in ("gpuqueue up", "running", "why 3", "too little", "saved model.pt", "succeeded", "/home/ada/.local"):
        assert seen in film
    assert "/tmp" not in film
    text = (tmp_path / "first-steps.svg").read_text()
    assert 7 == text.count('<g class="f ')
    assert "prefers-reduced-motion" in text
    assert "http" not in text.replace("http://www.w3.org/2000/svg", "")
    for picture in ("first-steps.svg", "top.svg"):
        assert heads(PICTURES / picture) == heads(tmp_path / picture), "run docs/pictures/record.py"


def test_the_pictures_show_the_tables_of_today() -> None:
    """The pictures show the heads that the code prints, and its revision of the history database's tables.

    If this fails, run docs/pictures/record.py.
    """
    film, screen = (heads(PICTURES / picture) for picture in ("first-steps.svg", "top.svg"))
    whole = {tuple(column.head for column in each) for each in (devices.COLUMNS, device_columns([]))} | {WHY_HEAD}
    fitted = [{column.head for column in each} for each in (queue_table.COLUMNS, history_columns.COLUMNS.values())]

    assert whole <= film
    assert [] == [row for row in film | screen if row not in whole and not any(each.issuperset(row) for each in fitted)]
    assert {"PROGRESS / REASON", "PEAK"} <= {head for row in film for head in row}
    assert [REVISION] == re.findall(r"tables at revision (\d+)", words(PICTURES / "first-steps.svg"))[:1]


def test_every_viewer_shows_the_columns() -> None:
    """Spaces are kept without CSS, and no piece of text has a wider gap that a viewer could close."""
    for picture in PICTURES.glob("*.svg"):
        assert 'xml:space="preserve"' in picture.read_text()
        texts = [each.text or "" for each in ET.parse(picture).iter() if each.tag.endswith("}text")]  # noqa: S314
        assert [] == [text for text in texts if "  " in text or text != text.strip()]


@pytest.mark.full
@pytest.mark.timeout(200)
def test_the_charts_are_drawn(tmp_path: Path) -> None:
    """The script makes both charts with the code that the commands call."""
    pytest.importorskip("matplotlib")

    assert {"stats.png", "memory.png"} == made("charts.py", tmp_path)
    assert all(entry.read_bytes().startswith(PNG) for entry in tmp_path.iterdir())


@pytest.mark.full
@pytest.mark.timeout(400)
def test_the_pictures_of_the_page_are_taken(tmp_path: Path) -> None:
    """The script takes them in a browser, of a lab with a month of jobs and a full queue."""
    pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    if not any(map(shutil.which, PROGRAMS)):
        pytest.skip("no Chromium here to show the page: apt install chromium")
    try:
        PageFiles().current()
    except NoPage:
        pytest.skip("the third-party parts of the page are missing: python3 page_parts.py")

    assert OF_PAGE == made("page.py", tmp_path)
    assert all(entry.read_bytes().startswith(PNG) for entry in tmp_path.iterdir())


def test_each_picture_is_small_and_shown() -> None:
    """Every picture is used by a page, and is small enough for a slow connection."""
    pages = "".join(page.read_text() for page in (ROOT / "README.md", *(ROOT / "docs").rglob("*.md")))
    pictures = {entry.name: entry.stat().st_size for entry in PICTURES.iterdir() if entry.suffix in {".svg", ".png"}}

    assert {"first-steps.svg", "top.svg", "stats.png", "memory.png"} | OF_PAGE == set(pictures)
    assert [] == [name for name, size in pictures.items() if f"pictures/{name})" not in pages or size > MOST_BYTES]
