"""Answers are made once for all who see the same, and for nobody else."""

from __future__ import annotations

import gzip
import json
from typing import Any

from starlette.requests import Request

from gpuqueue.service.web.answers import Answers


def request(**headers: str) -> Request:
    """Return a request with *headers*."""
    sent = [(name.replace("_", "-").encode(), text.encode()) for name, text in headers.items()]
    return Request({"type": "http", "method": "GET", "path": "/", "headers": sent})


def test_an_answer_is_made_once_for_each_key() -> None:
    """Another key, such as that of a caller who may see less, has an answer of its own."""
    answers, made = Answers(), []

    def make(value: str) -> dict[str, Any]:
        made.append(value)
        return {"at": 1, "rows": value}

    found = [
        answers.sent(request(), key, lambda value=value: make(value), 1).body
        for key, value in ((1, "all"), (1, "all"), (2, "own"))
    ]
    assert ["all", "own"] == made
    assert [{"at": 1, "rows": "all"}] * 2 + [{"at": 1, "rows": "own"}] == [json.loads(each) for each in found]


def test_a_client_that_has_it_gets_nothing() -> None:
    """The time of the answer is no part of its hash. Another content has another hash."""
    answers = Answers()
    first = answers.sent(request(), 1, lambda: {"at": 1, "rows": "a"}, 1)
    later = answers.sent(request(if_none_match=first.headers["etag"]), 2, lambda: {"at": 2, "rows": "a"}, 2)
    other = answers.sent(request(if_none_match=first.headers["etag"]), 3, lambda: {"at": 2, "rows": "b"}, 2)
    assert [(200, True), (304, False), (200, True)] == [
        (each.status_code, bool(each.body)) for each in (first, later, other)
    ]


def test_a_remembered_answer_is_sent_with_the_time_of_now() -> None:
    """A page that opens minutes after the last change must not take the time of that change for now."""
    answers, rows = Answers(), "x" * 5000
    first = answers.sent(request(), 1, lambda: {"at": 1, "rows": rows}, 1)
    plain = answers.sent(request(), 1, dict, 300)
    packed = answers.sent(request(accept_encoding="gzip"), 1, dict, 301)
    assert (1, 300) == tuple(json.loads(each.body)["at"] for each in (first, plain))
    assert {"at": 301, "rows": rows} == json.loads(gzip.decompress(bytes(packed.body)))
    assert 1 == len({each.headers["etag"] for each in (first, plain, packed)})
    assert 304 == answers.sent(request(if_none_match=first.headers["etag"]), 1, dict, 302).status_code


def test_a_large_answer_is_compressed_for_those_who_can_read_it() -> None:
    """The same answer is sent plain to others."""
    answers, rows = Answers(), "x" * 5000
    packed = answers.sent(request(accept_encoding="br, gzip"), 1, lambda: {"at": 1, "rows": rows}, 1)
    plain = answers.sent(request(), 1, dict, 1)
    assert ("gzip", None) == (packed.headers.get("content-encoding"), plain.headers.get("content-encoding"))
    assert gzip.decompress(bytes(packed.body)) == bytes(plain.body)
