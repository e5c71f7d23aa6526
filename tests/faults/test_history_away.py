"""Tests of commands that report the end of a job while the history database is away."""

from __future__ import annotations

import pytest
from bounded import until
from factories import make_spec, must_claim, serve
from site_of_one import Site

from gpuqueue.errors import Refused
from gpuqueue.model.job import Job, JobState


class Enough(Exception):
    """Ends a call that would go on."""


@pytest.fixture(params=[pytest.param("deleted", marks=pytest.mark.full), "dead"])
def away(store_url: str, tmp_path, request: pytest.FixtureRequest):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN201
    """Return a site with a worker and no recorder, whose database file is missing or whose server is dead."""
    dead = {"GPUQUEUE_DATABASE_URL": "postgresql://nobody@127.0.0.1:1/none"} if request.param == "dead" else {}
    site = Site(tmp_path / "state", store_url, **dead)
    site.start_worker()
    yield site
    site.stop()


@pytest.fixture
def idle(store_url: str, tmp_path):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN201
    """Return a site without a worker, a recorder and a history."""
    site = Site(tmp_path / "state", store_url)
    yield site
    site.stop()


def test_the_end_of_a_job_needs_no_history(away: Site) -> None:
    """``run``, ``wait`` and ``logs`` report an end that the store still knows, with the exit code and the output.

    They used to end with exit code 4, although the store had the end of the job.
    """
    ran = away.cli("run", "--mem", "1M", "--", "sh", "-c", "echo hello; exit 3", check=False)
    assert (3, "hello\n") == (ran.returncode, ran.stdout), ran.stderr
    assert "job 1 failed (exit 3)" in ran.stderr

    assert 3 == away.cli("wait", "1", check=False).returncode
    assert "hello\n" == away.cli("logs", "1").stdout
    assert "hello\n" == away.cli("logs", "-f", "1").stdout


def test_an_array_and_its_members(away: Site) -> None:
    """The same holds for a member of an array."""
    array = away.client.jobs.submit(["sh", "-c", "exit 4"], mem="1M", array="0-1").id
    until(lambda: away.client.queue.jobs.get(array).state is JobState.FAILED, what="it has ended")  # type: ignore[union-attr]
    assert 4 == away.cli("wait", f"{array}_1", check=False).returncode


def test_a_run_that_is_claimed_and_has_not_started(idle: Site) -> None:
    """The log of a claimed job is not there yet, and that needs no history.

    ``run`` ended with exit code 4 when it read the job in the moment between the claim and the report of the start.
    """
    serve(idle.queue)
    job = idle.queue.requests.submit(make_spec())
    must_claim(idle.queue)

    polls = []

    def stop_after_polls(job: Job) -> None:
        polls.append(job.state)
        if len(polls) == 4:
            raise Enough

    with pytest.raises(Refused, match="has no log yet"):
        idle.client.logs.path(job.id)
    with pytest.raises(Enough):
        list(idle.client.logs.follow(job.id, seen=stop_after_polls))
    assert [JobState.STARTING] * 4 == polls
