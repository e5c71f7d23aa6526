"""The attached terminal of a job: sends keys to the job and shows its output, until the job ends or the user detaches.

Meanwhile the user's terminal is in raw mode, so that the job also receives Ctrl-C. Its mode is always restored.
"""

from __future__ import annotations

import contextlib
import errno
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

#: Most bytes of one read from standard input: enough for a paste, and less than the limit of a frame (65535).
CHUNK_BYTES = 16384
#: Longest time between two reads of the log, in milliseconds. The socket wakes the reader when there is more.
POLL_MS = 1000
STDIN = 0


class EscapeDetector:
    """Detects the escape ``~.`` at the beginning of a typed line, as in ssh(1); ``~~`` there sends one ``~``."""

    def __init__(self) -> None:
        self._at_begin = True
        self._tilde = False

    def take(self, typed: bytes) -> tuple[bytes, bool]:
        """Return the part of *typed* that is for the job, and whether the user detaches."""
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


class AttachedTerminal:
    """A connection to the terminal of the run whose log is at *log*.

    Raises:
        OSError: There is no such terminal, or it belongs to another user.

    """

    def __init__(self, log: Path) -> None:
        self._line = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        folder = os.open(log.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        try:  # by a short path: the length of a socket address is limited
            self._line.connect(f"/proc/self/fd/{folder}/{TTY}")
            if _listener(self._line) != os.fstat(folder).st_uid:
                # A link to a socket of another account: what an administrator types must not reach it.
                raise PermissionError(errno.EPERM, "the socket of the terminal belongs to another account")
        except OSError:
            self._line.close()
            raise
        finally:
            os.close(folder)

    def follow(self, tail: LogTail, show: Callable[[bytes], None], begin: Callable[[], None]) -> bool:
        """Send keys and *show* the output from *tail* until the job ends; return whether the user detached before.

        *begin* is called in raw mode before any output is shown. An exception from it detaches the terminal.
        """
        resized, wake = os.pipe()
        os.set_blocking(wake, False)
        os.set_blocking(resized, False)
        try:
            with _raw(), _reported(signal.SIGWINCH, wake):
                begin()
                return self._follow(tail, show, resized)
        finally:
            os.close(resized)
            os.close(wake)
            self._line.close()

    def _follow(self, tail: LogTail, show: Callable[[bytes], None], resized: int) -> bool:
        poll, escape = select.poll(), EscapeDetector()
        for fd in (STDIN, self._line.fileno(), resized):
            poll.register(fd, select.POLLIN)
        try:
            self._send_size()
            while True:
                ready = {fd for fd, _ in poll.poll(POLL_MS)}
                if resized in ready:
                    os.read(resized, CHUNK_BYTES)
                    self._send_size()
                if STDIN in ready:
                    typed = os.read(STDIN, CHUNK_BYTES)
                    wanted, is_leaving = escape.take(typed)
                    self._send(b"I", wanted)
                    if is_leaving or not typed:  # no input: the user's terminal is closed
                        return True
                over = self._line.fileno() in ready and not self._line.recv(CHUNK_BYTES)
                for chunk in tail.rest():
                    show(chunk)
                if over:
                    return False
        except (BrokenPipeError, ConnectionResetError):  # the shim has ended, and the job with it
            return False

    def _send(self, kind: bytes, rest: bytes) -> None:
        if rest:
            self._line.sendall(struct.pack("!cH", kind, len(rest)) + rest)

    def _send_size(self) -> None:
        window = Window.ours()
        self._send(b"W", struct.pack("!HH", window.columns, window.rows))


@contextlib.contextmanager
def _raw() -> Iterator[None]:
    """Put the user's terminal into raw mode, and restore it at the end.

    The mode is also restored after a signal, since :mod:`gpuqueue.cli.follow.detach` turns it into an exception.
    """
    before = termios.tcgetattr(STDIN)
    try:
        tty.setraw(STDIN, termios.TCSADRAIN)
        yield
    finally:
        termios.tcsetattr(STDIN, termios.TCSADRAIN, before)


@contextlib.contextmanager
def _reported(number: signal.Signals, wake: int) -> Iterator[None]:
    """Write a byte to *wake* at each signal *number*."""

    def report(_number: int, _frame: FrameType | None) -> None:
        with contextlib.suppress(OSError):  # a full pipe wakes the reader too
            os.write(wake, b".")

    before = signal.signal(number, report)
    try:
        yield
    finally:
        signal.signal(number, before)


def _listener(line: socket.socket) -> int:
    """Return the uid of the process that listens on the other end of a connected unix socket."""
    _, uid, _ = struct.unpack("3i", line.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i")))
    return int(uid)
