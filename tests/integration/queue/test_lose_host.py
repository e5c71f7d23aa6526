"""An administrator declares a host lost: its jobs are queued again at once."""

from __future__ import annotations

import pytest
from factories import make_offer, must_claim, serve, submit

from gpuqueue.errors import BadRequest, Refused
from gpuqueue.model.job import JobState
from gpuqueue.queue.jobqueue import JobQueue


def test_the_jobs_of_a_lost_host_run_elsewhere_at_once(queue: JobQueue) -> None:
    """A dead machine used to keep its jobs for an hour, though its administrator knew that it was off.

    A job with --no-requeue ends as lost, and a run that was lost too often is held. Other hosts keep their runs.
    """
    serve(queue, make_offer("GPU-0"), make_offer("GPU-far", host="far"))
    jobs = [submit(queue, **more) for more in ({}, {"requeue": False}, {})]
    again, ended, far = must_claim(queue), must_claim(queue), must_claim(queue, "GPU-far", host="far")

    changed = queue.devices.lose_host("nodeA", by="", loss_limit=3, silent_s=0)

    assert {jobs[0]: JobState.QUEUED, jobs[1]: JobState.LOST} == changed
    assert far.token is not None
    assert [0, 0] == [each.allocated_bytes for each in queue.devices.all("nodeA") for _ in (again, ended)]
    assert jobs[0] == must_claim(queue, "GPU-far", host="far").job_id
    assert {jobs[0]: JobState.HELD, jobs[2]: JobState.HELD} == queue.devices.lose_host(
        "far", by="", loss_limit=1, silent_s=0
    )


def test_a_host_that_answers_is_not_lost(queue: JobQueue) -> None:
    """A host with a recent heartbeat, an unknown host, and a caller without the right are refused in one line."""
    serve(queue)
    job = submit(queue)
    must_claim(queue)
    for host, by, wanted, words in (
        ("nodeA", "", Refused, "nodeA answered 0 s ago: it is not lost"),
        ("nodeB", "", BadRequest, "no host nodeB is known"),
        ("nodeA", "bob", Refused, "only an administrator of this site may declare a host lost"),
    ):
        with pytest.raises(wanted, match=words):
            queue.devices.lose_host(host, by=by, loss_limit=3, silent_s=60)

    found = queue.jobs.get(job)
    assert JobState.STARTING is found.state
