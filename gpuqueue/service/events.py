"""Server-sent events: their text, and the answer that streams them."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

from starlette.responses import StreamingResponse

from gpuqueue.codec.wire import to_plain
from gpuqueue.errors import GpuQueueError
from gpuqueue.service.problems import problem_of

#: A comment. It shows the client that the service is alive, and the service that the client is.
ALIVE = ": alive\n\n"
MEDIA_TYPE = "text/event-stream"


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


def streamed(events: AsyncIterator[str]) -> StreamingResponse:
    """Return the answer that streams *events*. Proxies must not collect them."""
    headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    return StreamingResponse(with_problems(events), media_type=MEDIA_TYPE, headers=headers)
