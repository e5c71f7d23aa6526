"""WebSockets to the service: how they are opened, and one as an end of a forwarded connection."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed

from gpuqueue.version import VERSION

if TYPE_CHECKING:
    import ssl
    from collections.abc import Mapping

    from websockets.asyncio.client import ClientConnection

#: How long the service may take to answer, and to close at the end, in seconds.
CONNECT_S, CLOSE_S = 10.0, 1.0
#: How long the service may be silent before it is asked whether it is there, and then until it answers, in seconds. It
#: is less than a store may take for one command, so that a command fails because of its connection.
PING_S, PONG_S = 5.0, 5.0


class _Connect(connect):
    """Follows no redirect: the token is for one service."""

    def process_redirect(self, exc: Exception) -> Exception:
        return exc


async def connected(
    url: str,
    headers: Mapping[str, str],
    *,
    max_bytes: int,
    socket_path: str = "",
    context: ssl.SSLContext | None = None,
) -> ClientConnection:
    """Open the WebSocket at *url*, or over the unix socket *socket_path*, which takes messages of *max_bytes*.

    Raises:
        OSError, WebSocketException, TimeoutError: it cannot be opened. InvalidStatus has the answer of the service.

    """
    way: dict[str, Any] = {"unix": True, "path": socket_path} if socket_path else {"ssl": context, "proxy": None}
    return await _Connect(
        url,
        additional_headers=dict(headers),
        user_agent_header=f"gpuqueue/{VERSION}",
        compression=None,
        open_timeout=CONNECT_S,
        ping_interval=PING_S,
        ping_timeout=PONG_S,
        close_timeout=CLOSE_S,
        max_size=max_bytes,
        **way,
    )


class ClientSocket:
    """An open WebSocket as one end of a forwarded connection."""

    def __init__(self, websocket: ClientConnection) -> None:
        self._websocket = websocket

    async def receive(self) -> bytes | str | None:
        """Return the next message, None if the WebSocket is closed."""
        try:
            return await self._websocket.recv()
        except ConnectionClosed:
            return None

    async def send(self, message: bytes | str) -> None:
        """Send a message. Raises ConnectionError if the WebSocket is closed."""
        try:
            await self._websocket.send(message)
        except ConnectionClosed as error:
            raise ConnectionResetError from error
