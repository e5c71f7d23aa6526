"""Connections from the service to ports of runs of this host, in one event loop of a thread of its own.

The thread is there from the first connection on.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from gpuqueue.model.joining import MAX_MESSAGE_BYTES
from gpuqueue.settings.settings import Settings
from gpuqueue.system.forwarded_port import address_in, connect_and_carry
from gpuqueue.system.socket_http import is_local
from gpuqueue.system.websocket import ClientSocket, connected
from workers.relay.link import HOST_API, tls_context, token_of
from workers.run.deliveries import Delivery
from workers.shim.launched import port_address

if TYPE_CHECKING:
    from websockets.asyncio.client import ClientConnection

log = logging.getLogger(__name__)

#: Most connections at a time.
MAX_CONNECTIONS = 1024


class Ports:
    """The open connections to ports of the runs of this host."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._open = 0

    def reason_against(self, request_id: str, run: Delivery, port: int) -> str | None:
        """Have a connection made. Return why that is not possible, "" if no process of *run* listens on *port*.

        Raises:
            OSError: the launcher does not answer.

        """
        if self._open >= MAX_CONNECTIONS:
            return f"{self._settings.host} already has {MAX_CONNECTIONS} connections to ports: try again later"
        address = self._address(run, port)
        if address is None:
            return ""
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                threading.Thread(target=self._loop.run_forever, name="gpuqueue-ports", daemon=True).start()
        asyncio.run_coroutine_threadsafe(self._carry(request_id, address, port), self._loop)
        return None

    def _address(self, run: Delivery, port: int) -> str | None:
        """Return where *run* listens. Of a job that runs as its submitter only the launcher can see that."""
        launcher = self._settings.launcher_in_use
        if launcher is not None:
            return port_address(launcher, run.token, port)
        return address_in(run.run_directory(self._settings), port)

    async def _carry(self, request_id: str, address: str, port: int) -> None:
        self._open += 1
        try:
            websocket = await websocket_of(self._settings, f"{HOST_API}/requests/{request_id}/port")
            try:
                await connect_and_carry(ClientSocket(websocket), address, port)
            finally:
                await websocket.close()
        except Exception as error:  # noqa: BLE001 - it concerns this connection only, whose user sees that it is closed
            log.warning("a connection to port %d of a run is not made: %s", port, error)
        finally:
            self._open -= 1


async def websocket_of(settings: Settings, path: str) -> ClientConnection:
    """Open the WebSocket of the service at *path*, with the token of this host.

    Raises:
        OSError, WebSocketException, TimeoutError: it cannot be opened.
        BadRequest: the token or the certificate on this host cannot be used.

    """
    url = settings.service_url or ""
    if is_local(url):  # the kernel says who calls
        return await connected(f"ws://localhost{path}", {}, max_bytes=MAX_MESSAGE_BYTES, socket_path=urlsplit(url).path)
    return await connected(
        f"ws{url.removeprefix('http')}{path}",
        {"Authorization": f"Bearer {token_of(settings)}"},
        max_bytes=MAX_MESSAGE_BYTES,
        context=tls_context(settings.service_ca) if url.startswith("https:") else None,
    )
