"""For peers that listen on a port: finds a free port, and checks whether a server answers."""

from __future__ import annotations

import socket
import urllib.request

#: The user's proxy is not used for a server on this machine.
_DIRECTLY = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def free_port() -> int:
    """Return a free port of this machine."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
        return port


def answer(url: str) -> bytes:
    """Return the response body of *url*; empty without a server or with an error."""
    try:
        with _DIRECTLY.open(url, timeout=5) as reply:
            body: bytes = reply.read()
            return body
    except OSError:  # URLError and HTTPError are OSErrors
        return b""
