"""The doctor's check of named environments, with real files."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from gpuqueue.model.finding import Grade
from gpuqueue.settings.settings import Settings
from workers.doctor.python import environments


def test_an_environment_without_its_program_is_a_problem(tmp_path: Path) -> None:
    """A missing program, a directory, and a file that is no program are named; one that can start is fine."""
    (tmp_path / "text").touch(mode=0o644)
    (tmp_path / "dangling").symlink_to(tmp_path / "gone")
    (tmp_path / "here").symlink_to(sys.executable)  # the setting takes no path with a space
    paths = {"folder": tmp_path} | {name: tmp_path / name for name in ("gone", "here", "text", "dangling")}
    words = " ".join(f"{name}={path}" for name, path in paths.items())
    settings = Settings.load({"GPUQUEUE_CONFIG": os.devnull, "GPUQUEUE_ENVIRONMENTS": words})

    found = {each.about: each for each in environments(settings)}

    assert {name: Grade.OK if name == "here" else Grade.PROBLEM for name in paths} == {
        name: each.grade for name, each in found.items()
    }
    assert f"{tmp_path} is a directory: no job" in found["folder"].seen
    assert [] == [*environments(Settings.load({"GPUQUEUE_CONFIG": os.devnull}))]
