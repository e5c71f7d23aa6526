"""How often a job runs again after a lack of device memory: the same over the store and over the service."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
from factories import must_claim, serve
from service_fixtures import ServedSite, serving

from gpuqueue.client import Client
from gpuqueue.errors import BadRequest
from gpuqueue.model.job import JobState
from gpuqueue.model.mem_source import Shortage
from gpuqueue.model.retries import Retries
from gpuqueue.model.run import Ending, EndingKind
from gpuqueue.text.units import GIB


@pytest.fixture(scope="module")
def served() -> Iterator[ServedSite]:
    """Return a site whose jobs run again once."""
    with serving(GPUQUEUE_MEM_RETRIES="1") as site:
        yield site


@pytest.fixture(params=["direct", "unix"])
def client(served: ServedSite, request: pytest.FixtureRequest) -> Iterator[Client]:
    """Return a client of the site."""
    serve(served.queue)
    if request.param == "direct":
        made = Client(replace(served.settings, mem_retries=1))
    else:
        made = served.client(request.param)
    with made:
        yield made


def test_the_site_decides_unless_the_submitter_does(client: Client) -> None:
    """A submit without a number has that of the site; 0 is a number; an edit changes it."""
    job = client.jobs.submit("/bin/true", mem="1G", hold=True)
    assert 1 == client.jobs.get(job.id).spec.retries.most_mem_times
    assert 0 == client.jobs.submit("/bin/true", mem="1G", mem_retries=0, hold=True).spec.retries.most_mem_times
    assert Retries(times=2, mem_times=7) == client.jobs.edit(job.id, mem_retries=7, retries=2).spec.retries
    assert Retries(mem_times=7) == client.jobs.edit(job.id, retries=0).spec.retries
    for wrong in (-1, 101, "x"):
        with pytest.raises(BadRequest, match="mem_retries must be a whole number from 0 to 100, not"):
            client.jobs.submit("/bin/true", mem="1G", mem_retries=wrong)
        with pytest.raises(BadRequest, match="mem_retries must be a whole number"):
            client.jobs.edit(job.id, mem_retries=wrong)
    with pytest.raises(BadRequest, match="leave out --mem-retries or --no-requeue"):
        client.jobs.submit("/bin/true", mem="1G", mem_retries=1, requeue=False)
    assert client.jobs.submit("/bin/true", mem="1G", requeue=False, hold=True).id


def test_the_job_has_its_new_memory_where_that_came_from_and_the_count(served: ServedSite, client: Client) -> None:
    job_id = client.jobs.submit("/bin/true", mem="3G", priority="urgent").id
    run = must_claim(served.queue)
    died = Ending.stopped(EndingKind.OUT_OF_MEMORY, 1)
    served.queue.runs.finish(
        job_id, run.token, state=JobState.FAILED, ending=died, duration_s=1.0, devices=(), shortage=Shortage()
    )

    job = client.jobs.get(job_id)

    actual = (job.state, job.spec.mem_bytes, job.spec.mem_source, job.mem_retries)
    assert (JobState.QUEUED, 6 * GIB, "out_of_memory", 1) == actual
    assert 7 * GIB == client.jobs.edit(job_id, mem="7G").spec.mem_bytes
    client.jobs.cancel(job_id)
