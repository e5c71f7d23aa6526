"""What the page keeps of a run that goes on: the whole course, with ever fewer samples."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest


def test_samples_are_bounded_and_cover_the_whole_time() -> None:
    """After hours there are at most 600 of a run, and of a few runs only. A silent worker leaves a gap, not a zero."""
    node = shutil.which("node")
    if node is None:
        pytest.skip("no Node.js to run the page's modules with")
    script = Path(__file__).parent / "samples_of_the_page.mjs"
    found = json.loads(subprocess.run([node, script], capture_output=True, text=True, check=True).stdout)
    assert 300 <= found["count"] <= 600
    assert (True, 0) == (found["ordered"], found["first"])
    assert found["last"] > 4_900_000
    assert [{"at": 0, "used": {"GPU-0": None}, "load": {"GPU-0": None}}] == found["silent"]
    assert [1, 0] == found["runs"]
