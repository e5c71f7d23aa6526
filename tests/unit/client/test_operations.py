"""The methods of the remote client that follow from the list of operations, and the routes that are declared by it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from gpuqueue.client.remote.access import RemoteAccess
from gpuqueue.client.remote.history import RemoteHistory
from gpuqueue.client.remote.jobs import RemoteJobs
from gpuqueue.errors import BadRequest
from gpuqueue.model.api import Moved, Whether
from gpuqueue.model.job import Job, JobState
from gpuqueue.model.statistics import By, Statistics
from gpuqueue.service.routes.described import Operations, operation


class FakeLink:
    """A link that keeps what is asked for, and gives one answer."""

    def __init__(self, answer: Any = None) -> None:
        self.answer = answer
        self.asked: list[tuple[Any, ...]] = []

    def send(self, method: str, path: str, body: Any = None, *, kind: Any, query: Any = None) -> Any:
        """Keep the request."""
        self.asked.append((method, path, body, query, kind))
        return self.answer


@pytest.mark.parametrize(
    ("call", "asked"),
    [
        (lambda link: RemoteJobs(link).get("17_2"), ("GET", "/jobs/17_2", None, None, Job)),
        (
            lambda link: RemoteHistory(link).stats("day", user="ada"),
            ("GET", "/stats", None, {"by": By.DAY, "since": None, "until": None, "user": "ada"}, Statistics),
        ),
        (
            lambda link: RemoteJobs(link).tag(17, "a", "b", remove=True),
            ("POST", "/jobs/17/tags", {"words": ("a", "b"), "remove": True}, None, type(None)),
        ),
        (
            lambda link: RemoteJobs(link).choose_ended()[:0],
            (
                *("GET", "/ended-job-choice", None),
                {"user": None, "name": None, "state": (JobState.FAILED, JobState.LOST), "tag": None, "since": None},
            ),
        ),
        (lambda link: RemoteAccess(link).revoke_token("../x"), ("DELETE", "/tokens/..%2Fx")),
        (lambda link: RemoteJobs(link).cancel("17_5-9"), ("POST", "/jobs/17_5-9/cancel", None, None)),
    ],
    ids=["path", "query", "body", "defaults", "quoted", "part"],
)
def test_the_arguments_of_the_direct_method_are_sent(call: Callable[[Any], Any], asked: tuple[Any, ...]) -> None:
    """The first one is in the path if that has a place for it, the others in the query of a GET, else in the body."""
    link = FakeLink(answer=())

    call(link)

    assert [asked] == [each[: len(asked)] for each in link.asked]


def test_a_part_of_the_answer_is_returned() -> None:
    """The answer is an object where the method returns a bare value."""
    assert JobState.HELD is RemoteJobs(FakeLink(Moved(state=JobState.HELD))).move(17)  # type: ignore[arg-type]
    assert RemoteHistory(FakeLink(Whether(answer=True))).has(17)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda link: RemoteJobs(link).get(), TypeError),
        (lambda link: RemoteHistory(link).stats("day", "7d"), TypeError),
        (lambda link: RemoteHistory(link).stats(users="ada"), TypeError),
        (lambda link: RemoteJobs(link).get("x"), BadRequest),
        (lambda link: RemoteHistory(link).stats("week"), BadRequest),
    ],
    ids=["missing", "keyword", "unknown", "name", "word"],
)
def test_wrong_arguments_are_refused_before_anything_is_sent(
    call: Callable[[Any], Any], error: type[Exception]
) -> None:
    """The signature is that of the direct method, and a malformed value needs no answer of the service."""
    link = FakeLink()

    with pytest.raises(error):
        call(link)
    assert [] == link.asked


def test_a_route_with_another_answer_is_refused() -> None:
    """The client could not read the answer."""
    with pytest.raises(TypeError, match=r"the client expects Job of jobs\.get, not <class 'int'>"):

        @operation(Operations("jobs"), "jobs.get")
        def get_job(_call: Any, name: str) -> int:
            return len(name)
