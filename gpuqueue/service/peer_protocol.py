"""HTTP with the credentials of the process at the other end of a unix socket, and with bounds on each connection.

uvicorn has no time limit for a request that comes slowly or not at all, and keeps all headers that a client sends. Its
``limit_concurrency`` counts all clients together, so that one of them could lock out the others.

The bounds are those of one peer, so that nobody locks out others: an account on the unix socket, an address over TCP.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import resource
import socket
import struct
from collections import Counter
from http import HTTPStatus
from typing import Any

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from gpuqueue.model.joining import STORE_PATH
from gpuqueue.service.call import Peer
from gpuqueue.service.identity.request_rate import network_of
from gpuqueue.service.responses import PROBLEM_TYPE, content_of, problem_at

#: Most connections of one account on the unix socket, or of one address over TCP.
MOST_PER_PEER = 256
#: How long a connection may take until a whole request, its head and its body, has arrived, in seconds.
REQUEST_S = 30.0
#: How long a refused connection stays for its refusal to be read, in seconds.
REFUSED_S = 2.0
#: How long a client may leave what was sent to it unread, in seconds. It can come back and continue.
UNREAD_S = 60.0
#: Most bytes of a request's head, and most header lines in it.
MOST_HEAD_BYTES, MOST_HEADERS = 64 * 1024, 100
#: Most bytes of a request's body. A spec may have 1 MiB, and JSON may need more bytes for the same text.
MOST_BODY_BYTES = 4 * 1024 * 1024
#: How long the handshake of TLS may take, in seconds.
HANDSHAKE_S = 10.0
#: How long the end of TLS may take, in seconds. A client that sends a body without an end learns only then that it was
#: answered.
SHUTDOWN_S = 5.0


class Connections:
    """Counts the open connections of each peer."""

    def __init__(self, most: int | None = None) -> None:
        self.most = MOST_PER_PEER if most is None else most
        self._open: Counter[str] = Counter()

    def opened(self, peer: str) -> int:
        """Count a new connection of *peer*, and return how many it has now."""
        self._open[peer] += 1
        return self._open[peer]

    def closed(self, peer: str) -> None:
        """Forget a connection of *peer*."""
        self._open[peer] -= 1
        if self._open[peer] <= 0:
            del self._open[peer]


def permit_many_files() -> None:
    """Raise the limit of open files of this process as far as it may: each connection is one."""
    with contextlib.suppress(OSError, ValueError):  # where it stays as it is, fewer connections are accepted
        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


#: The layout of ``struct ucred``: pid, uid, gid.
_UCRED = struct.Struct("3i")
#: The requests of worker hosts whose bodies their routes read as they arrive, with bounds of their own
#: (:mod:`gpuqueue.service.routes.host`). What they have not read waits in the network.
_STREAMED = re.compile(rb"/api/v1/host/(runs/[^/?]+/[^/?]+/results|requests/[^/?]+/content)")
#: The paths of the only WebSockets (:mod:`gpuqueue.service.store_tunnel`, :mod:`gpuqueue.service.forwarding`).
_WEBSOCKETS = re.compile(rf"/api/v1({STORE_PATH}|/host/requests/[^/]+/port|/jobs/[^/]+/ports/[0-9]+)".encode())
#: Most bytes of one request, with the frames of its chunks and with trailers.
MOST_WIRE_BYTES = 2 * (MOST_HEAD_BYTES + MOST_BODY_BYTES)


class PeerProtocol(HttpToolsProtocol):
    """Puts the peer of a unix socket into the state of each request of the connection, and refuses what is too much.

    The credentials are those at the time of ``connect``. The process may have ended since.
    """

    def __init__(self, *args: Any, counted: Connections | None, **others: Any) -> None:
        """Count the connection in *counted*. A proxy's connections are not counted: they are those of many clients."""
        super().__init__(*args, **others)
        self._counted = counted
        self._name = ""
        self._deadline: asyncio.TimerHandle | None = None
        self._unread: asyncio.TimerHandle | None = None
        #: Why the connection is refused, once it is.
        self._refusal: tuple[HTTPStatus, str] | None = None
        #: Bytes of the current request: all that has arrived, and those of its body.
        self._wire_bytes = self._body_bytes = 0
        #: Whether a request has begun and is not whole, and whether its head is.
        self._has_begun = self._has_head = False
        #: Whether the current request was answered before all of its body was here.
        self._is_answered = False
        #: Whether the route bounds the body of the current request.
        self._is_streamed = False
        #: Whether the connection has become a WebSocket, which has another protocol.
        self._is_upgraded = False

    # ---- the connection ----------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Read the credentials of a new connection."""
        super().connection_made(transport)
        peer = _peer_of(transport.get_extra_info("socket"))
        self.app_state: dict[str, Any] = {**self.app_state, "peer": peer}
        self._name = f"uid {peer.uid}" if peer is not None else network_of(self.client[0] if self.client else "")
        count, most = (self._counted.opened(self._name), self._counted.most) if self._counted else (0, 0)
        if count > most:
            words = f"{self._name} has {most} connections, and may have no more: end some, such as gpuqueue logs -f"
            self._refusal = HTTPStatus.TOO_MANY_REQUESTS, words
        self._expect(REFUSED_S if self._refusal else REQUEST_S)
        if count > 2 * most:
            transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        self._settle()
        self._unset_keepalive_if_required()
        if self._unread is not None:
            self._unread.cancel()
        if self._counted is not None:
            self._counted.closed(self._name)
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        """Give the client some time to read what was sent to it."""
        super().pause_writing()
        self._unread = self.loop.call_later(UNREAD_S, self.transport.abort)

    def resume_writing(self) -> None:
        """Go on: the client reads."""
        super().resume_writing()
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None

    # ---- a request ---------------------------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        """Read a part of a request, which may not take too long and not be too large."""
        if self.transport.is_closing():
            return
        self._wire_bytes += len(data)
        if self._refusal is None:
            super().data_received(data)
        if self.transport.is_closing() or self._is_upgraded:
            return
        if not self._has_head and self._wire_bytes > MOST_HEAD_BYTES:
            self._refuse_head()
        elif self._wire_bytes > MOST_WIRE_BYTES and not self._is_streamed:
            self._refuse_body()
        if self._refusal is not None:
            self._answer(*self._refusal)
        elif self._deadline is None and not self._is_streamed and (self._has_begun or self._is_idle()):
            self._expect(REQUEST_S)

    def on_message_begin(self) -> None:
        """Begin to count the size of a request."""
        super().on_message_begin()
        self._wire_bytes = self._body_bytes = 0
        self._has_begun, self._has_head = True, False
        self._is_answered = self._is_streamed = False

    def on_header(self, name: bytes, value: bytes) -> None:
        """Add a header. A trailer, which comes behind a body, is none."""
        if not self._has_head:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Check the size of the head, and that of the body as the head announces it."""
        self._has_head = True
        is_streamed = (
            self.parser.get_method() == b"PUT" and _STREAMED.fullmatch(self.url.partition(b"?")[0]) is not None
        )
        size_bytes = len(self.url) + sum(len(name) + len(value) for name, value in self.headers)
        if size_bytes > MOST_HEAD_BYTES or len(self.headers) > MOST_HEADERS:
            self._refuse_head()
        elif _announced_bytes(self.headers) > MOST_BODY_BYTES and not is_streamed:
            self._refuse_body()
        else:
            self._is_streamed = is_streamed
            if is_streamed:
                self._settle()
            super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Check the size of the body, as far as it has arrived."""
        self._body_bytes += len(body)
        if self._body_bytes > MOST_BODY_BYTES and not self._is_streamed:
            self._refuse_body()
        if self._refusal is None:
            super().on_body(body)

    def on_message_complete(self) -> None:
        """End the time that a request may take."""
        self._settle()
        self._wire_bytes = 0
        self._has_begun = self._has_head = self._is_answered = self._is_streamed = False
        if self._refusal is None:
            super().on_message_complete()

    def _should_upgrade(self) -> bool:
        """Return whether the current request begins one of the known WebSockets. Nothing else does."""
        is_known = _WEBSOCKETS.fullmatch(self.url.partition(b"?")[0]) is not None
        return is_known and super()._should_upgrade()

    def handle_websocket_upgrade(self) -> None:
        """Leave the connection to another protocol. Its route counts those of each host or account."""
        self._settle()
        self._is_upgraded = True
        if self._counted is not None:
            self._counted.closed(self._name)
        super().handle_websocket_upgrade()

    def on_response_complete(self) -> None:
        """Go on to read the rest of a body that no route reads, within the bounds of a request.

        The answer does not announce the end of the connection, so the client sends its next request on it. A body whose
        size only its route bounds can be too large for that.
        """
        super().on_response_complete()
        self._is_answered = self._has_begun and self._has_head and self.cycle.response_complete
        if self._is_answered and self._is_streamed:
            self.transport.close()

    def send_400_response(self, msg: str) -> None:
        """Answer what is no HTTP."""
        self._answer(HTTPStatus.BAD_REQUEST, f"the request cannot be read: {msg}")

    # ---- refusals ----------------------------------------------------------------------------------------------------

    def _refuse_head(self) -> None:
        most = f"{MOST_HEAD_BYTES} bytes and {MOST_HEADERS} headers"
        self._refusal = HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, f"the head of a request has at most {most}"

    def _refuse_body(self) -> None:
        words = f"the body of a request has at most {MOST_BODY_BYTES} bytes"
        self._refusal = HTTPStatus.REQUEST_ENTITY_TOO_LARGE, words

    def _is_idle(self) -> bool:
        """Return whether no request is being answered."""
        return self.cycle is None or self.cycle.response_complete  # type: ignore[redundant-expr] # None at first

    def _expect(self, within_s: float) -> None:
        self._deadline = self.loop.call_later(within_s, self._is_late)

    def _settle(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _is_late(self) -> None:
        self._deadline = None
        if self._has_begun:
            seconds = f"{REQUEST_S:g} s"
            self._answer(HTTPStatus.REQUEST_TIMEOUT, f"a whole request must arrive within {seconds}")
        else:
            self.transport.close()

    def _answer(self, status: HTTPStatus, words: str) -> None:
        """Answer with a problem document, unless an answer has begun, and end the connection."""
        is_silent = not self._is_answered and (self._is_idle() or not self.cycle.response_started)
        if not self._is_idle():
            self.cycle.disconnected = True  # what the application still sends goes nowhere
            self.cycle.message_event.set()
        if is_silent:
            body = content_of(problem_at(status, words))
            headers = {"content-type": PROBLEM_TYPE, "content-length": len(body), "connection": "close"}
            lines = [f"{name}: {value}\r\n".encode("ascii") for name, value in headers.items()]
            lines += [name + b": " + value + b"\r\n" for name, value in self.server_state.default_headers]
            self.transport.write(b"".join([STATUS_LINE[status.value], *lines, b"\r\n", body]))
        self.transport.close()


def _announced_bytes(headers: list[tuple[bytes, bytes]]) -> int:
    """Return the length of a body as its head announces it, 0 if it does not. The parser has checked the digits."""
    return max((int(value) for name, value in headers if name == b"content-length"), default=0)


def _peer_of(connected: Any) -> Peer | None:
    if connected is None or connected.family != socket.AF_UNIX:
        return None
    pid, uid, gid = _UCRED.unpack(connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size))
    return Peer(pid=pid, uid=uid & 0xFFFFFFFF, gid=gid & 0xFFFFFFFF)
