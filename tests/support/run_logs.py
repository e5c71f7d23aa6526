"""Run directories with logs, without a job."""

from __future__ import annotations

import os
from pathlib import Path

from gpuqueue.model.run import RunDevice
from workers.run.directory import RunDir
from workers.run.values import Held


def run_of(runs: Path, job_id: int, user: str, size_bytes: int, *, ended: bool = True) -> RunDir:
    """Create a run with a log of numbered lines of 64 bytes, whose last line was written at second *job_id*."""
    held = Held(job_id=job_id, token=f"1.{job_id:012}", devices=(RunDevice(uuid="GPU-0", lease_bytes=1),))
    directory = RunDir.create(runs, held)
    directory.note_user(user)
    directory.log.write_text("".join(f"{line:063}\n" for line in range(size_bytes // 64)))
    if ended:
        directory.settle()
    os.utime(directory.log, (job_id, job_id))
    return directory


def on_disk(directory: RunDir) -> int:
    """Return how much disk the log of a run needs, in bytes."""
    return directory.log.stat().st_blocks * 512
