"""Tests of a stopped recorder: followers of a job see its output and its exit code, which the store knows."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from bounded import until
from factories import make_spec
from site_of_one import Site

from gpuqueue.model.job import JobState
from gpuqueue.model.run import Ending
from gpuqueue.text.units import MIB


@pytest.mark.full
def test_output_and_exit_code_come_from_the_store(site: Site) -> None:
    """The output is shown, and the exit code that the history does not have yet comes from the store.

    `wait` used to say that a job which had failed had not run, showed no output, and exited with 1.
    """
    recorder = site.start_recorder()
    site.start_worker()
    recorder.send_signal(signal.SIGSTOP)
    fails = site.queue.requests.submit(make_spec(argv=("sh", "-c", "echo one; exit 7"), mem_bytes=MIB)).id
    works = site.queue.requests.submit(make_spec(argv=("echo", "two"), mem_bytes=MIB)).id
    for job_id, state in ((fails, JobState.FAILED), (works, JobState.SUCCEEDED)):
        site.until_state(job_id, state)

    assert ["one\n", "two\n"] == [site.cli("logs", str(job_id)).stdout for job_id in (fails, works)]
    assert 7 == site.cli("wait", str(fails), check=False).returncode
    assert 0 == site.cli("wait", str(works)).returncode
    recorder.send_signal(signal.SIGCONT)
    site.until_recorded(fails)
    assert 7 == site.cli("wait", str(fails), check=False).returncode


def test_show_has_the_end_that_the_history_lacks(site: Site, tmp_path: Path) -> None:
    """The history has the start of the run, and the store its end.

    Regression: ``show`` after ``wait`` showed the run without its ending and without its memory if the recorder was
    slow.
    """
    recorder = site.start_recorder()
    site.start_worker()
    flag = tmp_path / "flag"
    waits = f"until test -e {flag}; do sleep 0.05; done; exit 7"
    job_id = site.queue.requests.submit(make_spec(argv=("sh", "-c", waits), mem_bytes=MIB)).id

    def has_start() -> bool:
        record = site.client.database.get(job_id)
        return record is not None and record.last_run is not None and record.last_run.log_path is not None

    until(has_start, what="the start of the run in the history")
    recorder.send_signal(signal.SIGSTOP)
    flag.touch()
    site.until_state(job_id, JobState.FAILED)

    (run,) = site.client.jobs.show(job_id).runs

    assert Ending.from_status(7) == run.ending
    assert (run.duration_s or 0) > 0
    recorder.send_signal(signal.SIGCONT)
