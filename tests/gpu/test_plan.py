"""Tests of the plan for a real card, as far as the fake driver goes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

PLAN = Path(__file__).with_name("plan.py")
ROOT = PLAN.parents[2]


def plan(environ: dict[str, str], *words: str) -> subprocess.CompletedProcess[str]:
    """Run the plan."""
    return subprocess.run(
        [sys.executable, str(PLAN), *words],
        env={**os.environ, "PYTHONPATH": str(ROOT), **environ},
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )


def test_without_a_card_the_plan_says_so_in_one_line(fake_environ: dict[str, str], tmp_path: Path) -> None:
    """There is a driver's library without a driver, as on a machine whose module is not loaded."""
    gone = {**fake_environ, "FAKE_GPU_STATE": str(tmp_path / "nothing")}

    done = plan(gone, "--report", str(tmp_path / "report.txt"))

    assert (3, 1) == (done.returncode, len(done.stdout.splitlines()))
    assert done.stdout.startswith("no NVIDIA GPU answers here: ")
    assert not (tmp_path / "report.txt").exists()


@pytest.mark.full
def test_the_plan_finds_no_difference_on_the_fake_driver(fake_environ: dict[str, str], tmp_path: Path) -> None:
    """Peaks, external processes, jobs that take too much, and a killed worker are as expected there."""
    steps = ("facts", "peaks", "external", "liars", "adoption")

    done = plan(fake_environ, *steps, "--report", str(tmp_path / "report.txt"))

    report = (tmp_path / "report.txt").read_text()
    assert "0 results differ" in report, report
    assert 0 == done.returncode
    assert [f"--- {step}" in report for step in steps] == [True] * len(steps)
