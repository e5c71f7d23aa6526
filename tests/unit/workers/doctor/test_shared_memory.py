from __future__ import annotations

import mmap
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gpuqueue.model.finding import Finding, Grade
from gpuqueue.settings.settings import Settings
from gpuqueue.text.units import GIB, MIB
from workers.doctor import runs
from workers.shim.shared_memory import PLACE, unused

SETTINGS = Settings.load({"GPUQUEUE_CONFIG": os.devnull, "GPUQUEUE_STATE_DIR": "/s"})


def examined(monkeypatch: pytest.MonkeyPatch, *held: tuple[int, int], of_bytes: int = 100 * GIB) -> Finding:
    """Return the finding about files of so many bytes, each with its owner, in a /dev/shm of this size."""
    disk = SimpleNamespace(f_blocks=of_bytes // 4096, f_frsize=4096)
    monkeypatch.setattr(runs.os, "statvfs", lambda _: disk)
    monkeypatch.setattr(runs, "name_of", {1: "ann", 2: "bob"}.get)
    files: Any = {str(n): SimpleNamespace(st_uid=uid, st_blocks=size // 512) for n, (uid, size) in enumerate(held)}
    return runs.shared_memory(SETTINGS, lambda: files)


@pytest.mark.parametrize(
    ("held", "of_bytes", "seen"),
    [
        (((1, GIB), (2, 3 * GIB), (2, GIB)), 100 * GIB, "take memory: 4G of bob, 1G of ann"),
        (((1, 10 * MIB),), 64 * MIB, "take memory: 10M of ann"),
        (((1, GIB),), 100 * GIB, ""),
        ((), 64 * MIB, ""),
    ],
)
def test_large_files_without_a_process_are_named_by_owner(
    monkeypatch: pytest.MonkeyPatch, held: tuple[tuple[int, int], ...], of_bytes: int, seen: str
) -> None:
    """Above 1G, or a tenth of /dev/shm, there is a warning. Less may be a data set for the next job."""
    found = examined(monkeypatch, *held, of_bytes=of_bytes)

    assert (Grade.WARNING if seen else Grade.OK) is found.grade
    assert found.seen.endswith(seen)


def test_only_files_without_a_process_count() -> None:
    """A file that is open or mapped somewhere is in use, whatever its mode."""
    path = Path(PLACE) / f"gpuqueue-test-{os.getpid()}-doctor"
    try:
        with path.open("wb+") as file:
            file.truncate(MIB)
            assert path.name not in unused()
            mapped = mmap.mmap(file.fileno(), MIB)
        assert path.name not in unused()
        mapped.close()
        assert MIB == unused()[path.name].st_size
    finally:
        path.unlink()
