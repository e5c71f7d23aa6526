"""Carries the store's protocol over WebSockets of the service, so that worker hosts need to reach nothing else.

Each WebSocket is one connection to the store, as a user of the host's own. The bytes pass as they are. Commands that
could change the user are refused here, because the store allows them to everybody.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
from typing import TYPE_CHECKING

from starlette.routing import WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect

from gpuqueue.errors import BadRequest, GpuQueueError, TooManyRequests
from gpuqueue.model.access import Action, Forbidden
from gpuqueue.model.joining import HOST_HEADER, MAX_MESSAGE_BYTES, STORE_PATH
from gpuqueue.queue.host_users import HostUsers
from gpuqueue.service.responses import answer_of

if TYPE_CHECKING:
    from asyncio import StreamReader, StreamWriter

    from gpuqueue.service.call import Call
    from gpuqueue.service.site import Site
    from gpuqueue.settings.settings import Settings

log = logging.getLogger(__name__)

#: Most connections of one host to the store. A worker has about nine.
MAX_CONNECTIONS = 1024
#: Time between two checks whether the tokens of the open connections are valid, in seconds.
CHECK_S = 0.5
#: How often each end asks whether the other one is there, and how long it waits for the answer, in seconds.
PING_S = 10.0
#: Codes with which the service ends a connection (RFC 6455): the host may not do that, and the store is away.
POLICY_VIOLATION, TRY_AGAIN_LATER = 1008, 1013
_NO_COMMAND = "that is no command in the protocol of the store"

_COUNT = re.compile(rb"\*(\d{1,9})")
_LENGTH = re.compile(rb"\$(\d{1,10})")
#: Such a line as far as it has come.
_BEGUN = re.compile(rb"[*$]\d{0,10}\r?")
#: Commands by which a connection could become that of another user.
_OF_USERS = frozenset({b"AUTH", b"RESET"})
#: Longest name of a command that is compared with these, in bytes.
_MAX_NAME_BYTES = 8


class CommandCheck:
    """Follows the commands of one connection through their bytes, and refuses those that could change its user."""

    def __init__(self) -> None:
        self._line = bytearray()
        #: Words of the current command that have not begun, bytes of the current word that have not come.
        self._words = self._left_bytes = 0
        #: The name of the current command as far as it has come; None once it was checked.
        self._name: bytearray | None = None
        self._count = 0

    def feed(self, data: bytes) -> None:
        """Follow *data*, the next bytes of the connection.

        Raises:
            BadRequest: they are no commands in the store's protocol.
            Forbidden: a command could change the user of the connection.

        """
        at = 0
        while at < len(data):
            if self._left_bytes:
                size = min(self._left_bytes, len(data) - at)
                if self._name is not None:
                    self._name += data[at : at + min(size, _MAX_NAME_BYTES)]
                self._left_bytes -= size
                at += size
                if self._name is not None and (self._left_bytes <= len(b"\r\n") or len(self._name) >= _MAX_NAME_BYTES):
                    self._check_name()
                continue
            end = data.find(b"\n", at)
            self._line += data[at:] if end < 0 else data[at : end + 1]
            at = len(data) if end < 0 else end + 1
            if end >= 0:
                self._read_line()
            elif not _BEGUN.fullmatch(self._line):  # the store takes any byte behind \r for the end of the line
                raise BadRequest(_NO_COMMAND)

    def _read_line(self) -> None:
        kind = _LENGTH if self._words else _COUNT
        line = bytes(self._line)
        found = kind.fullmatch(line[:-2]) if line.endswith(b"\r\n") else None
        if found is None:
            raise BadRequest(_NO_COMMAND)
        self._line.clear()
        number = int(found[1])
        if self._words:
            self._words -= 1
            self._left_bytes = number + len(b"\r\n")
        else:
            self._words = self._count = number
            self._name = bytearray()

    def _check_name(self) -> None:
        name = bytes(self._name or b"").strip().upper()
        self._name = None
        # HELLO chooses the version of the protocol, and with more words also the user.
        if name in _OF_USERS or (name == b"HELLO" and self._count > 2):  # noqa: PLR2004 - itself, and the version
            raise Forbidden(f"a host may not send {name.decode('ascii')} to the store")


class StoreTunnels:
    """The open connections of all hosts. Use it in the event loop only."""

    def __init__(self, settings: Settings) -> None:
        self._users = HostUsers(settings)
        #: The open connections, by the host and the id of its token: an event for each, which ends it.
        self._open: dict[tuple[str, str], set[asyncio.Event]] = {}
        self._check: asyncio.Task[None] | None = None

    async def serve(self, websocket: WebSocket, site: Site) -> None:
        """Carry one connection until one of its ends closes it, the token is not valid any more, or the site stops."""
        try:
            host, token_id = await site.work(websocket, _host_of)
            ended = self._opened(host, token_id, site)
        except GpuQueueError as error:
            await websocket.send_denial_response(answer_of(error))
            return
        try:
            reader, writer = await self._users.connect(host)
        except GpuQueueError as error:
            await websocket.send_denial_response(answer_of(error))
        else:
            try:
                await websocket.accept(headers=[(HOST_HEADER.encode(), host.encode())])
                code = await _carry(websocket, host, reader, writer, ended, site.closing)
                with contextlib.suppress(RuntimeError, WebSocketDisconnect):  # it is closed already
                    await websocket.close(code)
            finally:
                writer.close()
        finally:
            self._closed(host, token_id, ended)

    def _opened(self, host: str, token_id: str, site: Site) -> asyncio.Event:
        known = sum(len(events) for (name, _), events in self._open.items() if name == host)
        if known >= MAX_CONNECTIONS:
            raise TooManyRequests(f"host {host} has {known} connections to the store, and may have no more")
        ended = asyncio.Event()
        self._open.setdefault((host, token_id), set()).add(ended)
        if self._check is None or self._check.done():
            self._check = asyncio.create_task(self._end_invalid(site))
        return ended

    def _closed(self, host: str, token_id: str, ended: asyncio.Event) -> None:
        events = self._open.get((host, token_id), set())
        events.discard(ended)
        if not events:
            self._open.pop((host, token_id), None)

    async def _end_invalid(self, site: Site) -> None:
        """End the connections of tokens that are not valid any more, while there are any connections."""
        while self._open:
            await asyncio.sleep(CHECK_S)
            now_open = [*self._open]
            try:
                valid = await site.valid_tokens({token_id for _, token_id in now_open})
            except GpuQueueError as error:  # nobody can say now whether they are valid: they go on
                log.debug("the tokens of hosts cannot be checked: %s", error)
                continue
            for host, token_id in now_open:
                if token_id in valid:
                    continue
                for ended in self._open.get((host, token_id), ()):
                    ended.set()
                log.warning("host %s: its token %s is not valid any more", host, token_id)
                if not any(name == host and other != token_id for name, other in self._open):
                    with contextlib.suppress(GpuQueueError):  # tried again while its connections are there
                        await asyncio.to_thread(self._users.remove, host)


async def _carry(
    websocket: WebSocket,
    host: str,
    reader: StreamReader,
    writer: StreamWriter,
    ended: asyncio.Event,
    closing: asyncio.Event,
) -> int:
    """Pass bytes on until one of the ends closes, or *ended* or *closing* is set; return the code for the closing."""
    parts = [_to_store(websocket, writer), _to_host(reader, websocket), ended.wait(), closing.wait()]
    tasks = [asyncio.ensure_future(each) for each in parts]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
    refused = next((each for each in results if isinstance(each, GpuQueueError)), None)
    if refused is not None:
        log.warning("a connection of host %s to the store is ended: %s", host, refused)
    return POLICY_VIOLATION if refused is not None or tasks[2] in done else TRY_AGAIN_LATER


async def _to_store(websocket: WebSocket, writer: StreamWriter) -> None:
    check = CommandCheck()
    with contextlib.suppress(WebSocketDisconnect, OSError):
        while True:
            try:
                data = await websocket.receive_bytes()
            except KeyError:  # a message of text
                raise BadRequest(_NO_COMMAND) from None
            check.feed(data)
            writer.write(data)
            await writer.drain()


async def _to_host(reader: StreamReader, websocket: WebSocket) -> None:
    with contextlib.suppress(WebSocketDisconnect, OSError, RuntimeError):
        while data := await reader.read(MAX_MESSAGE_BYTES):
            await websocket.send_bytes(data)


def _host_of(call: Call) -> tuple[str, str]:
    """Return the host that calls, and the id of its token.

    Raises:
        Forbidden: the caller is no worker host with a token.

    """
    call.must(Action.SERVE_JOBS)
    if call.caller.token_id is None:
        raise Forbidden("the store is carried only for hosts with a token")
    return call.caller.account, call.caller.token_id


async def _serve(websocket: WebSocket) -> None:
    site: Site = websocket.app.state.site
    await site.tunnels.serve(websocket, site)


def route(prefix: str) -> WebSocketRoute:
    """Return the route of the WebSockets below *prefix*."""
    return WebSocketRoute(prefix + STORE_PATH, _serve)
