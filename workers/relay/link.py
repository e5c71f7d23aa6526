"""The HTTP client by which a worker host calls the service, and the certificates of the service that it trusts."""

from __future__ import annotations

import functools
import json
import os
import socket
import ssl
import stat
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from pathlib import Path
from typing import IO
from urllib.parse import SplitResult, urlsplit

from gpuqueue.errors import BadRequest, GpuQueueError, Unreachable
from gpuqueue.settings.settings import Settings
from gpuqueue.system.certificates import certificate_trouble
from gpuqueue.system.socket_http import SocketConnection, is_local
from gpuqueue.text.sanitize import in_one_line
from gpuqueue.version import VERSION

#: The path below which the service has the calls of hosts.
HOST_API = "/api/v1/host"
CONNECT_S = 10.0
#: Longest silence of the service within a call, in seconds.
SILENCE_S = 60.0
#: A connection that was idle for longer is not used again, in seconds. Servers close idle ones after 5 s and more.
FRESH_S = 3.0
#: Largest file of a token, and largest answer that is read into memory, in bytes.
MOST_TOKEN_BYTES, MOST_ANSWER_BYTES = 4096, 2**20
CHUNK_BYTES = 2**20
#: The header of a refusal that says up to where the service has the file.
NEXT_OFFSET = "Gpuqueue-Next-Offset"
#: How the type of a problem begins that the service itself has found, in contrast to one of HTTP.
_OURS = "urn:gpuqueue:error:"
#: The type of the content in which the service, and no proxy, explains an error.
_PROBLEM = "application/problem+json"
#: Statuses that say nothing about the call: the same call may succeed later.
_LATER = frozenset({401, 403, 407, 408, 425, 429})
_NOT_FOUND, _TOO_SLOW, _LEAST_ERROR, _LEAST_FAULT = 404, 408, 300, 500

#: Errors of a connection that the service has closed while it was idle.
_CLOSED = (ConnectionError, ssl.SSLEOFError, ssl.SSLZeroReturnError)

Body = bytes | IO[bytes] | Iterator[bytes]


class ServiceAway(Unreachable):
    """The service does not answer, or does not serve this host now. The same call may succeed later."""


class CallFailed(ServiceAway):
    """The service answers, but this call failed there. It may succeed later, and other calls may succeed now."""


class Refusal(GpuQueueError):
    """The service refuses a call. *next_offset*: up to where it has the file, in bytes, if it says so."""

    def __init__(self, what: str, status: int, next_offset: int | None = None) -> None:
        super().__init__(what)
        self.status = status
        self.next_offset = next_offset


class Link:
    """One connection to the service, for one thread. It is made when it is needed.

    Each call raises ServiceAway if the service cannot be reached or does not serve this host now, or its class
    CallFailed if only this call failed there, Refusal if it refuses the call, and BadRequest if the token or the
    certificate on this host cannot be used.
    """

    def __init__(self, settings: Settings, *, silence_s: float = SILENCE_S) -> None:
        self.url = settings.service_url or ""
        #: The number of calls that the service has answered.
        self.answers = 0
        self._settings = settings
        self._silence_s = silence_s
        self._connection: HTTPConnection | None = None
        self._socket: socket.socket | None = None
        self._used_at_s = 0.0

    def put(self, path: str, body: bytes = b"") -> None:
        """Send *body* to *path*."""
        self._ask("PUT", path, body)

    def put_file(self, path: str, file: IO[bytes], size_bytes: int, *, answer_s: float) -> None:
        """Send the rest of an open file, *size_bytes*, to *path*. The service stores it within *answer_s*."""
        self._ask("PUT", path, file, {"Content-Length": str(size_bytes)}, answer_s)

    def put_pieces(self, path: str, pieces: Iterator[bytes]) -> None:
        """Send *pieces* to *path* as they come. If their iterator raises, the service sees that the body is cut off."""
        self._ask("PUT", path, pieces, {"Transfer-Encoding": "chunked"})

    def get(self, path: str, *, timeout_s: float) -> bytes:
        """Return the content at *path*. The service answers within *timeout_s*."""
        return self._ask("GET", path, timeout_s=timeout_s)

    def get_list(self, path: str, *, timeout_s: float) -> list[object]:
        """Return the JSON list at *path*. The service answers within *timeout_s*."""
        found = _json(self.get(path, timeout_s=timeout_s))
        if not isinstance(found, list):
            raise ServiceAway(f"{self.url} does not answer as a gpuqueue service does")
        return found

    @contextmanager
    def download(self, path: str, *, total_s: float) -> Iterator[Download]:
        """Open the stream at *path*, which must end within *total_s*."""
        until_s = time.monotonic() + total_s
        self.close()
        try:
            with self.troubles():
                answer = self._sent("GET", path, b"", {}, min(self._silence_s, total_s))
                refused = answer.read(MOST_ANSWER_BYTES) if answer.status >= _LEAST_ERROR else None
            if refused is not None:
                raise self._error(answer, refused)
            yield Download(self, answer, self._silence_s, until_s)
        finally:
            self.close()

    def limit(self, silence_s: float) -> None:
        """Let the service be silent for at most *silence_s* from now on."""
        if self._socket is not None:
            self._socket.settimeout(silence_s)

    def close(self) -> None:
        """Close the connection."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    @contextmanager
    def troubles(self) -> Iterator[None]:
        """Turn errors of the connection into ServiceAway, and close the connection after any error."""
        try:
            yield
        except BaseException as error:
            self.close()
            if isinstance(error, ssl.SSLCertVerificationError):
                raise ServiceAway(certificate_trouble(self.url, error, "set service_ca to")) from error
            if isinstance(error, (OSError, HTTPException, ValueError)):
                raise ServiceAway(f"the service at {self.url} does not answer: {_in_words(error)}") from error
            raise

    def _ask(
        self,
        method: str,
        path: str,
        body: Body = b"",
        headers: Mapping[str, str] | None = None,
        timeout_s: float | None = None,
    ) -> bytes:
        """Make a call and return the content of its answer."""
        if not isinstance(body, bytes):
            self.close()  # such a body cannot be sent twice, so no connection is used that the service may have closed
        with self.troubles():
            answer = self._sent(method, path, body, headers or {}, timeout_s or self._silence_s)
            content = answer.read(MOST_ANSWER_BYTES)
        self.answers += 1
        if answer.isclosed() and not answer.will_close:
            self._used_at_s = time.monotonic()
        else:
            self.close()
        if answer.status >= _LEAST_ERROR:
            raise self._error(answer, content)
        return content

    def _sent(self, method: str, path: str, body: Body, headers: Mapping[str, str], timeout_s: float) -> HTTPResponse:
        """Send a call, and return the head of its answer. If the service had closed the connection, send it again."""
        if self._connection is not None and time.monotonic() - self._used_at_s > FRESH_S:
            self.close()
        was_used = self._connection is not None
        try:
            return self._sent_once(method, path, body, headers, timeout_s)
        except _CLOSED:
            if not was_used:
                raise
            self.close()
            return self._sent_once(method, path, body, headers, timeout_s)

    def _sent_once(
        self, method: str, path: str, body: Body, headers: Mapping[str, str], timeout_s: float
    ) -> HTTPResponse:
        connection = self._connection or self._connect()
        self.limit(timeout_s)
        known = {
            "User-Agent": f"gpuqueue/{VERSION}",
            "Content-Type": "application/octet-stream",
        }
        if not is_local(self.url):
            known["Authorization"] = f"Bearer {token_of(self._settings)}"
        place = ("" if is_local(self.url) else urlsplit(self.url).path) + HOST_API + path
        # The service may refuse a call before it has read the whole body.
        with suppress(BrokenPipeError, ConnectionResetError):
            connection.request(method, place, body, {**known, **headers}, encode_chunked=not isinstance(body, bytes))
        return connection.getresponse()

    def _connect(self) -> HTTPConnection:
        made = self._connection_to(urlsplit(self.url))
        try:
            made.connect()
        except BaseException:
            made.close()
            raise
        self._connection, self._socket = made, made.sock
        return made

    def _connection_to(self, parts: SplitResult) -> HTTPConnection:
        host = parts.hostname or ""
        if is_local(self.url):
            return SocketConnection(self.url, timeout=CONNECT_S, blocksize=CHUNK_BYTES)
        if parts.scheme == "https":
            context = tls_context(self._settings.service_ca)
            return HTTPSConnection(host, parts.port, timeout=CONNECT_S, context=context, blocksize=CHUNK_BYTES)
        return HTTPConnection(host, parts.port, timeout=CONNECT_S, blocksize=CHUNK_BYTES)

    def _error(self, answer: HTTPResponse, content: bytes) -> GpuQueueError:
        found, status = _json(content), answer.status
        problem = found if isinstance(found, dict) else {}
        detail = in_one_line(str(problem.get("detail") or f"{status} {answer.reason}"))
        # A service of an older version, or a proxy, knows none of these paths.
        unknown = status == _NOT_FOUND and not str(problem.get("type")).startswith(_OURS)
        if answer.headers.get_content_type() == _PROBLEM and (status == _TOO_SLOW or status >= _LEAST_FAULT):
            return CallFailed(f"the service at {self.url} cannot do this now: {detail}")
        if status in _LATER or status >= _LEAST_FAULT or status < 400 or unknown:  # noqa: PLR2004 - redirects
            return ServiceAway(f"the service at {self.url} does not serve this host: {detail}")
        offset = answer.headers.get(NEXT_OFFSET, "")
        return Refusal(detail, status, int(offset) if offset.isascii() and offset.isdigit() else None)


class Download:
    """The body of an answer, which is read like a file. It may be silent only for so long, and must end in time."""

    def __init__(self, link: Link, answer: HTTPResponse, silence_s: float, until_s: float) -> None:
        self._link = link
        self._answer = answer
        self._silence_s = silence_s
        self._until_s = until_s

    def read(self, size: int, /) -> bytes:
        """Return at most *size* bytes, as soon as there are any; none at the end.

        Raises:
            ServiceAway: The service was silent for too long, or sends too slowly.

        """
        left_s = self._until_s - time.monotonic()
        if left_s <= 0:
            raise ServiceAway(f"the service at {self._link.url} sends too slowly")
        with self._link.troubles():
            self._link.limit(min(self._silence_s, left_s))
            return self._answer.read1(size)


def token_of(settings: Settings) -> str:
    """Return the token of this host. It is read for each call, so a new one needs no restart.

    Raises:
        BadRequest: There is no such file, others may read it, or it has no token.

    """
    path = settings.service_token_file
    if path is None:
        raise BadRequest("this host has no token for the service: set service_token_file")
    try:
        with path.open("rb") as file:
            if stat.S_IMODE(os.fstat(file.fileno()).st_mode) & 0o077:
                raise BadRequest(f"others may read the token of this host in {path}: chmod 600 {path}")
            text = file.read(MOST_TOKEN_BYTES).decode("ascii", "replace").strip()
    except OSError as error:
        raise BadRequest(f"the token of this host in {path} cannot be read: {error.strerror}") from error
    if not text or not text.isascii() or not text.isprintable() or " " in text:
        raise BadRequest(f"{path} holds no token of a host: it has one line, the token")
    return text


def _in_words(error: BaseException) -> str:
    if isinstance(error, TimeoutError):
        return "no answer in time"
    return in_one_line(getattr(error, "strerror", None) or str(error) or type(error).__name__)


def _json(content: bytes) -> object:
    try:
        return json.loads(content)
    except ValueError:
        return None


def tls_context(ca: Path | None) -> ssl.SSLContext:
    """Return what TLS needs: with *ca* only the authorities in that file are trusted.

    Raises:
        BadRequest: The file cannot be used.

    """
    try:
        return _cached_context(ca, None if ca is None else ca.stat().st_mtime_ns)
    except OSError as error:
        why = error.strerror or "it has no certificate"
        raise BadRequest(f"the file {ca} of the setting service_ca cannot be used: {why}") from error


@functools.lru_cache(maxsize=2)
def _cached_context(ca: Path | None, _mtime_ns: int | None) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=None if ca is None else str(ca))
