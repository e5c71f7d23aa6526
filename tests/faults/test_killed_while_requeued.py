"""Tests of a worker that is killed around the end of a run that asks for another run."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest
from bounded import until
from factories import make_spec
from site_of_one import Site

from gpuqueue.model.job import JobState, WaitReason
from gpuqueue.text.units import MIB

DIE_AT = Path(__file__).parents[1] / "support" / "die_at.py"


STEPS = pytest.mark.parametrize(
    "step",
    [
        "workers.runner:read_exit",  # the run has ended and is not reported
        "workers.run.directory:RunDir.report",  # the queue has the report, the directory does not say so yet
        "workers.run.directory:RunDir.settle",  # the history has the end, the directory is not settled
    ],
)


def kill_at(site: Site, step: str) -> None:
    """Start a worker that is killed at a step, and then one that goes on."""
    command = [sys.executable, str(DIE_AT), "kill", step, "run", "--device", "0", "--plain"]
    killed = subprocess.run(command, env=site.environ, capture_output=True, text=True, timeout=60, check=False)
    assert -signal.SIGKILL == killed.returncode, killed.stderr
    site.start_worker()


@pytest.mark.full
@STEPS
def test_a_requeue_request_is_recorded_once(site: Site, tmp_path: Path, step: str) -> None:
    """After SIGKILL at any of these steps the job is requeued once, runs twice, and is never lost."""
    site.start_recorder()
    effects = tmp_path / "effects"
    words = f"echo run >> {effects}; test $(wc -l < {effects}) -gt 1 || exit 75"
    job = site.queue.requests.submit(make_spec(argv=("sh", "-c", words), mem_bytes=MIB))

    kill_at(site, step)

    def waits_or_is_over() -> bool:
        found = site.client.jobs.get(job.id)
        return found.state.is_end or found.reason is WaitReason.REQUEUE

    until(waits_or_is_over, what="the first run's end")
    site.cli("edit", str(job.id), "--begin", "now", check=False)
    record = site.until_recorded(job.id)
    assert JobState.SUCCEEDED is record.job.state
    assert ["exit 75", "exit 0"] == [str(run.ending) for run in record.runs]
    assert (1, 0, 0) == (record.job.requeues, record.job.retries, record.job.losses)
    assert ["run", "run"] == effects.read_text().split()
    until(lambda: not list(site.settings.runs_dir.glob("[0-9]*/*/claim")), what="every run directory is settled")


@pytest.mark.full
@STEPS
def test_a_run_that_lacked_memory_is_followed_by_one_other(site: Site, tmp_path: Path, step: str) -> None:
    """After SIGKILL at any of these steps the job gets more memory once, and its program runs twice."""
    site.start_recorder()
    effects = tmp_path / "effects"
    words = f"echo run >> {effects}; test $(wc -l < {effects}) -gt 1 || {{ echo CUDA out of memory; exit 1; }}"
    job = site.queue.requests.submit(make_spec(argv=("sh", "-c", words), mem_bytes=64 * MIB))

    kill_at(site, step)

    record = site.until_recorded(job.id)
    assert JobState.SUCCEEDED is record.job.state
    first, *others = [run.devices[0].lease_bytes for run in record.runs]
    assert (64 * MIB, {128 * MIB}) == (first, {*others})  # the killed worker may have claimed the job again already
    assert (1, 0) == (record.job.mem_retries, record.job.retries)
    assert ["run", "run"] == effects.read_text().split()
