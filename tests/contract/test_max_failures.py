"""After how many failures the rest of an array is held: the same over the store and over the service."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
from factories import end, must_claim, serve
from service_fixtures import ServedSite, serving

from gpuqueue.client import Client
from gpuqueue.errors import BadRequest
from gpuqueue.model.job import Job, JobState


@pytest.fixture(scope="module")
def served() -> Iterator[ServedSite]:
    """Return a site whose arrays are held after two failures."""
    with serving(GPUQUEUE_MAX_FAILURES="2") as site:
        yield site


@pytest.fixture(params=["direct", "unix"])
def client(served: ServedSite, request: pytest.FixtureRequest) -> Iterator[Client]:
    """Return a client of the site."""
    serve(served.queue)
    if request.param == "direct":
        made = Client(replace(served.settings, max_failures=2))
    else:
        made = served.client(request.param)
    with made:
        yield made


def after_failures(served: ServedSite, client: Client, count: int, **asked: int) -> Job:
    """Return an array of four members of which so many have failed, and cancel the rest."""
    job = client.jobs.submit(["true"], mem="1M", array="0-3", **asked)
    for _ in range(count):
        end(served.queue, must_claim(served.queue), 1)
    found = client.jobs.get(job.id)
    client.jobs.cancel(job.id)
    return found


def test_the_site_decides_unless_the_submitter_does(served: ServedSite, client: Client) -> None:
    """A submit without a number has that of the site; 0 is a number. The reason is the same over each connection."""
    held = after_failures(served, client, 2)
    assert (JobState.HELD, "2 of its members failed and none succeeded") == (held.state, held.because)
    assert JobState.HELD is after_failures(served, client, 1, max_failures=1).state
    assert JobState.QUEUED is after_failures(served, client, 3, max_failures=0).state


def test_a_release_says_why_the_rest_was_held(served: ServedSite, client: Client) -> None:
    """The answer has the reason, of the array and of one member. A user who holds a job gives none."""
    job = client.jobs.submit(["true"], mem="1M", array="0-3", max_failures=1)
    end(served.queue, must_claim(served.queue), 1)
    why = "1 of its members failed and none succeeded"

    assert why == client.jobs.release(f"{job.id}_2").because
    assert why == client.jobs.release(job.id).because
    client.jobs.hold(job.id)
    assert None is client.jobs.release(job.id).because
    client.jobs.cancel(job.id)


def test_a_number_that_makes_no_sense_is_refused(client: Client) -> None:
    """Nothing is queued, and a single job has no rest that could be held."""
    for wrong in (-1, 1_000_001, "x"):
        with pytest.raises(BadRequest, match=r"max.failures must be"):
            client.jobs.submit(["true"], mem="1M", array="0-3", max_failures=wrong)
    with pytest.raises(BadRequest, match="a number of failures needs an array or a sweep"):
        client.jobs.submit(["true"], mem="1M", max_failures=1)
