"""What a browser has already is not sent again, and large contents are sent compressed to those who can read that."""

from __future__ import annotations

from collections.abc import Mapping

from starlette.requests import Request
from starlette.responses import Response


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
