"""What the page says of recorded jobs and of statistics, as its modules write it."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from gpuqueue.model.run import EndingKind

HERE = Path(__file__).parent
GIB = 2**30


def test_records_and_figures_are_written_as_people_read_them() -> None:
    """What is not known stays unknown, and is never 0."""
    node = shutil.which("node")
    if node is None:
        pytest.skip("no Node.js to run the page's modules with")
    done = subprocess.run([node, HERE / "history_of_the_page.mjs"], capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)

    assert ["19", "17_2"] == found["labels"]
    assert ["", "exit 3", "", "a dependency failed", ""] == found["endings"]
    assert ["nodeA GPU 0, GPU 1", "nodeA 8 devices", "nodeA GPU-0", ""] == found["places"]
    assert ([10 * GIB, None, None], [60, None]) == (found["peaks"], found["waits"])
    assert [90, 5400, 172800, 5400, None, None, None, None] == found["seconds"]
    assert ["2026-11-14T12:00:00.000Z", "2026-11-01T09:00:00.000Z", None, None, None] == found["moments"]
    assert found["isMidnight"]
    assert ["0", "<0.01", "0.25", "5", "12.3"] == found["decimals"][:5]
    assert (["unknown", "26 %"], 3, 2, 0) == tuple(found[each] for each in ("percents", "failed", "unused", "overused"))
    assert [pytest.approx(1 / 3), None] == found["used"]
    peak, asked, share = found["mixed"]
    assert (9 * GIB, 10 * GIB, pytest.approx(peak / asked)) == (peak, asked, share)
    assert [[0, 0, 0], [0, 37.5, 75, 0], []] == found["heights"]
    assert [[0, 1], [0, 1, 2, 3], [0, 2, 4], [0, 50, 100]] == found["ticks"][:4], "runs are whole"
    assert [[0, 7200, 14400, 21600], [0, 360, 720, 1080], [0, 30, 60, 90]] == [
        [round(value) for value in each] for each in found["ticks"][4:7]
    ], "an axis of hours counts in hours, one of waits in the largest unit that fits"
    assert [[0, 30, 60, 90], [0, 3600, 7200, 10800], [0, 1]] == found["ticks"][6:]
    some, week = ["1d", "7d", "30d", "90d", "365d"], ["1d", "7d"]
    assert [["1d"], week, ["90d"], some, []] == found["periods"], "only periods with runs, up to one that has all"
    assert 5 == found["allPeriods"]
    assert {"ada": {"asked": 24 * GIB, "used": 8 * GIB}} == found["held"]
    assert [8 * GIB, 0, 0] == found["unusedNow"]
    assert [[5, 5, 5, 5, 5, 7, 7], [5, 5, 5, 5, 5, None, 7, 7]] == found["steps"]  # two seconds are no gap


def test_each_ending_can_be_chosen() -> None:
    """The filter of the history has a new one too."""
    text = (HERE.parents[3] / "gpuqueue" / "web" / "views" / "history-filters.js").read_text(encoding="utf-8")
    listed = re.search(r"const ENDINGS = (\[.*\]);", text)
    assert listed
    assert list(map(str, EndingKind)) == json.loads(listed[1])
