"""The tables of the page, at a real service: they follow the queue, and show each caller what it may see."""

from __future__ import annotations

import http.client
import json
import ssl
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
from bounded import until
from factories import must_claim, serve
from service_fixtures import ServedSite, ask, mine, serving

from gpuqueue.client import Client
from gpuqueue.model.job import JobState
from gpuqueue.model.run import Ending, RunDevice


@pytest.fixture
def owner(served: ServedSite) -> Iterator[Client]:
    """Return a client of this account. Nothing is open."""
    with served.client("direct") as direct:
        for each in direct.jobs.list():
            direct.jobs.cancel(each.id)
    serve(served.queue)
    with served.client("unix") as client:
        yield client


def table(served: ServedSite, query: str = "", token: str = "mine") -> dict[str, Any]:
    """Return the table of the queue for the owner of a token."""
    status, found = ask(served, f"/queue-table{query}", mine(served, token))
    assert 200 == status, found
    return found


def until_ids(served: ServedSite, *expected: int) -> dict[str, Any]:
    """Wait until the table shows exactly these jobs."""

    def there() -> bool:
        return [*expected] == [each["id"] for each in table(served)["rows"]]

    until(there, what=f"the jobs {expected}")
    return table(served)


def test_the_table_follows_the_queue(owner: Client, served: ServedSite) -> None:
    """New jobs, changes and ends are there within a second or two, by hand and by workers."""
    one, two = (owner.jobs.submit(["true"], mem="1M", name=name, tags=["night"]) for name in ("one", "two"))
    shown = until_ids(served, one.id, two.id)
    assert (2, {"queued": 2}, ["night"]) == (shown["total"], shown["counts"], shown["tags"])
    owner.jobs.hold(two.id)
    until(lambda: table(served)["counts"] == {"queued": 1, "held": 1}, what="the hold")

    claim = must_claim(served.queue)
    device = RunDevice(uuid="GPU-0", lease_bytes=2**20)
    served.queue.runs.started(one.id, claim.token, lease_s=300, log_path="/log", devices=(device,))
    until(lambda: table(served)["rows"][0]["state"] == "running", what="the start")
    owner.jobs.note(one.id, "look <b>here</b>")
    until(lambda: table(served)["rows"][0]["note"] == "look <b>here</b>", what="the note")
    overview = ask(served, "/overview", mine(served))[1]
    assert ["one"] == [each["name"] for each in overview["devices"][0]["runs"]]
    owner.jobs.cancel(two.id)
    until_ids(served, one.id)
    served.queue.runs.finish(
        one.id, claim.token, state=JobState.SUCCEEDED, ending=Ending.from_status(0), duration_s=1.0, devices=(device,)
    )
    until_ids(served)


def test_an_unchanged_table_is_not_sent_again(owner: Client, served: ServedSite) -> None:
    """The same tag yields no content. A change yields another tag."""
    job = owner.jobs.submit(["true"], mem="1M", hold=True)
    until_ids(served, job.id)

    def answer(tag: str | None) -> tuple[int, str]:
        context = ssl.create_default_context(cafile=served.directory / "cert.pem")
        headers = {"Authorization": f"Bearer {mine(served)}", **({"If-None-Match": tag} if tag else {})}
        with closing(http.client.HTTPSConnection("127.0.0.1", served.port, context=context, timeout=60)) as link:
            link.request("GET", "/api/v1/queue-table", None, headers)
            got = link.getresponse()
            content = got.read()
            assert (not content) == (got.status == 304)
            return got.status, got.headers["ETag"]

    first, at = answer(None), table(served)["at"]
    assert (304, first[1]) == answer(first[1])
    until(lambda: table(served)["at"] > at, what="a later time in the whole answer")
    assert first[1] == answer(None)[1]
    owner.jobs.note(job.id, "new")
    until(lambda: answer(first[1])[0] == 200, what="another tag")


def test_others_see_the_row_and_no_argument(owner: Client, served: ServedSite) -> None:
    """A row has nothing that only the owner may see."""
    job = owner.jobs.submit(["true", "private"], mem="1M", env={"KEY": "private"}, hold=True)
    until_ids(served, job.id)
    found = table(served, token="bobs")
    assert [job.id] == [each["id"] for each in found["rows"]]
    assert "private" not in json.dumps(found)


def test_a_waiting_job_has_a_place(owner: Client, served: ServedSite) -> None:
    """It counts the jobs before it. A job that does not wait has none."""
    jobs = [owner.jobs.submit(["true"], mem="1M") for _ in range(3)]
    held = owner.jobs.submit(["true"], mem="1M", hold=True)
    until_ids(served, *[each.id for each in jobs], held.id)
    query = "&".join(f"id={each.id}" for each in (*jobs, held))
    status, places = ask(served, f"/job-places?{query}", mine(served))
    assert (200, [0, 1, 2]) == (status, [places[str(each.id)]["ahead"] for each in jobs])
    assert str(held.id) not in places


def test_filters_and_bad_values(owner: Client, served: ServedSite) -> None:
    """The query chooses, and a wrong value is named."""
    job = owner.jobs.submit(["true"], mem="1M", name="wanted", hold=True)
    until_ids(served, job.id)
    assert 1 == table(served, "?text=want&state=held&sort=mem&reverse=true&limit=1")["total"]
    assert 0 == table(served, "?state=running")["total"]
    for query in ("state=gone", "sort=colour", "limit=501", "offset=-1", "wish=1"):
        assert 400 == ask(served, f"/queue-table?{query}", mine(served))[0], query


def test_without_an_account_nothing_is_shown(served: ServedSite) -> None:
    """The tables need an account, unless the site shows them to anybody."""
    for path in ("/queue-table", "/overview", "/job-places?id=1"):
        assert 401 == ask(served, path)[0], path


@pytest.mark.full
def test_a_site_may_show_its_tables_to_anybody_and_jobs_to_their_owners() -> None:
    """Then a caller without an account sees the devices and their memory, and no name of a job."""
    with serving(GPUQUEUE_ACCESS="see-site=anonymous see-jobs=owner") as site, site.client("unix") as owner:
        owner.jobs.submit(["true"], mem="1M", name="secret")
        claim = must_claim(site.queue)
        device = RunDevice(uuid="GPU-0", lease_bytes=2**20)
        site.queue.runs.started(claim.job_id, claim.token, lease_s=300, log_path="/log", devices=(device,))
        until(lambda: ask(site, "/overview")[1]["devices"][0]["runs"], what="the run")
        overview = ask(site, "/overview")[1]
        assert ({}, None) == (overview["counts"], overview["devices"][0]["runs"][0]["name"])
        assert "secret" not in json.dumps(overview)
        assert 0 == ask(site, "/queue-table")[1]["total"]
        assert 0 == ask(site, "/queue-table", mine(site, "bobs"))[1]["total"]
        retries = f"/jobs/{claim.job_id}/retries"
        assert (200, 403) == (ask(site, retries, mine(site))[0], ask(site, retries, mine(site, "bobs"))[0])
