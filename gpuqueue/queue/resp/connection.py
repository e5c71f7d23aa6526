"""One connection to a store."""

from __future__ import annotations

import _socket  # importing socket, with its enums, takes a tenth of the time of a submit
import select
from collections.abc import Sequence
from typing import Any

from gpuqueue.queue.resp.address import Address
from gpuqueue.queue.resp.errors import Gone, NotLetIn, ReplyError
from gpuqueue.queue.resp.protocol import Reader, Word, packed

_CHUNK_BYTES = 65536


class Line:
    """A connection to the store at *address*. After any RespError the only valid call is ``close``.

    *connect_s* is the timeout for the connection, *silent_s* the timeout for an answer, in seconds.
    """

    def __init__(self, address: Address, *, connect_s: float, silent_s: float) -> None:
        self._silent_s = silent_s
        self._reader = Reader(self._more)
        self._socket: _socket.socket
        try:
            self._socket = _connected(address, connect_s)
        except (OSError, ValueError) as error:  # ValueError: a path with a zero byte, a name that cannot be looked up
            raise Gone(f"no connection: {error}") from error
        try:
            self._socket.settimeout(silent_s)
            self._enter(address)
        except BaseException:
            self.close()
            raise

    def _enter(self, address: Address) -> None:
        """Authenticate, and select the database.

        The first command waits for these answers. Otherwise a store that refuses them would still run the command, as
        another user or in another database.
        """
        who: list[Sequence[Word]] = []
        if address.password:
            who.append(
                ("AUTH", address.user or "default", address.password)
            )  # with a user name it also works on a store without a password
        if address.client_name:
            who.append(("CLIENT", "SETNAME", address.client_name))
        if address.database:
            who.append(("SELECT", address.database))
        if not who:
            return
        for asked, answer in zip(who, self.ask(who), strict=True):
            if isinstance(answer, ReplyError):
                raise NotLetIn(str(answer)) if asked[0] == "AUTH" else answer

    def ask(self, commands: Sequence[Sequence[Word]]) -> list[Any]:
        """Send all *commands* at once and return the answers; an error takes the place of its answer."""
        self.send(commands)
        return [self._reader.answer() for _ in commands]

    def send(self, commands: Sequence[Sequence[Word]]) -> None:
        """Send *commands*."""
        try:
            self._socket.sendall(b"".join(map(packed, commands)))
        except OSError as error:
            raise Gone(f"it does not listen: {error}") from error

    def heard(self, timeout_s: float) -> Any:
        """Return the next message of the store; None after *timeout_s* seconds."""
        self._socket.settimeout(max(timeout_s, 0.001))  # zero means non-blocking
        try:
            return self._reader.answer()
        except TimedOut:
            return None
        finally:
            self._socket.settimeout(self._silent_s)

    def is_quiet(self) -> bool:
        """Return whether nothing unexpected has arrived, such as the end of the connection."""
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        return not poll.poll(0)

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()

    def _more(self) -> bytes:
        try:
            chunk = self._socket.recv(_CHUNK_BYTES)
        except TimeoutError as error:
            raise TimedOut("it says nothing") from error
        except OSError as error:
            raise Gone(f"the connection broke: {error}") from error
        if not chunk:
            raise Gone("it closed the connection")
        return chunk


class TimedOut(Gone):
    """The store did not answer within the timeout."""


def _connected(address: Address, connect_s: float) -> _socket.socket:
    if address.path:
        here = _socket.socket(_socket.AF_UNIX)
        try:
            here.settimeout(connect_s)
            here.connect(address.path)
        except BaseException:
            here.close()
            raise
        return here
    import socket  # noqa: PLC0415 - slow to import, and a unix socket does not need it

    made = socket.create_connection((address.host, address.port), timeout=connect_s)
    try:
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        if address.tls is None:
            return made
        from gpuqueue.queue.resp.tls import wrapped  # noqa: PLC0415 - importing ssl is a latency that users feel

        return wrapped(made, address.host, address.tls)
    except BaseException:
        made.close()
        raise
