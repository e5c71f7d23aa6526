"""A seat at the terminal of a job: keys go there, what it shows comes here, until it ends or one leaves.

Meanwhile our own terminal passes every key on as it is, Ctrl-C too. It is what it was before on every way out.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import struct
import termios
import tty
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType

from gpuqueue.model.terminal_size import Window
from gpuqueue.system.logs import TTY, LogTail

#: How much is read of what was typed at a time, in bytes: what a paste brings, and less than a frame holds.
CHUNK_BYTES = 16384
#: Longest time between two looks at the log, in milliseconds: the socket says when there is more.
LOOK_MS = 1000
STDIN = 0


class Leaving:
    """Finds ``~.`` at the beginning of a line in what is typed, as ssh(1) has it; ``~~`` there is one ``~``."""

    def __init__(self) -> None:
        self._at_begin = True
        self._tilde = False

    def take(self, typed: bytes) -> tuple[bytes, bool]:
        """Return what of *typed* is for the job, and whether one wants to leave."""
        out = bytearray()
        for byte in typed:
            char = bytes([byte])
            if self._tilde:
                self._tilde = self._at_begin = False
                if char == b".":
                    return bytes(out), True
                out += char if char == b"~" else b"~" + char
            elif self._at_begin and char == b"~":
                self._tilde = True
            else:
                out += char
                self._at_begin = char in b"\r\n"
        return bytes(out), False


class Seat:
    """A seat at the terminal of the run whose log lies at *log*.

    Raises:
        OSError: there is no such terminal, or it is somebody else's.

    """

    def __init__(self, log: Path) -> None:
        self._line = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        folder = os.open(log.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:  # by this short name: a path in a socket's address must be short
            self._line.connect(f"/proc/self/fd/{folder}/{TTY}")
        except OSError:
            self._line.close()
            raise
        finally:
            os.close(folder)

    def sit(self, tail: LogTail, show: Callable[[bytes], None], begin: Callable[[], None]) -> bool:
        """Type on it, and *show* what *tail* has of it, until the job's end; return whether one left before.

        *begin* is called when every key goes there, and before anything is shown: what it raises gives the seat up.
        """
        resized, wake = os.pipe()
        os.set_blocking(wake, False)
        os.set_blocking(resized, False)
        try:
            with _raw(), _told(signal.SIGWINCH, wake):
                begin()
                return self._sit(tail, show, resized)
        finally:
            os.close(resized)
            os.close(wake)
            self._line.close()

    def _sit(self, tail: LogTail, show: Callable[[bytes], None], resized: int) -> bool:
        poll, leaving = select.poll(), Leaving()
        for fd in (STDIN, self._line.fileno(), resized):
            poll.register(fd, select.POLLIN)
        try:
            self._send_size()
            while True:
                ready = {fd for fd, _ in poll.poll(LOOK_MS)}
                if resized in ready:
                    os.read(resized, CHUNK_BYTES)
                    self._send_size()
                if STDIN in ready:
                    typed = os.read(STDIN, CHUNK_BYTES)
                    wanted, is_leaving = leaving.take(typed)
                    self._send(b"I", wanted)
                    if is_leaving or not typed:  # or our own terminal has gone
                        return True
                over = self._line.fileno() in ready and not self._line.recv(CHUNK_BYTES)
                for chunk in tail.rest():
                    show(chunk)
                if over:
                    return False
        except (BrokenPipeError, ConnectionResetError):  # the shim has gone, and the job with it
            return False

    def _send(self, kind: bytes, rest: bytes) -> None:
        if rest:
            self._line.sendall(struct.pack("!cH", kind, len(rest)) + rest)

    def _send_size(self) -> None:
        window = Window.ours()
        self._send(b"W", struct.pack("!HH", window.columns, window.rows))


@contextlib.contextmanager
def _raw() -> Iterator[None]:
    """Let our terminal pass on every key as it is; give it back as it was, also where a signal ends us.

    (What :mod:`gpuqueue.cli.follow.detach` makes of one comes by here.)
    """
    before = termios.tcgetattr(STDIN)
    try:
        tty.setraw(STDIN, termios.TCSADRAIN)
        yield
    finally:
        termios.tcsetattr(STDIN, termios.TCSADRAIN, before)


@contextlib.contextmanager
def _told(number: signal.Signals, wake: int) -> Iterator[None]:
    """Let a byte come through *wake* at each signal *number*."""

    def tell(_number: int, _frame: FrameType | None) -> None:
        with contextlib.suppress(OSError):  # it is full: that is enough
            os.write(wake, b".")

    before = signal.signal(number, tell)
    try:
        yield
    finally:
        signal.signal(number, before)
