"""Answers that a browser asks for again and again: with their hash, so that an unchanged one is not sent twice."""

from __future__ import annotations

import gzip
import hashlib
import json
from typing import Any

from fastapi import Request, Response

from gpuqueue.codec.wire import to_plain

#: Below this size, compression is not worth its time.
_LEAST_BYTES = 2000


def tagged(request: Request, value: Any) -> Response:
    """Return *value*, which has a field ``at``, as JSON with its hash; status 304 if the client has the same already.

    A later ``at`` alone is no change.
    """
    plain = to_plain(value)
    at = plain.pop("at")
    content = json.dumps(plain, separators=(",", ":")).encode("ascii")
    tag = f'"{hashlib.sha256(content).hexdigest()[:32]}"'
    headers = {"ETag": tag, "Cache-Control": "no-cache", "Vary": "Accept-Encoding, Authorization, Cookie"}
    if request.headers.get("if-none-match") == tag:
        return Response(None, 304, headers)
    content = b'{"at":%s,' % json.dumps(at).encode("ascii") + content[1:]
    if len(content) >= _LEAST_BYTES and "gzip" in request.headers.get("accept-encoding", ""):
        content, headers["Content-Encoding"] = gzip.compress(content, 1), "gzip"
    return Response(content, 200, headers, "application/json")
