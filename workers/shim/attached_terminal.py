"""The attached terminal of an interactive job. Runs in the shim. Standard library only.

It differs from :mod:`workers.shim.pseudo_terminal` in three ways. It is also the job's standard input. It echoes and
edits lines as an ordinary terminal does. Clients can connect to it through the socket ``tty`` in the run directory,
which only the run's account can open.

A client sends frames. A frame is one letter, the length of the payload in two bytes (big-endian), and the payload.

======  ===========================================================================================
letter  payload
======  ===========================================================================================
``I``   typed input
``W``   columns and rows of the client's terminal, two bytes each
======  ===========================================================================================

The shim sends each client one byte whenever the log has grown. The client reads the output from the log file itself,
so a slow client neither blocks the job nor misses output.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import socket
import struct
import termios

from workers.shim.pseudo_terminal import CHUNK_BYTES, Terminal

#: The socket in the run directory.
SOCKET = "tty"
#: Limit of typed input that the job has not read yet, in bytes. Above it the shim stops reading from clients.
MOST_TYPED_BYTES = 65536
#: Largest number of clients at the same time.
MOST_CLIENTS = 16

_HEAD = struct.Struct("!cH")
_SIZE = struct.Struct("!HH")


class TypedTerminal(Terminal):
    """A pseudo-terminal of *columns* by *rows* that accepts typed input from clients of its socket."""

    def __init__(self, log: int, columns: int, rows: int) -> None:
        """Create the terminal, and its socket in the working directory, which is the run directory.

        Raises:
            OSError: the host has no free pseudo-terminal or no free file descriptor.

        """
        super().__init__(log, columns, rows, echoes=True)
        os.set_blocking(self._ours, False)
        with contextlib.suppress(OSError):
            os.unlink(SOCKET)
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
        self._listener.bind(SOCKET)  # a relative name: the path in a socket address is limited to about 100 bytes
        self._listener.listen(MOST_CLIENTS)
        self._clients: dict[int, tuple[socket.socket, bytearray]] = {}
        self._typed = bytearray()

    def take(self) -> None:
        """Make the terminal the standard input, output and error of this process."""
        super().take()
        os.dup2(self._theirs, 0)

    def _copy(self) -> None:
        poll = select.poll()
        poll.register(self._listener, select.POLLIN)
        while True:
            poll.register(self._ours, select.POLLIN | (select.POLLOUT if self._typed else 0))
            events = select.POLLIN if len(self._typed) < MOST_TYPED_BYTES else 0  # backpressure for a large paste
            for fd in self._clients:
                poll.register(fd, events)
            for fd, _ in poll.poll():
                if fd == self._ours:
                    if not self._pass_on():
                        self._leave()
                        return
                elif fd == self._listener.fileno():
                    self._accept(poll)
                elif not self._receive(fd):
                    poll.unregister(fd)
                    self._clients.pop(fd)[0].close()

    def _pass_on(self) -> bool:
        """Copy pending bytes in both directions; return whether any process still has the terminal open."""
        with contextlib.suppress(BlockingIOError):
            del self._typed[: os.write(self._ours, self._typed) if self._typed else 0]
        try:
            some = os.read(self._ours, CHUNK_BYTES)
        except BlockingIOError:
            return True
        except OSError:  # EIO: no process has the terminal open
            return False
        if some:
            self._write_log(some)
            for client, _ in self._clients.values():
                with contextlib.suppress(OSError):  # the client is gone, or its socket buffer is full
                    client.send(b".", socket.MSG_DONTWAIT)
        return bool(some)

    def _accept(self, poll: select.poll) -> None:
        with contextlib.suppress(OSError):
            client, _ = self._listener.accept()
            if len(self._clients) >= MOST_CLIENTS:
                client.close()
                return
            client.setblocking(False)
            self._clients[client.fileno()] = (client, bytearray())
            poll.register(client, select.POLLIN)

    def _receive(self, fd: int) -> bool:
        """Read frames from the client on *fd*; return False if the client left or sent an invalid frame."""
        client, frames = self._clients[fd]
        try:
            some = client.recv(CHUNK_BYTES)
        except BlockingIOError:
            return True
        except OSError:
            return False
        frames += some
        while len(frames) >= _HEAD.size:
            kind, length = _HEAD.unpack_from(frames)
            if len(frames) < _HEAD.size + length:
                break
            rest = bytes(frames[_HEAD.size : _HEAD.size + length])
            del frames[: _HEAD.size + length]
            if not self._apply(kind, rest):
                return False
        return bool(some)

    def _apply(self, kind: bytes, rest: bytes) -> bool:
        if kind == b"I":
            self._typed += rest
            return True
        if kind == b"W" and len(rest) == _SIZE.size:
            columns, rows = _SIZE.unpack(rest)
            with contextlib.suppress(OSError):
                fcntl.ioctl(self._ours, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
            return True
        return False

    def _leave(self) -> None:
        """Remove the socket, disconnect all clients and close the log."""
        with contextlib.suppress(OSError):
            os.unlink(SOCKET)
        self._listener.close()
        for client, _ in self._clients.values():
            client.close()
        os.close(self.log)
