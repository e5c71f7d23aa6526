"""The statuses of refusals, as any program sees them: who must log in, who may not, and what no route knows."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import quote

import pytest
from service_fixtures import ServedSite, ask, mine, serving

from gpuqueue.client import Client
from gpuqueue.model.access_token import TokenRequest

LISTS = (
    "/jobs",
    "/job-choice",
    "/job-choice?user=bob",
    "/ended-job-choice",
    "/job-labels?id=1",
    "/job-names?word=1-9",
    "/history",
    "/history?text=x",
    "/history/folded",
    "/history/1/known",
    "/history/1/never-began",
    "/stats",
    "/stats/course",
    "/stats/learning",
    "/devices",
    "/limits",
    "/streams/jobs",
    "/streams/devices",
    "/tokens",
    "/audit",
    "/notification-senders",
    "/notification-trouble",
    "/snapshots/limits",
    "/me",
)


@pytest.fixture
def owner(served: ServedSite) -> Iterator[Client]:
    """Return a client of this account, an admin, on the machine of the service."""
    with served.client("unix") as opened:
        yield opened


@pytest.mark.parametrize("path", LISTS)
def test_no_list_is_empty_for_a_caller_who_must_log_in(served: ServedSite, owner: Client, path: str) -> None:
    """An empty list would say that there is nothing. A worker host has no right of a person either."""
    host = owner.access.make_token(TokenRequest(host="nodeB")).text

    for token in (None, host):
        status, problem = ask(served, path, token)
        assert (401, "NotAuthenticated", 5) == (status, problem["error"], problem["exit_code"])


def test_no_wait_is_empty_for_a_caller_who_must_log_in(served: ServedSite) -> None:
    """A wait for no job at all is refused as well."""
    assert 401 == ask(served, "/jobs/wait", method="POST", body={"jobs": [], "timeout_s": 0})[0]


@pytest.mark.full
def test_a_site_that_is_open_answers_callers_without_an_account() -> None:
    """They see the jobs that the site shows to them. A search by text finds one's own jobs only, and they have none."""
    with serving(GPUQUEUE_ACCESS="see-jobs=anonymous") as site:
        assert (200, []) == (ask(site, "/jobs")[0], ask(site, "/jobs")[1]["jobs"])
        assert 401 == ask(site, "/history")[0]
    with serving(GPUQUEUE_ACCESS="see-site=anonymous see-jobs=anonymous") as site:
        assert (200, []) == (ask(site, "/history")[0], ask(site, "/history")[1]["records"])
        assert 401 == ask(site, "/history?text=x")[0]
        assert 401 == ask(site, "/history/folded?text=x")[0]


def test_tokens_say_whether_to_log_in(served: ServedSite, owner: Client) -> None:
    """Without an account 401, without the right 403. A revoked token answers with its time, and keeps the first one."""
    bobs = mine(served, "bobs")
    made = owner.access.make_token()
    path = f"/tokens/{made.token.id}"

    assert 401 == ask(served, "/tokens", method="POST", body={})[0]
    assert 401 == ask(served, path, method="DELETE")[0]
    assert 403 == ask(served, "/tokens", bobs, method="POST", body={})[0], "only the socket makes tokens"
    assert 403 == ask(served, "/tokens?everybody=true", bobs)[0]
    assert 409 == ask(served, path, bobs, method="DELETE")[0], "nobody learns which tokens there are"
    first = ask(served, path, mine(served), method="DELETE")
    assert 200 == first[0]
    assert first[1]["revoked_at"]
    assert first == ask(served, path, mine(served), method="DELETE")


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("/jobs?usr=bob", "there is no parameter 'usr': there are limit, user, state, name, tag, pool, after"),
        ("/history?user=bob&command=x", "there is no parameter 'command': there are "),
        ("/streams/jobs?name=x", "there is no parameter 'name': there are user"),
        ("/streams/devices?x=1", "there is no parameter 'x': there are none here"),
        ("/jobs/1/log/stream?wholly=true", "there is no parameter 'wholly': there are "),
        ("/devices?" + quote("\x1b[31m"), "there is no parameter '\\x1b[31m': there are none here"),
        ("/openapi.json?x=1", "there is no parameter 'x': there are none here"),
    ],
)
def test_an_unknown_parameter_is_refused(served: ServedSite, path: str, says: str) -> None:
    """A mistyped filter would find all jobs. The answer names the parameters that there are."""
    status, problem = ask(served, path, mine(served))

    assert 400 == status
    assert problem["detail"].startswith(says)


def test_a_page_has_at_least_one_job(served: ServedSite, owner: Client) -> None:
    """A page without jobs has no last one to continue after. A client that wants none gets none."""
    job = owner.jobs.submit(["true"], mem="1M", env={}, hold=True)

    assert 400 == ask(served, "/jobs?limit=0", mine(served))[0]
    assert [job.id] == [each["id"] for each in ask(served, "/jobs?limit=1", mine(served))[1]["jobs"]]
    assert () == owner.jobs.listing(limit=0).jobs
    owner.jobs.cancel(job.id)
