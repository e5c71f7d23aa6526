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
        return {"at": len(made), "rows": value}

    found = [
        answers.sent(request(), key, lambda value=value: make(value)).body
        for key, value in ((1, "all"), (1, "all"), (2, "own"))
    ]
    assert ["all", "own"] == made
    assert [{"at": 1, "rows": "all"}] * 2 + [{"at": 2, "rows": "own"}] == [json.loads(each) for each in found]


def test_a_client_that_has_it_gets_nothing() -> None:
    """The time of the answer is no part of its hash. Another content has another hash."""
    answers = Answers()
    first = answers.sent(request(), 1, lambda: {"at": 1, "rows": "a"})
    later = answers.sent(request(if_none_match=first.headers["etag"]), 2, lambda: {"at": 2, "rows": "a"})
    other = answers.sent(request(if_none_match=first.headers["etag"]), 3, lambda: {"at": 2, "rows": "b"})
    assert [(200, True), (304, False), (200, True)] == [
        (each.status_code, bool(each.body)) for each in (first, later, other)
    ]


def test_a_large_answer_is_compressed_for_those_who_can_read_it() -> None:
    """The same answer is sent plain to others."""
    answers, rows = Answers(), "x" * 5000
    packed = answers.sent(request(accept_encoding="br, gzip"), 1, lambda: {"at": 1, "rows": rows})
    plain = answers.sent(request(), 1, dict)
    assert ("gzip", None) == (packed.headers.get("content-encoding"), plain.headers.get("content-encoding"))
    assert gzip.decompress(bytes(packed.body)) == bytes(plain.body)
