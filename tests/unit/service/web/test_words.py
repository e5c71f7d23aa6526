"""The words of the page: sizes, durations, places and reasons as its modules write them."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

HERE = Path(__file__).parent


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
    place, timed, expected_at = found["places"]
    assert "3 jobs before it" == place
    assert timed.startswith("3 jobs before it; starts by ")
    assert expected_at.startswith("3 jobs before it; starts at about ")
    assert [[3, 8], [], []] == found["before"]  # no names, if the service counts others
    *words, begins = found["reasons"]
    assert ["no room now", ""] == words
    assert begins.startswith("it has a start time, not before ")
