"""The API bears any request that its own document describes, and shows and changes nothing of others.

Each person sends requests made by schemathesis, about their own jobs and about those of others. The long run sends the
same kind of requests, and more of them.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from api_fuzz import Caller, Person, operations, secrets_taken
from factories import make_offer
from service_fixtures import serving

OPERATIONS = operations()
QUICK, FULL = 2, 20


@pytest.fixture(scope="module")
def people() -> Iterator[dict[str, Person]]:
    """Return alice, bob and ann, who is an admin, at a site of theirs."""
    with serving(GPUQUEUE_ADMINS="ann", GPUQUEUE_ACCESS="", GPUQUEUE_LIMITS="*: open_jobs=none") as site:
        made = {name: Person(name, site) for name in ("alice", "bob", "ann")}
        for each in made.values():
            each.run_some()
        for each in made.values():
            each.queue_some()
        yield made


@pytest.mark.parametrize("examples", [QUICK, pytest.param(FULL, marks=[pytest.mark.full, pytest.mark.timeout(900)])])
@pytest.mark.parametrize(
    "name", ["alice", pytest.param("bob", marks=pytest.mark.full), pytest.param("ann", marks=pytest.mark.full)]
)
def test_any_request_is_answered_as_described(people: dict[str, Person], name: str, examples: int) -> None:
    """No answer is a failure of the service, and each one conforms to the document.

    No user sees a secret of another one, in whatever answer, and no job, no token and no snapshot of another user
    changes.
    """
    who = people[name]
    is_admin = name == "ann"
    others = [] if is_admin else [each for each in people.values() if each is not who]
    names = [str(job) for each in (people.values() if is_admin else [*others, *[who]]) for job in each.jobs]
    before = [each.now() for each in others]
    caller = Caller(
        who, [*names, f"{who.jobs[-1]}_1"], others, [each.token[3:11] for each in others], make_offer().host
    )
    for operation in OPERATIONS:
        caller.fuzz(operation, examples)

    assert before == [each.now() for each in others]
    for each in others:
        assert [] == list(secrets_taken(each.site, each))
        assert [each.address] == each.code()
        answer = each.session.get(f"{each.base_url}/api/v1/me", timeout=30)
        assert each.name == answer.json()["account"]


@pytest.mark.parametrize(
    "path",
    [
        "/job-names?word=5&which=nonsense",
        "/job-labels?id=" + "&id=1" * 20_000,
        "/stats/course?until=0001-01-01T00:01:00Z",
        "/stats?until=0001-01-01T00:01:00Z",
        "/stats/learning?until=0001-01-01T00:01:00Z",
        "/history?since=0001-01-01T00:01:00%2B14:00",
        "/stats?since=9999-12-31T23:59:00-14:00",
    ],
)
def test_what_it_once_found(people: dict[str, Person], path: str) -> None:
    """Such requests are malformed, and no failures of the service.

    A URL that is too long got an answer that was no problem document. Waits for the history took all threads: see
    test_streams.py.
    """
    bob = people["bob"]
    answer = bob.session.get(f"{bob.base_url}/api/v1{path}", timeout=30)

    assert answer.status_code in {400, 431}
    assert ("application/problem+json", 2) == (answer.headers["content-type"], answer.json()["exit_code"])
