"""Tests of real jobs that run more than once, one after the other, or at a given time."""

from __future__ import annotations

import time
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest
from bounded import until
from factories import make_spec
from site_of_one import Site

from gpuqueue.model.dependencies import Dependency, Waits
from gpuqueue.model.job import JobState, WaitReason
from gpuqueue.model.retries import Retries
from gpuqueue.text.units import MIB


def first_then(effects: Path, code: int) -> tuple[str, ...]:
    """Return a command that exits with *code* the first time, and succeeds the second time."""
    return ("sh", "-c", f"echo run; echo run >> {effects}; test $(wc -l < {effects}) -gt 1 || exit {code}")


@pytest.mark.full
@pytest.mark.parametrize(("code", "retries"), [(75, Retries()), (3, Retries(times=1))])
def test_a_job_runs_again_and_each_run_has_its_ending(site: Site, tmp_path: Path, code: int, retries: Retries) -> None:
    """A job that asks for another run, or has retries, runs again, and each run has its ending.

    `wait` and `logs` cover all runs.
    """
    site.start_recorder()
    site.start_worker()
    job = site.queue.requests.submit(
        make_spec(argv=first_then(tmp_path / "effects", code), mem_bytes=MIB, retries=retries)
    )

    def waits_again() -> bool:
        found = site.queue.jobs.get(job.id)
        return found is not None and found.reason is (WaitReason.REQUEUE if code == 75 else WaitReason.RETRY)

    until(waits_again, what="the first run's end")
    assert ("again in " if code == 75 else "retry in ") in site.cli("queue").stdout
    site.cli("edit", str(job.id), "--begin", "now")

    assert 0 == site.cli("wait", str(job.id)).returncode
    assert "run\n" == site.cli("logs", str(job.id)).stdout
    record = site.until_recorded(job.id)
    assert [f"exit {code}", "exit 0"] == [str(run.ending) for run in record.runs]
    assert (JobState.SUCCEEDED, 2, 0) == (record.job.state, record.job.attempt, record.job.losses)
    assert (int(code == 75), retries.times) == (record.job.requeues, record.job.retries)
    shown = site.cli("show", str(job.id)).stdout
    assert f"exit {code}" in shown
    assert "exit 0" in shown
    until(lambda: not list(site.settings.runs_dir.glob("[0-9]*/*/claim")), what="every run directory is settled")


@pytest.mark.parametrize(("setting", "requeues"), [("0.01s", 0), ("1h", 1), ("none", 1)])
def test_the_requeue_after_a_long_run_does_not_count(site: Site, tmp_path: Path, setting: str, requeues: int) -> None:
    """A job that saves a checkpoint before each time limit was held after five of them. A setting says what is long."""
    site.environ["GPUQUEUE_REQUEUE_FREE_AFTER"] = setting
    site.start_worker()
    argv = ("sh", "-c", f"echo run >> {tmp_path / 'effects'}; sleep 0.05; exit 75")
    job = site.queue.requests.submit(make_spec(argv=argv, mem_bytes=MIB))

    def waits_again() -> bool:
        found = site.queue.jobs.get(job.id)
        return found is not None and found.reason is WaitReason.REQUEUE

    until(waits_again, what="the run's end")
    waiting = site.queue.jobs.get(job.id)
    assert waiting is not None
    assert (requeues, 1) == (waiting.requeues, waiting.attempt)


@pytest.mark.full
def test_jobs_run_one_after_the_other(site: Site, tmp_path: Path) -> None:
    """Jobs that depend on each other run in the order of their dependencies."""
    site.start_recorder()
    effects = tmp_path / "effects"
    ids: list[int] = []
    for word in "abcd":
        waits = Waits(after=(Dependency(ids[-1]),) if ids else ())
        argv = ("sh", "-c", f"echo {word} >> {effects}")
        ids.append(site.queue.requests.submit(make_spec(argv=argv, mem_bytes=MIB, waits=waits)).id)

    site.start_worker()

    assert 0 == site.cli("wait", *map(str, ids)).returncode
    assert "a b c d" == " ".join(effects.read_text().split())


@pytest.mark.full
def test_a_job_starts_soon_after_its_time(site: Site) -> None:
    """A job with a begin time starts at the worker's next poll after it, and not before."""
    site.start_recorder()
    site.start_worker()
    begin_at = datetime.now(timezone.utc) + timedelta(seconds=1.5)
    job = site.queue.requests.submit(make_spec(argv=("true",), mem_bytes=MIB, waits=Waits(begin_at=begin_at)))
    asked_s = time.monotonic()

    record = site.until_recorded(job.id)

    assert record.job.started_at is not None
    assert record.job.started_at >= begin_at - timedelta(milliseconds=1)
    assert 1.0 < time.monotonic() - asked_s
