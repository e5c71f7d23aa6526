"""Answers of the service that are not one value: server-sent events, files, and errors.

Errors are problem documents (RFC 9457), which carry the class of the error and the exit code of the command line.
"""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import replace
from http import HTTPStatus
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Send

from gpuqueue import errors
from gpuqueue.codec.wire import to_plain
from gpuqueue.errors import BadRequest, GpuQueueError, Refused
from gpuqueue.model.access import Forbidden
from gpuqueue.model.api import Fault, Problem
from gpuqueue.service.field_names import in_fields, named_in
from gpuqueue.service.web.cookie import PAGE_HEADER

#: A comment. It shows the client that the service is alive, and the service that the client is.
ALIVE = ": alive\n\n"
#: The media types of streams and of problem documents.
MEDIA_TYPE, PROBLEM_TYPE = "text/event-stream", "application/problem+json"
#: The type of the body in the scope of a request, and what the command line and the Python functions call themselves.
BODY_KIND, OWN_AGENT = "gpuqueue.body_kind", "gpuqueue/"
log = logging.getLogger(__name__)


def event(name: str, value: Any, event_id: str | None = None) -> str:
    """Return one event. Its data is JSON on one line."""
    data = json.dumps(to_plain(value), separators=(",", ":"))
    mark = "" if event_id is None else f"id: {event_id}\n"
    return f"{mark}event: {name}\ndata: {data}\n\n"


async def with_problems(events: AsyncIterator[str]) -> AsyncIterator[str]:
    """Yield *events*; an error ends them as an event ``problem``."""
    try:
        async for each in events:
            yield each
    except GpuQueueError as error:
        yield event("problem", problem_of(error))


def streamed_events(events: AsyncIterator[str]) -> StreamingResponse:
    """Return the answer that streams *events*. Proxies must not collect them."""
    headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    return StreamingResponse(with_problems(events), media_type=MEDIA_TYPE, headers=headers)


class StreamedFile(StreamingResponse):
    """An answer with a file, which *what* names in the log of the service."""

    def __init__(
        self, what: str, content: AsyncIterator[str] | AsyncIterator[bytes], headers: Mapping[str, str], media_type: str
    ) -> None:
        super().__init__(content, headers=headers, media_type=media_type)
        self._what = what

    async def stream_response(self, send: Send) -> None:
        """Send the file. After an error the answer stays incomplete, so the server closes the connection."""
        try:
            await super().stream_response(send)
        except GpuQueueError as error:
            log.warning("%s cut short: %s", self._what, error)


class NotHere(Refused):
    """What the request names is not there, or not any more. Clients of the service see the class Refused."""


class TooSlow(Refused):
    """The body of a request comes too slowly. Clients of the service see the class Refused."""


class TooLarge(Refused):
    """What was sent is above a limit of the site. Clients of the service see the class Refused."""


class OtherHost(Refused):
    """The request is for a host whose service this is not. Clients of the service see the class Refused."""


#: Status of each class of errors; the first one that fits counts.
_STATUS: tuple[tuple[type[GpuQueueError], HTTPStatus], ...] = (
    (Forbidden, HTTPStatus.FORBIDDEN),
    (NotHere, HTTPStatus.NOT_FOUND),
    (OtherHost, HTTPStatus.MISDIRECTED_REQUEST),
    (TooSlow, HTTPStatus.REQUEST_TIMEOUT),
    (TooLarge, HTTPStatus.REQUEST_ENTITY_TOO_LARGE),
    (errors.Impossible, HTTPStatus.UNPROCESSABLE_ENTITY),
    (errors.BadRequest, HTTPStatus.BAD_REQUEST),
    (errors.JobNotFound, HTTPStatus.NOT_FOUND),
    (errors.Unreachable, HTTPStatus.SERVICE_UNAVAILABLE),
    (errors.NotAuthenticated, HTTPStatus.UNAUTHORIZED),
    (errors.TooManyRequests, HTTPStatus.TOO_MANY_REQUESTS),
    (errors.Refused, HTTPStatus.CONFLICT),
)


def problem_of(error: GpuQueueError) -> Problem:
    """Return *error* as a problem document. A class that clients do not know becomes one that they know."""
    status = next((each for kind, each in _STATUS if isinstance(error, kind)), HTTPStatus.INTERNAL_SERVER_ERROR)
    name = next(kind.__name__ for kind in type(error).__mro__ if kind.__module__ == errors.__name__)
    return Problem(
        type=f"urn:gpuqueue:error:{name}",
        title=status.phrase,
        status=status.value,
        detail=_for_callers(error),
        error=name,
        exit_code=error.exit_code,
        faults=tuple(Fault(field=field, words=words) for field, words in getattr(error, "faults", ())),
    )


def _for_callers(error: GpuQueueError) -> str:
    """Return the text of *error*. Only the administrator of the service can start what it needs."""
    if not isinstance(error, errors.Unreachable) or not error.remedy:
        return str(error)
    if not isinstance(error, errors.StoreUnreachable) and "gpuqueue up" not in error.remedy:
        return str(error)
    return f"{error.what}: ask the administrator of this site to start it (gpuqueue doctor)"


def problem_at(status: HTTPStatus, detail: str) -> Problem:
    """Return a problem of HTTP itself, which is no error of the queue."""
    kind = errors.TooManyRequests if status is HTTPStatus.TOO_MANY_REQUESTS else BadRequest
    return Problem(
        type=f"urn:gpuqueue:http:{status.value}",
        title=status.phrase,
        status=status.value,
        detail=detail,
        error=kind.__name__,
        exit_code=kind.exit_code,
    )


def content_of(problem: Problem) -> bytes:
    """Return *problem* as JSON."""
    return json.dumps(to_plain(problem)).encode("ascii")


def header(text: str) -> str:
    """Return *text* as the value of a header: ASCII on one line."""
    return " ".join(text.split()).encode("ascii", "replace").decode("ascii")


def answer_of(error: GpuQueueError, shown: Callable[[str], str] = str, kind: Any = None) -> Response:
    """Return the answer for *error*, whose text is that of *shown*. *kind* is the type of the body of the request."""
    problem = problem_of(error)
    faults = (replace(each, field=named_in(kind, each.field), words=shown(each.words)) for each in problem.faults)
    problem = replace(problem, detail=shown(problem.detail), faults=tuple(faults))
    headers = {"WWW-Authenticate": "Bearer"} if problem.status == HTTPStatus.UNAUTHORIZED else {}
    if isinstance(error, errors.TooManyRequests):
        headers["Retry-After"] = str(max(1, round(error.wait_s)))
    return Response(content_of(problem), problem.status, headers, PROBLEM_TYPE)


async def _known(request: Request, error: GpuQueueError) -> Response:
    site = request.app.state.site
    if isinstance(error, BadRequest) and not request.headers.get("User-Agent", "").startswith(OWN_AGENT):
        kind, known = request.scope.get(BODY_KIND), site.without_places if PAGE_HEADER in request.headers else str
        return answer_of(error, lambda text: in_fields(kind)(known(text)), kind)
    if site.is_private:  # the caller is the administrator
        return answer_of(error, lambda _: str(error))
    return answer_of(error, site.without_places) if PAGE_HEADER in request.headers else answer_of(error)


async def _by_framework(_: Request, error: HTTPException) -> Response:
    status = HTTPStatus(error.status_code)
    problem = problem_at(status, f"there is nothing here: {status.phrase}")
    return Response(content_of(problem), status.value, error.headers or {}, PROBLEM_TYPE)


async def _unknown(_: Request, error: Exception) -> Response:
    return answer_of(GpuQueueError(f"the service failed ({type(error).__name__}): see its log"))


#: What makes the answer for an exception of a class or of one that is derived from it: a problem document for each.
HANDLERS: Mapping[Any, Callable[[Request, Any], Any]] = {
    GpuQueueError: _known,
    HTTPException: _by_framework,
    Exception: _unknown,
}
