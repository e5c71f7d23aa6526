"""The way to a port of a job behind a service: a WebSocket for each connection."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from websockets.exceptions import InvalidStatus, WebSocketException

from gpuqueue.client.remote.http import tls_context
from gpuqueue.client.remote.link import API, segment
from gpuqueue.model.joining import MAX_MESSAGE_BYTES
from gpuqueue.system.forwarded_port import BEGIN, carry
from gpuqueue.system.websocket import ClientSocket, connected

if TYPE_CHECKING:
    from asyncio import StreamReader, StreamWriter

    from websockets.asyncio.client import ClientConnection

    from gpuqueue.client.forward import Carry
    from gpuqueue.client.remote.link import Link


class RemoteWay:
    """The way to *port* of the job *name* through the service of *link*."""

    def __init__(self, link: Link, name: str, port: int) -> None:
        self._link, self._path = link, f"{API}/jobs/{segment(name)}/ports/{port}"

    def check(self) -> None:
        """Check that the port can be reached now, without a connection to it."""

        async def check() -> None:
            await (await self._connected()).close()

        asyncio.run(check())

    async def open(self) -> Carry:
        """Open a way for one connection."""
        websocket = await self._connected()

        async def carried(reader: StreamReader, writer: StreamWriter) -> None:
            messages = ClientSocket(websocket)
            try:
                await messages.send(BEGIN)
                await carry(reader, writer, messages)
            except ConnectionError:  # the service has ended it just now
                pass
            finally:
                try:
                    await websocket.close()
                except asyncio.CancelledError:
                    websocket.transport.abort()
                    raise

        return carried

    async def _connected(self) -> ClientConnection:
        place, headers = self._link.place, self._link.headers()
        headers.pop("User-Agent")
        host = f"[{place.host}]" if ":" in place.host else place.host
        url = f"{'wss' if place.tls else 'ws'}://{host}:{place.port or 80}{place.base}{self._path}"
        context = tls_context() if place.tls else None
        try:
            return await connected(url, headers, max_bytes=MAX_MESSAGE_BYTES, socket_path=place.path, context=context)
        except InvalidStatus as error:
            raise self._link.error_in(error.response.status_code, bytes(error.response.body or b"")) from None
        except (OSError, WebSocketException, asyncio.TimeoutError) as error:
            raise self._link.unreachable(error) from error
