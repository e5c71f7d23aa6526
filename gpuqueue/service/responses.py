"""Answers that are streamed: server-sent events, and files."""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncIterator, Mapping
from typing import Any

from starlette.responses import StreamingResponse
from starlette.types import Send

from gpuqueue.codec.wire import to_plain
from gpuqueue.errors import GpuQueueError
from gpuqueue.service.problems import problem_of

#: A comment. It shows the client that the service is alive, and the service that the client is.
ALIVE = ": alive\n\n"
MEDIA_TYPE = "text/event-stream"
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
