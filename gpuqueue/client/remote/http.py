"""A small HTTP/1.1 client over a unix socket, TCP or TLS. It does what the service needs, and imports little."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from gpuqueue.lazy.frozen import dataclass

if TYPE_CHECKING:
    import ssl
    from io import BufferedReader
    from pathlib import Path

#: Longest line of an answer's head, and most lines of it. A server that sends more is no service of ours.
MOST_LINE_BYTES, MOST_LINES = 16 * 1024, 100
#: Largest answer that is read into memory, in bytes.
MOST_BODY_BYTES = 256 * 1024 * 1024
#: Largest piece of an answer that is read as it arrives, in bytes.
MOST_PIECE_BYTES = 2**20
#: How long a unix socket whose server accepts nothing is waited for, in seconds.
LISTENS_S = 1.0


class NoHttp(Exception):
    """The other end closed the connection, or does not speak HTTP."""


class ClosedEarly(NoHttp):
    """The other end closed the connection before the answer was complete."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """Where a service listens. *path* is a unix socket; else *host* and *port* count. *base* begins each URL's path."""

    url: str
    path: str = ""
    host: str = "localhost"
    port: int = 0
    tls: bool = False
    base: str = ""

    @classmethod
    def of(cls, url: str) -> Place:
        """Return the place of a URL that the settings have checked."""
        scheme, _, rest = url.partition("://")
        if scheme == "unix":
            from urllib.parse import unquote  # noqa: PLC0415 - only for a path with an escape

            return cls(url=url, path=unquote(rest) if "%" in rest else rest)
        address, slash, base = rest.partition("/")
        tls = scheme == "https"
        host, colon, port = address.rpartition(":")
        if not colon or address.endswith("]"):
            host, port = address, "443" if tls else "80"
        return cls(url=url, host=host.strip("[]"), port=int(port), tls=tls, base=slash + base)


class Answer:
    """The head of an answer, and its body, which is read from the connection on demand."""

    def __init__(self, status: int, headers: Mapping[str, str], stream: BufferedReader) -> None:
        self.status, self.headers = status, headers
        self._stream = stream

    @property
    def keeps_open(self) -> bool:
        """Return whether the connection can take another request after the body was read."""
        framed = "content-length" in self.headers or self.headers.get("transfer-encoding", "") == "chunked"
        return framed and self.headers.get("connection", "").lower() != "close"

    def body(self) -> bytes:
        """Return the whole body.

        Raises:
            NoHttp: it is cut off or too large.

        """
        found = bytearray()
        for piece in self.pieces():
            found += piece
            if len(found) > MOST_BODY_BYTES:
                raise NoHttp(f"the answer has more than {MOST_BODY_BYTES} bytes")
        return bytes(found)

    def pieces(self) -> Iterator[bytes]:
        """Yield the body as it arrives.

        Raises:
            NoHttp: it is cut off.

        """
        if self.status == 204:  # noqa: PLR2004 - no content
            return
        if self.headers.get("transfer-encoding", "") == "chunked":
            while size := _size(_line(self._stream).partition(b";")[0], 16):
                yield from _in_pieces(self._stream, size)
                _line(self._stream)
            while _line(self._stream):
                pass
            return
        yield from _in_pieces(self._stream, _size(self.headers.get("content-length", "").encode(), 10))


class HttpConnection:
    """One connection to a service. It carries one request at a time.

    Raises:
        OSError: the service cannot be reached.

    """

    def __init__(self, place: Place, timeout_s: float) -> None:
        self._place = place
        self._socket = _connected(place, timeout_s)
        self._stream = self._socket.makefile("rb")
        #: Whether an answer has come over this connection: the server may have closed it since.
        self.is_used = False
        #: When the last answer began, on the monotonic clock.
        self.answered_at_s = time.monotonic()

    def ask(self, method: str, path: str, headers: Mapping[str, str], body: bytes | None, timeout_s: float) -> Answer:
        """Send a request and return the head of the answer. *timeout_s* is the longest silence in an answer.

        Raises:
            OSError: the connection failed.
            NoHttp: it was closed before the answer, or the answer is not HTTP.

        """
        place = self._place
        lines = [f"{method} {place.base}{path} HTTP/1.1", f"Host: {place.host}"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        if body is not None:
            lines += ["Content-Type: application/json", f"Content-Length: {len(body)}"]
        self._socket.settimeout(timeout_s)
        self._socket.sendall("\r\n".join([*lines, "", ""]).encode("ascii") + (body or b""))
        answer = _head(self._stream)
        self.is_used = True
        self.answered_at_s = time.monotonic()
        return answer

    def limit(self, silence_s: float) -> None:
        """Let the service be silent for at most *silence_s* seconds from now on."""
        self._socket.settimeout(silence_s)

    def shut(self) -> None:
        """End the connection. A thread that reads an answer sees its end."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the connection."""
        self._stream.close()
        self._socket.close()


def answers(path: Path) -> bool:
    """Return whether something listens at the unix socket *path*."""
    try:
        _connected(Place(url="", path=str(path)), LISTENS_S).close()
    except OSError:
        return False
    return True


def _connected(place: Place, timeout_s: float) -> socket.socket:
    if place.path:
        made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        made.settimeout(timeout_s)
        try:
            made.connect(place.path)
        except OSError:
            made.close()
            raise
        return made
    made = socket.create_connection((place.host, place.port), timeout=timeout_s)
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if not place.tls:
        return made
    try:
        context = tls_context()
        made.getpeername()  # Python's ssl module would not close the socket of a connection that was reset before this
        return context.wrap_socket(made, server_hostname=place.host)
    except (OSError, ValueError):
        made.close()
        raise


def tls_context() -> ssl.SSLContext:
    """Return what TLS to a service needs. SSL_CERT_FILE can name other authorities than those of the machine."""
    import ssl  # noqa: PLC0415 - slow to import, and only https needs it

    return ssl.create_default_context()


def _head(stream: BufferedReader) -> Answer:
    version, _, rest = _line(stream).partition(b" ")
    status = rest[:3]
    if not version.startswith(b"HTTP/1.") or not status.isdigit():
        raise NoHttp("the answer is not HTTP")
    headers: dict[str, str] = {}
    for _ in range(MOST_LINES):
        line = _line(stream)
        if not line:
            return Answer(int(status), headers, stream)
        name, _, value = line.decode("latin-1").partition(":")
        headers[name.strip().lower()] = value.strip()
    raise NoHttp("the answer has too many headers")


def _line(stream: BufferedReader) -> bytes:
    line = stream.readline(MOST_LINE_BYTES)
    if not line.endswith(b"\n"):
        if len(line) < MOST_LINE_BYTES:
            raise ClosedEarly("the connection was closed")
        raise NoHttp("the answer is not HTTP")
    return line.rstrip(b"\r\n")


def _in_pieces(stream: BufferedReader, size: int) -> Iterator[bytes]:
    """Yield *size* bytes in pieces that memory can hold: a chunk may have any size."""
    while size > 0:
        piece = _exactly(stream, min(size, MOST_PIECE_BYTES))
        size -= len(piece)
        yield piece


def _exactly(stream: BufferedReader, size: int) -> bytes:
    found = stream.read(size)
    if len(found) < size:
        raise ClosedEarly("the connection was closed")
    return found


def _size(text: bytes, base: int) -> int:
    try:
        return int(text, base)
    except ValueError:
        raise NoHttp("the answer is not HTTP") from None
