"""A server is killed after a client has connected and before TLS begins."""

from __future__ import annotations

import socket
import ssl
import struct
from collections.abc import Callable

import pytest

from gpuqueue.client.remote.http import HttpConnection, Place
from gpuqueue.queue.resp.connection import wrapped


def to_the_service(port: int) -> None:
    """Connect to a service."""
    HttpConnection(Place.of(f"https://127.0.0.1:{port}"), 5.0)


def to_the_store(port: int) -> None:
    """Connect to a store."""
    with socket.create_connection(("127.0.0.1", port), timeout=5.0) as plain:
        wrapped(plain, "127.0.0.1", {})


@pytest.mark.parametrize("connect", [to_the_service, to_the_store])
def test_a_connection_that_is_reset_before_tls_leaves_no_socket(
    monkeypatch: pytest.MonkeyPatch, connect: Callable[[int], None]
) -> None:
    """The error of the connection is raised, and no socket is left to the garbage collector, which would warn.

    A follower of a log met this once when the service was killed.
    """
    real = ssl.create_default_context
    with socket.create_server(("127.0.0.1", 0)) as server:

        def reset_first() -> ssl.SSLContext:
            accepted, _ = server.accept()
            accepted.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            accepted.close()
            return real()

        monkeypatch.setattr(ssl, "create_default_context", reset_first)

        with pytest.raises(OSError, match="not connected"):
            connect(server.getsockname()[1])
