"""Tests that the documentation's pictures come from scripts of the repository, are small, and are used."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

ROOT = Path(__file__).resolve().parents[2]
PICTURES = ROOT / "docs" / "pictures"
MOST_BYTES = 200_000
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


def words(picture: Path) -> str:
    """Return the text of an SVG."""
    return " ".join(ET.parse(picture).getroot().itertext())  # noqa: S314 - our own


@pytest.mark.full
@pytest.mark.timeout(400)
def test_the_film_and_the_still_are_recorded(tmp_path: Path) -> None:
    """Each step of the walk has its frame, and no picture shows details of the machine that made it."""
    assert {"first-look.svg", "top.svg"} == made("record.py", tmp_path)

    film = words(tmp_path / "first-look.svg")
    for seen in ("gpuqueue up", "running", "why 3", "promised", "saved model.pt", "succeeded", "/home/ada/.local"):
        assert seen in film
    assert "/tmp" not in film
    text = (tmp_path / "first-look.svg").read_text()
    assert 7 == text.count('<g class="f ')
    assert "prefers-reduced-motion" in text
    assert "http" not in text.replace("http://www.w3.org/2000/svg", "")
    assert "PROGRESS / REASON" in words(tmp_path / "top.svg")


@pytest.mark.full
@pytest.mark.timeout(200)
def test_the_charts_are_drawn(tmp_path: Path) -> None:
    """The script makes both charts with the code that the commands call."""
    pytest.importorskip("matplotlib")

    assert {"stats.png", "memory.png"} == made("charts.py", tmp_path)
    assert all(entry.read_bytes().startswith(PNG) for entry in tmp_path.iterdir())


def test_each_picture_is_small_and_shown() -> None:
    """Every picture is used by a page, and is small enough for a slow connection."""
    pages = "".join(page.read_text() for page in (ROOT / "README.md", *(ROOT / "docs").rglob("*.md")))
    pictures = {entry.name: entry.stat().st_size for entry in PICTURES.iterdir() if entry.suffix in {".svg", ".png"}}

    assert {"first-look.svg", "top.svg", "stats.png", "memory.png"} == set(pictures)
    assert [] == [name for name, size in pictures.items() if f"pictures/{name})" not in pages or size > MOST_BYTES]
