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
MOST_ATTACHED = 16

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
        self._resp = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
        self._resp.bind(SOCKET)  # a relative name: the path in a socket address is limited to about 100 bytes
        self._resp.listen(MOST_ATTACHED)
        self._attached: dict[int, tuple[socket.socket, bytearray]] = {}
        self._typed = bytearray()

    def take(self) -> None:
        """Make the terminal the standard input, output and error of this process."""
        super().take()
        os.dup2(self._theirs, 0)

    def _copy(self) -> None:
        poll = select.poll()
        poll.register(self._resp, select.POLLIN)
        while True:
            poll.register(self._ours, select.POLLIN | (select.POLLOUT if self._typed else 0))
            hears = select.POLLIN if len(self._typed) < MOST_TYPED_BYTES else 0  # backpressure for a large paste
            for fd in self._attached:
                poll.register(fd, hears)
            for fd, _ in poll.poll():
                if fd == self._ours:
                    if not self._pass_on():
                        self._leave()
                        return
                elif fd == self._resp.fileno():
                    self._attached_terminal(poll)
                elif not self._hear(fd):
                    poll.unregister(fd)
                    self._attached.pop(fd)[0].close()

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
            self._keep(some)
            for attached_terminal, _ in self._attached.values():
                with contextlib.suppress(OSError):  # the client is gone, or its socket buffer is full
                    attached_terminal.send(b".", socket.MSG_DONTWAIT)
        return bool(some)

    def _attached_terminal(self, poll: select.poll) -> None:
        with contextlib.suppress(OSError):
            attached_terminal, _ = self._resp.accept()
            if len(self._attached) >= MOST_ATTACHED:
                attached_terminal.close()
                return
            attached_terminal.setblocking(False)
            self._attached[attached_terminal.fileno()] = (attached_terminal, bytearray())
            poll.register(attached_terminal, select.POLLIN)

    def _hear(self, fd: int) -> bool:
        """Read frames from the client on *fd*; return False if the client left or sent an invalid frame."""
        attached_terminal, frames = self._attached[fd]
        try:
            some = attached_terminal.recv(CHUNK_BYTES)
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
            if not self._obey(kind, rest):
                return False
        return bool(some)

    def _obey(self, kind: bytes, rest: bytes) -> bool:
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
        self._resp.close()
        for attached_terminal, _ in self._attached.values():
            attached_terminal.close()
        os.close(self.log)
