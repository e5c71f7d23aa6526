"""A terminal that people may type on. Standard library only: it is the shim's.

As :mod:`workers.shim.pseudo_terminal`, with three differences: it is standard input as well, it echoes and edits lines
as any
terminal does, and whoever sits at another one can reach it by the socket ``tty`` in the run directory, which only the
account of the run can open. What comes from there are frames: a letter, the length of the rest in two bytes, the rest.

======  ===========================================================================================
letter  the rest
======  ===========================================================================================
``I``   what was typed
``W``   columns and rows of the terminal that they sit at, two bytes each
======  ===========================================================================================

The other way goes a byte whenever there is more in the log: that is read as ever, so that nobody who reads slowly can
keep the job waiting, or miss anything.
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
#: With so much typed that the job has not read, in bytes, nothing more is taken for now.
MOST_TYPED_BYTES = 65536
#: How many may sit at the terminal at a time.
MOST_SEATS = 16

_HEAD = struct.Struct("!cH")
_SIZE = struct.Struct("!HH")


class TypedTerminal(Terminal):
    """A pseudo-terminal of *columns* by *rows* that whoever may open the socket can type on."""

    def __init__(self, log: int, columns: int, rows: int) -> None:
        """Make it, in the run directory.

        Raises:
            OSError: the host has no terminal, or no descriptor, to give.

        """
        super().__init__(log, columns, rows, echoes=True)
        os.set_blocking(self._ours, False)
        with contextlib.suppress(OSError):
            os.unlink(SOCKET)
        self._door = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
        self._door.bind(SOCKET)  # by this short name: a path in a socket's address must be short
        self._door.listen(MOST_SEATS)
        self._seats: dict[int, tuple[socket.socket, bytearray]] = {}
        self._typed = bytearray()

    def take(self) -> None:
        """Make it standard input as well."""
        super().take()
        os.dup2(self._theirs, 0)

    def _copy(self) -> None:
        poll = select.poll()
        poll.register(self._door, select.POLLIN)
        while True:
            poll.register(self._ours, select.POLLIN | (select.POLLOUT if self._typed else 0))
            hears = select.POLLIN if len(self._typed) < MOST_TYPED_BYTES else 0  # a paste waits until the job reads
            for fd in self._seats:
                poll.register(fd, hears)
            for fd, _ in poll.poll():
                if fd == self._ours:
                    if not self._pass_on():
                        self._leave()
                        return
                elif fd == self._door.fileno():
                    self._seat(poll)
                elif not self._hear(fd):
                    poll.unregister(fd)
                    self._seats.pop(fd)[0].close()

    def _pass_on(self) -> bool:
        """Pass on what can be passed on in either direction; return whether anybody holds the terminal still."""
        with contextlib.suppress(BlockingIOError):
            del self._typed[: os.write(self._ours, self._typed) if self._typed else 0]
        try:
            some = os.read(self._ours, CHUNK_BYTES)
        except BlockingIOError:
            return True
        except OSError:  # EIO: nobody holds it any more
            return False
        if some:
            self._keep(some)
            for seat, _ in self._seats.values():
                with contextlib.suppress(OSError):  # gone, or it has been told often enough
                    seat.send(b".", socket.MSG_DONTWAIT)
        return bool(some)

    def _seat(self, poll: select.poll) -> None:
        with contextlib.suppress(OSError):
            seat, _ = self._door.accept()
            if len(self._seats) >= MOST_SEATS:
                seat.close()
                return
            seat.setblocking(False)
            self._seats[seat.fileno()] = (seat, bytearray())
            poll.register(seat, select.POLLIN)

    def _hear(self, fd: int) -> bool:
        """Take what one who sits there has sent; return whether they are still there, and make sense."""
        seat, frames = self._seats[fd]
        try:
            some = seat.recv(CHUNK_BYTES)
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
        """Let everybody who sits there go."""
        with contextlib.suppress(OSError):
            os.unlink(SOCKET)
        self._door.close()
        for seat, _ in self._seats.values():
            seat.close()
        os.close(self.log)
