"""The host's end of the way to the store through the service: a unix socket, each of whose connections is a WebSocket.

It is a process of its own, so that heartbeats do not wait for what the relay sends. The host process keeps it running.
While ``up`` and ``down`` work, there is one more: the latest one has the socket, and the others keep their connections.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import ssl
import threading
import time
from collections.abc import AsyncIterator, Callable
from http import HTTPStatus
from typing import TYPE_CHECKING

from websockets.exceptions import InvalidStatus, WebSocketException

from gpuqueue.errors import BadRequest, GpuQueueError, StoreUnreachable, unusable
from gpuqueue.model.joining import HOST_HEADER, STORE_PATH
from gpuqueue.settings.settings import Settings
from gpuqueue.system.certificates import certificate_trouble
from gpuqueue.system.ownership import TUNNEL_TROUBLE
from gpuqueue.text.sanitize import in_one_line
from workers.relay.link import HOST_API
from workers.relay.ports import websocket_of
from workers.relay.trouble import Trouble

if TYPE_CHECKING:
    from asyncio import StreamReader, StreamWriter

    from websockets.asyncio.client import ClientConnection

log = logging.getLogger(__name__)

#: Most bytes that are sent at once, which is also what the service accepts.
CHUNK_BYTES = 64 * 1024
#: Longest pause while the service does not answer, in seconds. It is longer where the service refuses this host.
MAX_PAUSE_S = 2.0


class _NotServed(StoreUnreachable):
    """The service answers, and refuses this host."""


class Tunnel:
    """Offers the store of the site at the socket of *settings*."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._socket = settings.socket_path
        self._trouble = Trouble("the store cannot be reached", "the store can be reached again")
        #: Why the last connection failed, for commands: they see only that the store does not answer.
        self._record = settings.state_dir / TUNNEL_TROUBLE
        #: When to try again, on the monotonic clock.
        self._next_try_s = 0.0

    def serve(self, stopping: threading.Event, ready: Callable[[], None] | None = None) -> None:
        """Serve until *stopping* is set. *ready* is called once the socket is there and the store was reached.

        Raises:
            GpuQueueError: the socket cannot be made.
            StoreUnreachable: with *ready*, the store cannot be reached.

        """
        asyncio.run(self._serve(stopping, ready))

    async def _serve(self, stopping: threading.Event, ready: Callable[[], None] | None) -> None:
        new = self._socket.with_name(f"{self._socket.name}.{os.getpid()}")
        try:
            self._socket.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            new.unlink(missing_ok=True)
            server = await asyncio.start_unix_server(self._carry, new)
            new.chmod(0o600)
            new.replace(self._socket)
        except OSError as error:
            raise unusable(self._settings.state_dir, error) from error
        if ready is not None:
            async with self._connected() as websocket:
                await websocket.close()
            ready()
        async with server:
            await asyncio.to_thread(stopping.wait)

    async def _carry(self, reader: StreamReader, writer: StreamWriter) -> None:
        """Carry one connection until one of its ends closes it. After a failure, others are closed for a moment."""
        if time.monotonic() < self._next_try_s:
            writer.close()
            return
        try:
            async with self._connected() as websocket:
                self._trouble.over()
                self._record.unlink(missing_ok=True)
                parts = (
                    asyncio.ensure_future(_to_service(reader, websocket)),
                    asyncio.ensure_future(_to_client(websocket, writer)),
                )
                await asyncio.wait(parts, return_when=asyncio.FIRST_COMPLETED)
                for part in parts:
                    part.cancel()
                await asyncio.gather(*parts, return_exceptions=True)
        except GpuQueueError as error:
            self._note(error)
        except asyncio.CancelledError:  # this process ends; asyncio would log it
            pass
        finally:
            writer.close()

    def _note(self, error: GpuQueueError) -> None:
        """Record a failure, and set the time of the next try. Connections that fail together count once."""
        if time.monotonic() < self._next_try_s:
            return
        pause_s = self._trouble.report(str(error))
        self._next_try_s = time.monotonic() + (pause_s if isinstance(error, _NotServed) else min(pause_s, MAX_PAUSE_S))
        with contextlib.suppress(OSError):
            self._record.write_text(f"{error}\n")

    @contextlib.asynccontextmanager
    async def _connected(self) -> AsyncIterator[ClientConnection]:
        """Open a connection to the store.

        Raises:
            StoreUnreachable: there is none.
            BadRequest: the token or the certificate on this host cannot be used.

        """
        url = self._settings.service_url or ""
        try:
            made = await websocket_of(self._settings, f"{HOST_API.removesuffix('/host')}{STORE_PATH}")
        except ssl.SSLCertVerificationError as error:
            raise StoreUnreachable(certificate_trouble(url, error, "set service_ca to")) from error
        except InvalidStatus as error:
            raise _NotServed(f"the service at {url} does not serve this host: {self._problem(error)}") from error
        except (OSError, WebSocketException, TimeoutError, asyncio.TimeoutError) as error:
            why = in_one_line(getattr(error, "strerror", None) or str(error) or "no answer in time")
            raise StoreUnreachable(f"the service at {url} does not answer: {why}") from error
        try:
            self._check_host(made)
            yield made
        finally:
            await made.close()

    def _problem(self, error: InvalidStatus) -> str:
        """Return what the service says in an answer that is no WebSocket."""
        if error.response.status_code == HTTPStatus.UNAUTHORIZED:
            return (
                f"its token is not valid: make one with gpuqueue token create --host {self._settings.host}, on the "
                f"machine of the service, and write it to {self._settings.service_token_file}"
            )
        try:
            found = json.loads(error.response.body or b"")
        except ValueError:
            found = {}
        detail = found.get("detail") if isinstance(found, dict) else None
        return in_one_line(str(detail or f"status {error.response.status_code}"))

    def _check_host(self, websocket: ClientConnection) -> None:
        """Check that the token is that of this host.

        Raises:
            BadRequest: it is that of another one, to which the service would ask for logs of jobs here.

        """
        answer = websocket.response
        owner = None if answer is None else answer.headers.get(HOST_HEADER)
        if owner != self._settings.host:
            raise BadRequest(
                f"{self._settings.service_token_file} has the token of host {owner}, and this is host "
                f"{self._settings.host}: make a token for this one with gpuqueue token create --host "
                f"{self._settings.host}, on the machine of the service"
            )


async def _to_service(reader: StreamReader, websocket: ClientConnection) -> None:
    while data := await reader.read(CHUNK_BYTES):
        await websocket.send(data)


async def _to_client(websocket: ClientConnection, writer: StreamWriter) -> None:
    async for data in websocket:
        writer.write(data if isinstance(data, bytes) else data.encode())
        await writer.drain()
