"""Answers that browsers ask for again and again: made once for all who see the same, and not sent twice."""

from __future__ import annotations

import gzip
import hashlib
import json
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from gpuqueue.codec.wire import to_plain
from gpuqueue.lazy.frozen import dataclass

#: Below this size, compression is not worth its time.
_LEAST_BYTES = 2000
#: Answers that are remembered.
_REMEMBERED = 128


@dataclass(frozen=True, slots=True)
class Answer:
    """The JSON of a value at the time ``at``, the same compressed if it is large, and the hash of all but the time."""

    at: Any
    content: bytes
    compressed: bytes | None
    tag: str


class Answers:
    """The latest answers. Threads may share an instance."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: OrderedDict[Hashable, Answer] = OrderedDict()

    def sent(self, request: Request, key: Hashable, make: Callable[[], Any], at: Any) -> Response:
        """Return what *make* returns, a value with a field ``at``, as JSON; status 304 if the client has the same.

        It is made once for each *key*, which must say everything that the value depends on: the state of the queue, the
        question, and what the caller may see. *at* is the time of the state. A later one alone is no change, but an
        answer that is sent has it: the page measures how long jobs have run from there.
        """
        with self._lock:
            found = self._known.get(key)
        is_sent = found is None or request.headers.get("if-none-match") != found.tag
        if found is None or (is_sent and found.at != to_plain(at)):
            found = _answer(make()) if found is None else _stamped(_without_time(found), found.tag, to_plain(at))
            with self._lock:
                self._known[key] = found
                if len(self._known) > _REMEMBERED:
                    self._known.popitem(last=False)
        return _sent(request, found)

    @staticmethod
    def once(request: Request, value: Any) -> Response:
        """Return *value* as :meth:`sent` does. It is not remembered, for few ask for the same."""
        return _sent(request, _answer(value))


def _sent(request: Request, found: Answer) -> Response:
    headers = {"ETag": found.tag, "Cache-Control": "no-cache", "Vary": "Accept-Encoding, Authorization, Cookie"}
    return negotiated(request, found.content, found.compressed, "application/json", headers)


def _answer(value: Any) -> Answer:
    plain = to_plain(value)
    at = plain.pop("at")
    rest = json.dumps(plain, separators=(",", ":")).encode("ascii")
    return _stamped(rest, f'"{hashlib.sha256(rest).hexdigest()[:32]}"', at)


def _stamped(rest: bytes, tag: str, at: Any) -> Answer:
    """Return the answer whose JSON is *rest*, an object, with the time *at* in front."""
    content = _front(at) + rest[1:]
    return Answer(at, content, gzip.compress(content, 1) if len(content) >= _LEAST_BYTES else None, tag)


def _without_time(found: Answer) -> bytes:
    return b"{" + found.content[len(_front(found.at)) :]


def _front(at: Any) -> bytes:
    return b'{"at":%s,' % json.dumps(at).encode("ascii")


def negotiated(
    request: Request, content: bytes, compressed: bytes | None, media_type: str, headers: Mapping[str, str]
) -> Response:
    """Return *content*, or the same *compressed*, or status 304 if the client has the version of the ``ETag``.

    *headers* have the ``ETag``. *compressed* is None if compression is not worth it.
    """
    if request.headers.get("if-none-match") == headers["ETag"]:
        return Response(None, 304, headers)
    if compressed is not None and "gzip" in request.headers.get("accept-encoding", ""):
        return Response(compressed, 200, {**headers, "Content-Encoding": "gzip"}, media_type)
    return Response(content, 200, headers, media_type)
