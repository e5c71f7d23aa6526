"""Peers that listen on a port: a free one, and whether somebody answers there."""

from __future__ import annotations

import socket
import urllib.request

#: A proxy of the user's has nothing to do with a server on this machine.
_DIRECTLY = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def free_port() -> int:
    """Return a port of this machine that nobody listens on."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
        return port


def answer(url: str) -> bytes:
    """Return what is answered there; nothing if nobody does, or with an error."""
    try:
        with _DIRECTLY.open(url, timeout=5) as reply:
            body: bytes = reply.read()
            return body
    except OSError:  # URLError and HTTPError are
        return b""
