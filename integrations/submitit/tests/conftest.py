"""What the tests of the plug-in share."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from site_of_one import Site

# Read at its import: it would log to the streams that pytest has captured by then.
os.environ["SUBMITIT_LOG_LEVEL"] = "NOCONFIG"

import gpuqueue_submitit
import submitit


@pytest.fixture
def watcher(monkeypatch: pytest.MonkeyPatch) -> gpuqueue_submitit.GpuQueueInfoWatcher:
    """Return the watcher of the jobs of this test, which knows none yet. Results are on no slow file system."""
    monkeypatch.delenv("SUBMITIT_LOG_LEVEL", raising=False)  # a job logs what submitit does
    made = gpuqueue_submitit.GpuQueueInfoWatcher(delay_s=gpuqueue_submitit.job.POLL_S)
    monkeypatch.setattr(gpuqueue_submitit.GpuQueueJob, "watcher", made)
    monkeypatch.setattr(gpuqueue_submitit.GpuQueueJob, "_results_timeout_s", 0)
    return made


@pytest.fixture
def executor(
    running_queue: Site, watcher: gpuqueue_submitit.GpuQueueInfoWatcher, tmp_path: Path
) -> submitit.AutoExecutor:
    """Return the executor that a user makes, for a queue that runs."""
    assert running_queue is not None
    assert watcher is not None
    made = submitit.AutoExecutor(tmp_path / "jobs", cluster="gpuqueue")
    made.update_parameters(timeout_min=5, gpuqueue_mem="64M")
    return made
