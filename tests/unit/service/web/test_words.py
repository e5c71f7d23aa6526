"""The words of the page: sizes, durations, places and reasons as its modules write them."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from gpuqueue.model.job import JobState

HERE = Path(__file__).parent
WORDS = HERE.parents[3] / "gpuqueue" / "web" / "words.js"


def test_values_are_written_as_people_read_them() -> None:
    """Sizes are those of the command line, and what is typed is read back."""
    node = shutil.which("node")
    if node is None:
        pytest.skip("no Node.js to run the page's modules with")
    done = subprocess.run([node, HERE / "words_of_the_page.mjs"], capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)

    assert ["0B", "1023B", "1K", "1.5G", "20G", "300G", "unknown"] == found["sizes"]
    gib = 2**30
    expected = [20 * gib, 20 * gib, int(1.5 * 2**40), 512 * 2**20, 20 * gib, 20 * gib, None, None, None]
    assert expected == found["bytes"]
    assert ["0s", "0s", "59s", "1m", "1m 1s", "10m", "1h 1m", "1d 1h"] == found["durations"]
    assert [
        "3 ahead",
        "first in line",
        "a device is reserved for it",
        "no device here can ever run it",
    ] == found["places"]
    assert [[3, 8], [], []] == found["before"]  # no names, if the service counts others
    *words, begins = found["reasons"]
    assert ["no room now", ""] == words
    assert begins.startswith("starts after ")


def test_each_state_has_words() -> None:
    """A new state must not reach people as a word of the program."""
    text = WORDS.read_text(encoding="utf-8")
    named = set(re.findall(r"^  (\w+):", text, re.MULTILINE))
    assert {str(each) for each in JobState if not each.is_end} <= named
