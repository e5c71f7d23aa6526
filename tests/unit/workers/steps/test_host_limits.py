"""Tests of the step that refuses jobs whose limits this host cannot set."""

from __future__ import annotations

from pathlib import Path

import pytest
from factories import make_spec

from gpuqueue.model.run import RunDevice
from gpuqueue.queue.evidence import NO_EVIDENCE
from workers.measure.active_runs import LiveRun
from workers.run.directory import Held, RunDir
from workers.runner import check_limits
from workers.steps.conclusion import NotStarted


def test_a_host_without_a_launcher_is_excluded_for_a_job_with_limits(tmp_path: Path) -> None:
    """The job has not failed: another host may have a launcher. Jobs without limits run."""
    held = Held(job_id=1, token="1.a", devices=(RunDevice(uuid="dev-0", lease_bytes=1),))
    run = LiveRun(held=held, directory=RunDir.create(tmp_path / "runs", held), since_s=0.0, spec=make_spec())
    assert run is check_limits(run, None)

    for limits in ({"cpus": 2}, {"cpu_mem_bytes": 2**30}):
        run.spec = make_spec(**limits)
        assert run is check_limits(run, "/run/launcher.sock")
        with pytest.raises(NotStarted, match="this host cannot limit host memory and processors of jobs") as refused:
            check_limits(run, None)
        assert (NO_EVIDENCE, False) == (refused.value.host_lacks, refused.value.host_failed)
