"""How many connections each peer may have, and how long and how large a request may be.

The bounds are those of one peer, so that nobody locks out others: an account on the unix socket, an address over TCP.
"""

from __future__ import annotations

import contextlib
import resource
from collections import Counter

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
