"""Bodies of requests that are read as they arrive, with bounds on how long that may take.

The connection does not bound these: see :mod:`gpuqueue.service.peer_protocol`. What is not read waits in the network.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator

from starlette.requests import ClientDisconnect, Request

from gpuqueue.errors import BadRequest
from gpuqueue.service.problems import TooSlow

#: Longest silence within a body, in seconds.
SILENCE_S = 30.0
#: Least speed of a body that is stored, in bytes per second, after the first GRACE_S seconds.
LEAST_RATE, GRACE_S = 16 * 1024, 60.0
#: Bytes that are collected before they are passed on.
PART_BYTES = 2**20


async def parts_of(request: Request, *, least_rate: float = 0.0, first_s: float | None = None) -> AsyncIterator[bytes]:
    """Yield the body of *request* as it arrives, at least *least_rate* bytes per second in the long run.

    Its first part may take *first_s* seconds, by default no longer than any other.

    Raises:
        TooSlow: it comes too slowly.
        BadRequest: the connection was closed before its end.

    """
    stream, size_bytes, waited_s = request.stream(), 0, 0.0
    while True:
        before_s = time.monotonic()
        most_s = SILENCE_S if size_bytes or first_s is None else first_s
        try:
            part = await asyncio.wait_for(stream.__anext__(), most_s)
        except StopAsyncIteration:
            return
        except (TimeoutError, asyncio.TimeoutError):  # two classes before Python 3.11
            raise TooSlow(f"nothing of the body came for {most_s:g} s") from None
        except ClientDisconnect:
            raise BadRequest("the connection was closed before the whole request arrived") from None
        waited_s += time.monotonic() - before_s
        size_bytes += len(part)
        if least_rate and waited_s > GRACE_S + size_bytes / least_rate:
            raise TooSlow(f"the body comes with less than {least_rate:g} bytes per second")
        if part:
            yield part


async def large_parts_of(request: Request, *, least_rate: float = 0.0) -> AsyncIterator[bytes]:
    """Yield what :func:`parts_of` yields, in parts of PART_BYTES or a little more; the last one may be smaller."""
    collected = bytearray()
    async for part in parts_of(request, least_rate=least_rate):
        collected += part
        if len(collected) >= PART_BYTES:
            yield bytes(collected)
            collected.clear()
    if collected:
        yield bytes(collected)


async def until_gone(request: Request) -> None:
    """Return when the client of *request* has closed its connection. The body must be read, or empty."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
