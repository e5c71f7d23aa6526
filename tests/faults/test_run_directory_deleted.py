"""Tests of runs whose directory is deleted, by a user or by the job itself.

Such a run is ended and recorded, and never runs beside another copy of its job.
"""

from __future__ import annotations

import shutil
import signal
from pathlib import Path

import pytest
from bounded import until
from factories import make_spec
from site_of_one import Site

from gpuqueue.model.job import JobState
from gpuqueue.system.process import ProcessIdentity
from gpuqueue.text.units import MIB


def delete(directory: Path) -> None:
    """Delete *directory* while a run writes there."""
    until(
        lambda: shutil.rmtree(directory, ignore_errors=True) or not directory.exists(), what="the end of the directory"
    )


def start_job(site: Site, reported: Path, *, requeue: bool) -> tuple[int, Path, ProcessIdentity, ProcessIdentity]:
    """Run a job that writes its pid to *reported*; return its id, its directory, its first process and its shim."""
    script = f"echo $$ >> {reported}; sleep 100"
    job_id = site.queue.requests.submit(make_spec(argv=("sh", "-c", script), mem_bytes=MIB, requeue=requeue)).id
    site.until_state(job_id, JobState.RUNNING)
    (directory,) = (site.settings.runs_dir / str(job_id)).iterdir()
    until(reported.exists, what="its first word")
    until(lambda: len((directory / "pid").read_text().splitlines()) > 1, what="its process")
    lines = (directory / "pid").read_text().splitlines()
    shim, process = (ProcessIdentity.parse(line) for line in lines)
    assert shim is not None
    assert process is not None
    return job_id, directory, process, shim


def test_a_job_whose_directory_is_deleted_is_ended_and_reported(site: Site, tmp_path: Path) -> None:
    """A run whose directory is deleted is ended and recorded as lost.

    Such a run used to go on for ever: its shim waited for the disk to come back.
    """
    site.start_recorder()
    worker = site.start_worker()
    job_id, directory, process, shim = start_job(site, tmp_path / "told", requeue=False)

    delete(directory)

    record = site.until_recorded(job_id)
    assert JobState.LOST is record.job.state
    assert "lost: its run directory was deleted" == str(record.last_run.ending)  # type: ignore[union-attr]
    until(lambda: not process.alive() and not shim.alive(), what="the end of both")
    assert worker.poll() is None


def test_a_job_that_deletes_its_own_directory_ends(site: Site) -> None:
    """A job that deletes its own directory is lost, and its allocated memory is free again."""
    site.start_recorder()
    site.start_worker()
    argv = ("sh", "-c", 'rm -rf "$GPUQUEUE_RUN_DIR"; sleep 100')
    job_id = site.queue.requests.submit(make_spec(argv=argv, mem_bytes=MIB, requeue=False)).id

    assert JobState.LOST is site.until_recorded(job_id).job.state
    assert 0 == site.queue.devices.all()[0].allocated_bytes


@pytest.mark.full
@pytest.mark.parametrize("frozen", [False, True])
def test_it_is_gone_before_another_worker_runs_it_again(site: Site, tmp_path: Path, *, frozen: bool) -> None:
    """A run without a directory is ended before its job runs again.

    Two copies used to be alive at once: the next worker saw a lease without a directory, and took it for a claim
    without a process.
    """
    site.start_recorder()
    worker = site.start_worker()
    reported = tmp_path / "told"
    job_id, directory, process, shim = start_job(site, reported, requeue=True)
    if frozen:
        shim.send(signal.SIGSTOP)  # the shim cannot notice the deletion itself
    site.end(worker, signal.SIGKILL)
    delete(directory)

    site.start_worker()

    until(lambda: len(reported.read_text().split()) > 1, what="the second run")
    assert not process.alive(), "two copies"
    shim.send(signal.SIGKILL)
    site.queue.jobs.cancel(job_id)
    site.until_recorded(job_id)
