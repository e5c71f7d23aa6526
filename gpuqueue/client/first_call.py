"""One request to a service by its address and a token, outside of a client: for login, for join and for doctor."""

from __future__ import annotations

import json
from dataclasses import field
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from gpuqueue.errors import GpuQueueError, Refused, Unreachable, Unreadable
from gpuqueue.lazy.frozen import dataclass
from gpuqueue.lazy.imports import later
from gpuqueue.settings.credentials import origin_of
from gpuqueue.system.certificates import certificate_trouble
from gpuqueue.text.sanitize import brief, plain, short

if TYPE_CHECKING:
    import ssl
    from http import client as http
    from pathlib import Path

    from gpuqueue.client.remote import link
    from gpuqueue.system import socket_http
else:
    http, link, ssl = later("http.client"), later("gpuqueue.client.remote.link"), later("ssl")
    socket_http = later("gpuqueue.system.socket_http")

TIMEOUT_S = 10.0
#: Largest answer that is read, in bytes.
MOST_BYTES = 1024 * 1024
#: Longest reason of a service that is shown, in characters.
MOST_DETAIL = 400
_OK = 200


@dataclass(frozen=True, kw_only=True, slots=True)
class Reply:
    """The answer of a service: its status, and its JSON, None if it is none."""

    status: int
    content: Any

    @property
    def is_ok(self) -> bool:
        """Return whether the service has done what was asked."""
        return self.status == _OK

    @property
    def error(self) -> GpuQueueError | None:
        """Return the error of a problem document, None without one."""
        try:
            name, detail, code = (self.content[each] for each in ("error", "detail", "exit_code"))
            return link.error_of(str(name), short(plain(str(detail)), MOST_DETAIL), int(code))
        except (TypeError, ValueError, KeyError):
            return None


@dataclass(frozen=True, kw_only=True, slots=True)
class ServiceAddress:
    """How a service is reached: its address, an access token, and the certificate (PEM) of its authority.

    None for ``ca``: the authorities that this machine trusts. ``naming`` is what a person does with the certificate of
    another one, for messages. A service at a socket of this machine (``unix:///PATH``) needs no token.
    """

    url: str
    token: str = field(repr=False)
    ca: Path | None = None
    naming: str = "set SSL_CERT_FILE to"

    @property
    def is_local(self) -> bool:
        """Return whether the service is reached over a socket of this machine."""
        return socket_http.is_local(self.url)

    @property
    def origin(self) -> str:
        """Return the scheme, host and port, or the address of the socket.

        Raises:
            BadRequest: it is no address that a token may be sent to.

        """
        return self.url if self.is_local else origin_of(self.url)


def ask(service: ServiceAddress, path: str, body: object = None) -> Reply:
    """Return the answer to a GET, or to a POST with *body*, at *path* of the API. No redirection is followed.

    Raises:
        BadRequest: the address is none that a token may be sent to.
        Refused: the certificate of the service is not trusted, or that of the authority cannot be used.
        Unreachable: the service does not answer.

    """
    connection = _connection(service)
    content = None if body is None else json.dumps(body).encode("ascii")
    headers = {"Content-Type": "application/json"}
    if not service.is_local:
        headers["Authorization"] = f"Bearer {service.token}"
    try:
        where = ("" if service.is_local else urlsplit(service.url).path.rstrip("/")) + link.API + path
        connection.request("GET" if content is None else "POST", where, content, headers)
        answer = connection.getresponse()
        text = answer.read(MOST_BYTES)
    except (OSError, http.HTTPException) as error:
        if type(error).__name__ == "SSLCertVerificationError":
            raise Refused(certificate_trouble(service.origin, error, service.naming)) from error
        raise Unreachable(f"the service at {service.origin} does not answer: {brief(str(error))}") from error
    finally:
        connection.close()
    try:
        return Reply(status=answer.status, content=json.loads(text))
    except ValueError:
        return Reply(status=answer.status, content=None)


def no_service(service: ServiceAddress, reply: Reply) -> Unreadable:
    """Return the error that something else answers there."""
    return Unreadable(f"{service.origin} is no gpuqueue service: it answers {reply.status}")


def _connection(service: ServiceAddress) -> http.HTTPConnection:
    if service.is_local:
        return socket_http.SocketConnection(service.url, timeout=TIMEOUT_S)
    parts = urlsplit(service.origin)
    if parts.scheme == "http":  # on this machine only, as origin_of checks
        return http.HTTPConnection(parts.hostname or "", parts.port, timeout=TIMEOUT_S)
    try:
        context = ssl.create_default_context(cafile=service.ca)
    except (OSError, ValueError) as error:
        raise Refused(f"{service.ca} is no certificate (PEM) that can be used: {error}") from error
    return http.HTTPSConnection(parts.hostname or "", parts.port, timeout=TIMEOUT_S, context=context)
