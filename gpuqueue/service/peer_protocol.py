"""HTTP over a unix socket, with the credentials of the process at the other end."""

from __future__ import annotations

import asyncio
import socket
import struct
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from gpuqueue.service.callers import Peer

#: The layout of ``struct ucred``: pid, uid, gid.
_UCRED = struct.Struct("3i")


class PeerProtocol(HttpToolsProtocol):
    """Puts the peer of a unix socket into the state of each request of the connection.

    The credentials are those at the time of ``connect``. The process may have ended since.
    """

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Read the credentials of a new connection."""
        super().connection_made(transport)
        peer = _peer_of(transport.get_extra_info("socket"))
        self.app_state: dict[str, Any] = {**self.app_state, "peer": peer}


def _peer_of(connected: Any) -> Peer | None:
    if connected is None or connected.family != socket.AF_UNIX:
        return None
    pid, uid, gid = _UCRED.unpack(connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size))
    return Peer(pid=pid, uid=uid & 0xFFFFFFFF, gid=gid & 0xFFFFFFFF)
