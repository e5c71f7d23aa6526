"""The attached terminal of a job: sends keys to the job and shows its output, until the job ends or the user detaches.

Meanwhile the user's terminal is in raw mode, so that the job also receives Ctrl-C. Its mode is always restored. A job
without a terminal reads no standard input, and the user is warned of that.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import signal
import stat
import termios
import tty
from collections.abc import Callable, Iterator
from types import FrameType
from typing import TYPE_CHECKING

from gpuqueue.console import print_message
from gpuqueue.model.terminal_size import Window

if TYPE_CHECKING:
    from gpuqueue.client.terminal import JobTerminal

#: Most bytes of one read from standard input: enough for a paste, and less than the limit of a frame (65535).
CHUNK_BYTES = 16384
#: Longest time between two reads of the output, in milliseconds. The terminal wakes the reader when there is more.
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
    """The user's terminal while it is attached to that of a job."""

    def __init__(self, terminal: JobTerminal) -> None:
        self._terminal = terminal

    def follow(self, show: Callable[[bytes], None], begin: Callable[[], None]) -> bool:
        """Send keys and *show* the output until the run ends; return whether the user detached before.

        *begin* is called in raw mode before any output is shown. An exception from it detaches the terminal.
        """
        resized, wake = os.pipe()
        os.set_blocking(wake, False)
        os.set_blocking(resized, False)
        try:
            with raw(), reported(signal.SIGWINCH, wake):
                begin()
                return self._follow(show, resized)
        finally:
            os.close(resized)
            os.close(wake)
            self._terminal.close()

    def _follow(self, show: Callable[[bytes], None], resized: int) -> bool:
        poll, escape, terminal = select.poll(), EscapeDetector(), self._terminal
        for fd in (STDIN, terminal.fileno(), resized):
            poll.register(fd, select.POLLIN)
        terminal.resize(Window.ours())
        while True:
            ready = {fd for fd, _ in poll.poll(POLL_MS)}
            if resized in ready:
                os.read(resized, CHUNK_BYTES)
                terminal.resize(Window.ours())
            if STDIN in ready:
                typed = os.read(STDIN, CHUNK_BYTES)
                wanted, is_leaving = escape.take(typed)
                if wanted:
                    terminal.type(wanted)
                if is_leaving or not typed:  # no input: the user's terminal is closed
                    return True
            chunks, has_ended = terminal.output()
            for chunk in chunks:
                show(chunk)
            if has_ended:
                return False


@contextlib.contextmanager
def raw() -> Iterator[None]:
    """Put the user's terminal into raw mode, and restore it at the end.

    The mode is also restored after a signal, since :mod:`gpuqueue.cli.follow.attach` turns it into an exception.
    """
    before = termios.tcgetattr(STDIN)
    try:
        tty.setraw(STDIN, termios.TCSADRAIN)
        yield
    finally:
        termios.tcsetattr(STDIN, termios.TCSADRAIN, before)


@contextlib.contextmanager
def reported(number: signal.Signals, wake: int) -> Iterator[None]:
    """Write a byte to *wake* at each signal *number*."""

    def report(_number: int, _frame: FrameType | None) -> None:
        with contextlib.suppress(OSError):  # a full pipe wakes the reader too
            os.write(wake, b".")

    before = signal.signal(number, report)
    try:
        yield
    finally:
        signal.signal(number, before)


def report_unread() -> None:
    """Warn if standard input has unread data: the job does not receive it."""
    if _holds_something():
        words = "the job does not read standard input"
        print_message("gpuqueue", f"{words}: put the data into a file, and pass its name as an argument")


def _holds_something() -> bool:
    """Return whether standard input is a pipe or a file with unread data; a terminal is for prompts."""
    try:
        kind = os.fstat(STDIN)
        if stat.S_ISREG(kind.st_mode):
            return os.lseek(STDIN, 0, os.SEEK_CUR) < kind.st_size
        if not stat.S_ISFIFO(kind.st_mode):
            return False
        waiting = fcntl.ioctl(STDIN, termios.FIONREAD, bytes(4))
    except OSError:
        return False
    return any(waiting)
