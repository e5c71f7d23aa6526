"""Where the memory report of a process of a job is written. The run directory may belong to another account."""

from __future__ import annotations

import importlib.util
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


def test_a_report_is_written(report: ModuleType, tmp_path: Path) -> None:
    """It is a file named by the pid."""
    report.write(TORCH, str(tmp_path), 0.0)

    assert [f"{os.getpid()}.json"] == [path.name for path in (tmp_path / "inside").iterdir()]


def test_a_link_in_place_of_a_report_is_not_followed(report: ModuleType, tmp_path: Path) -> None:
    """Else the owner of the run directory could have any file of the submitter overwritten."""
    (tmp_path / "inside").mkdir()
    private = tmp_path / "private"
    private.write_text("thesis")
    (tmp_path / "inside" / f"{os.getpid()}.json.part").symlink_to(private)

    with pytest.raises(FileExistsError):
        report.write(TORCH, str(tmp_path), 0.0)

    assert "thesis" == private.read_text()


def test_a_link_in_place_of_the_directory_is_not_followed(report: ModuleType, tmp_path: Path) -> None:
    """No file is made in another directory of the submitter."""
    (tmp_path / "home").mkdir()
    (tmp_path / "inside").symlink_to(tmp_path / "home")

    with pytest.raises(OSError, match=r"Not a directory|Too many levels"):
        report.write(TORCH, str(tmp_path), 0.0)

    assert [] == [*(tmp_path / "home").iterdir()]
