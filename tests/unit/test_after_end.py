"""What a worker knows of a job at its end, it does not read and decode once more: each end would pay for it."""

from __future__ import annotations

from pathlib import Path

import pytest
from factories import make_spec

from gpuqueue.job import JobState
from gpuqueue.queue.jobqueue import JobQueue
from gpuqueue.run import Ending, RunDevice
from workers import after_end
from workers.after_end import AfterEnd
from workers.live import LiveRun
from workers.run_values import Held
from workers.rundir import RunDir


def test_a_spec_that_is_given_is_not_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only a run that was adopted has it in its directory alone."""
    held = Held(job_id=1, token="1.a", devices=(RunDevice(uuid="dev-0", lease_bytes=1),))
    run = LiveRun(held=held, directory=RunDir.create(tmp_path, held, "a spec"), since_s=0.0)
    read: list[RunDir] = []
    monkeypatch.setattr(after_end, "_spec_of", read.append)

    ends = AfterEnd(JobQueue("unix:///nowhere"))

    ends.ended(run, JobState.SUCCEEDED, Ending.from_status(0), make_spec())
    assert [] == read

    ends.ended(run, JobState.SUCCEEDED, Ending.from_status(0))
    assert [run.directory] == read
