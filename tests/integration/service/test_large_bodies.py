"""Large bodies of requests: who may send them is checked before they are parsed, and they count once."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from service_fixtures import ServedSite, ask, mine, serving

#: A body that is larger than any that is parsed before the caller is known, and of no known kind.
LARGE = {"surprise": "x" * 2**20}


@pytest.fixture(scope="module")
def served() -> Iterator[ServedSite]:
    """Return a site where an account may send one request per second, and two at once."""
    with serving(GPUQUEUE_REQUEST_RATE="1") as site:
        yield site


@pytest.mark.full
@pytest.mark.parametrize("path", ["/jobs", "/snapshots", "/snapshots/contents", "/host/join"])
@pytest.mark.parametrize("token", [None, "wrong"])
def test_a_large_body_is_parsed_for_a_known_caller_only(served: ServedSite, path: str, token: str | None) -> None:
    """The answer says nothing about the body. To parse a large one takes long."""
    status, problem = ask(served, path, token and mine(served, token), method="POST", body=LARGE)

    assert (401, "NotAuthenticated") == (status, problem["error"])


def test_a_large_body_of_a_user_is_parsed_and_counts_once(served: ServedSite) -> None:
    """A user learns what is wrong in it. One that is right takes one of the requests that the user may send."""
    assert 400 == ask(served, "/snapshots", mine(served, "bobs"), method="POST", body=LARGE)[0]

    wait = {"jobs": [], "held": ["1"] * 10_000, "timeout_s": 0}
    for _ in range(2):
        assert 200 == ask(served, "/jobs/wait", mine(served), method="POST", body=wait)[0]
