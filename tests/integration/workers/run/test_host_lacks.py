"""A job whose directory or program is missing on its only host is held, and runs once that is mended."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from site_of_one import Site

from gpuqueue.model.job import JobState, WaitReason


def test_a_job_whose_directory_is_missing_waits_for_it(site: Site, tmp_path: Path) -> None:
    """Such a job failed for good within milliseconds. It is held with the reason, and a release runs it."""
    place = tmp_path / "proj"
    place.mkdir()
    submitted = site.cli("submit", "--mem", "1M", "-C", str(place), "--", "true")
    job_id = int(submitted.stdout)
    place.rmdir()
    site.start_recorder()
    site.start_worker()

    held = site.until_state(job_id, JobState.HELD)

    reason = f"cannot enter the working directory {place}: No such file or directory"
    assert WaitReason.CANNOT_START is held.reason
    assert held.because == f"no host can start it: {site.settings.host}: {reason}"
    output = site.cli("why", str(job_id)).stdout
    assert f"held: {held.because}. Repair that, then: gpuqueue release {job_id}" in output
    assert f"it could not start the job: {reason}" in output
    assert held.because in site.cli("show", str(job_id)).stdout
    assert (
        reason in json.loads(site.cli("why", "--json", str(job_id)).stdout)["explanation"]["devices"][0]["cannot_start"]
    )
    place.mkdir()
    site.cli("release", str(job_id))
    record = site.until_recorded(job_id)
    assert (JobState.SUCCEEDED, 1, None) == (record.job.state, record.job.attempt, record.job.because)


@pytest.mark.full
def test_run_with_a_typing_error_ends(site: Site) -> None:
    """``run`` of an unknown program reports the reason and ends. The job is cancelled, and other jobs run.

    After three such jobs in a row ``gpus`` and ``doctor`` name the host.
    """
    site.start_recorder()
    site.start_worker()
    for job_id in (1, 2, 3):
        done = site.cli("run", "--mem", "1M", "--", "pyhton", "x.py", check=False)
        why = f"{site.settings.host}: cannot start pyhton: No such file or directory"
        line = f"job {job_id} was cancelled: no host can start it: {why}"
        assert (1, True) == (done.returncode, line in done.stderr), done.stderr
        assert JobState.CANCELLED is site.client.jobs.get(job_id).state

    line = f"host {site.settings.host} could not start 3 jobs in a row, the last one: cannot start pyhton: No such"
    assert line in site.cli("gpus").stdout
    found = json.loads(site.cli("doctor", "--json", check=False).stdout)["findings"]
    assert any("it could not start 3 jobs in a row" in each["seen"] for each in found)
    assert 0 == site.cli("run", "--mem", "1M", "--", "sh", "-c", "sleep 0.1").returncode


@pytest.mark.full
def test_a_limit_that_the_only_host_cannot_enforce_is_refused(site: Site) -> None:
    """Each such job was held, a release changed nothing, and an edit of an array was refused."""
    site.make_tables()
    site.start_worker()

    for words in (("--cpus", "2"), ("--cpu-mem", "1G", "--array", "0-3")):
        done = site.cli("submit", "--mem", "1M", *words, "--", "true", check=False)
        assert (2, "") == (done.returncode, done.stdout)
        assert "no host can limit processors and host memory of this job" in done.stderr
    assert [] == site.client.jobs.list()
