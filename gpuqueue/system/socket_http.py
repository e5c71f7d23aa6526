"""HTTP to a service on this machine, over its unix socket."""

from __future__ import annotations

import socket
from http.client import HTTPConnection
from urllib.parse import urlsplit

#: How the address of such a service begins.
UNIX = "unix:"


def is_local(url: str) -> bool:
    """Return whether *url* is the address of a unix socket. The kernel says there who calls: no token is needed."""
    return url.startswith(UNIX)


class SocketConnection(HTTPConnection):
    """A connection to the service at ``unix:///PATH``."""

    def __init__(self, url: str, *, timeout: float, blocksize: int = 8192) -> None:
        super().__init__("localhost", timeout=timeout, blocksize=blocksize)
        self._path = urlsplit(url).path

    def connect(self) -> None:
        """Connect to the socket."""
        made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        made.settimeout(self.timeout)
        try:
            made.connect(self._path)
        except BaseException:
            made.close()
            raise
        self.sock = made
