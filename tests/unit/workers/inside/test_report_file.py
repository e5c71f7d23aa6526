"""Where the memory report of a process of a job is written. The run directory may belong to another account."""

from __future__ import annotations

import importlib.util
import json
import os
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

REPORT = Path(__file__).parents[4] / "workers" / "inside" / "site" / "_gpuqueue_report.py"
TORCH: Any = SimpleNamespace(cuda=SimpleNamespace(is_initialized=lambda: True, device_count=lambda: 0))


@pytest.fixture
def report() -> ModuleType:
    """Return the module, as a job loads it: by its path."""
    spec = importlib.util.spec_from_file_location("_gpuqueue_report", REPORT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_each_report_is_a_line(report: ModuleType, tmp_path: Path) -> None:
    """The processes of a job append to one file, so that a job needs no directory of its own to write to."""
    report.write(TORCH, str(tmp_path), 0.0)
    report.write(TORCH, str(tmp_path), 1.0)

    lines = (tmp_path / "reports").read_text().splitlines()
    assert [(os.getpid(), 0.0), (os.getpid(), 1.0)] == [
        (line["pid"], line["began_s"]) for line in map(json.loads, lines)
    ]


def test_a_link_in_place_of_the_reports_is_not_followed(report: ModuleType, tmp_path: Path) -> None:
    """Else the owner of the run directory could have any file of the submitter changed."""
    private = tmp_path / "private"
    private.write_text("thesis")
    (tmp_path / "reports").symlink_to(private)

    with pytest.raises(OSError, match="Too many levels"):
        report.write(TORCH, str(tmp_path), 0.0)

    assert "thesis" == private.read_text()
