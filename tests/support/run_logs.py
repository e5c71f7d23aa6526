"""Run directories with logs, without a job."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gpuqueue.model.run import RunDevice
from workers.run.directory import Held, RunDir
from workers.shim import acl


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


def shared(directory: RunDir) -> RunDir:
    """Share the log of a run with a made-up account, as a shim does with the submitter."""
    acl.share(str(directory.log), 54_321, acl.READ | acl.WRITE)
    if acl.ACCESS not in os.listxattr(directory.log):
        pytest.skip("this file system has no access control lists")
    return directory


def on_disk(directory: RunDir) -> int:
    """Return how much disk the log of a run needs, in bytes."""
    return directory.log.stat().st_blocks * 512
