"""A repeating job whose service is killed with SIGKILL at each step: its time has one job."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest
from bounded import until
from site_of_one import Site

from gpuqueue.model.job_request import JobRequest
from gpuqueue.model.repeating import RepeatingJob

DIE_AT = Path(__file__).parents[1] / "support" / "die_at.py"
#: The steps at a time.
STEPS = (
    "gpuqueue.queue.requests:Requests.take_id",  # nothing is done
    "gpuqueue.history.database:HistoryDatabase.begin_repeating",  # an id is taken
    "gpuqueue.service.repeating:repeated",  # the id is noted
    "gpuqueue.queue.requests:Requests.submit",  # the audit log has the submit
    "gpuqueue.history.database:HistoryDatabase.settle_repeating",  # the job is queued
)
#: A recorder that does not leave a submit to the one that was killed for long.
NEXT = "import gpuqueue.service.repeating as r; r.LEFT_S = 0.2; from workers.cli import main; main()"


@pytest.mark.parametrize("step", [STEPS[2], STEPS[4], *(pytest.param(each, marks=pytest.mark.full) for each in STEPS)])
def test_a_recorder_killed_at_any_step_of_a_time_submits_it_once(site: Site, step: str) -> None:
    site.make_tables()
    site.start_worker()
    request = JobRequest(["true"], mem="1M", device="any", name="nightly")
    site.client.cron.add("0 0 29 2 *", request)
    site.client.cron.run("nightly")
    killed = subprocess.run(
        [sys.executable, str(DIE_AT), "kill", step, "record"],
        env=site.environ,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert -signal.SIGKILL == killed.returncode, killed.stderr

    site.spawn_command([sys.executable, "-c", NEXT, "record"])

    def settled() -> RepeatingJob | None:
        (found,) = site.client.cron.list()
        return found if found.last_job_id is not None else None

    found = until(settled, timeout_s=60.0, what=f"the job\n{site.log()[-2000:]}")
    assert found is not None
    assert found.last_job_id is not None
    site.until_recorded(found.last_job_id)
    jobs = [each.job.id for each in site.client.history.search(name="nightly", limit=10)]
    assert ([found.last_job_id], 0) == (jobs, found.missed)
