"""The identity of a machine, in a directory that its account may change at any time."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gpuqueue.errors import GpuQueueError
from gpuqueue.system.machine_id import FILE, machine_id


def test_the_id_stays(tmp_path: Path) -> None:
    """The first call makes it, and nothing else."""
    first = machine_id(tmp_path / "state")

    assert first == machine_id(tmp_path / "state")
    assert [FILE] == [each.name for each in (tmp_path / "state").iterdir()]


def test_a_link_or_a_pipe_in_place_of_the_id_is_refused(tmp_path: Path) -> None:
    """Root reads it in the directory of the workers: `uninstall` once hung at such a pipe."""
    (tmp_path / "other").write_text("0123456789abcdef")
    (tmp_path / FILE).symlink_to(tmp_path / "other")
    with pytest.raises(GpuQueueError):
        machine_id(tmp_path)

    (tmp_path / FILE).unlink()
    os.mkfifo(tmp_path / FILE)
    with pytest.raises(GpuQueueError, match="holds no machine id"):
        machine_id(tmp_path)
