"""The terminal of a job behind a service: keys go with requests, and output comes with the stream of the log."""

from __future__ import annotations

import contextlib
import os
import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from gpuqueue.client.patience import ABSENCES, Patience
from gpuqueue.client.remote.log_tail import RemoteTail
from gpuqueue.errors import GpuQueueError, HostUnreachable, Refused, ServiceUnreachable, Unreachable
from gpuqueue.model.api import TerminalInput, Whether
from gpuqueue.text.sanitize import in_one_line

if TYPE_CHECKING:
    from gpuqueue.client.remote.link import Link
    from gpuqueue.model.terminal_size import Window

#: Pieces of output that wait for the user's terminal. A terminal that is slower holds up the stream.
MOST_WAITING = 64
#: Shown once for each trouble. A request with keys is never sent twice.
LOST = "\r\ngpuqueue: {}: keys are lost{}\r\n"


class _IsLeft(Exception):
    """Ends the stream: the user has left the terminal, or another run begins."""


class RemoteTerminal:
    """The terminal of a run of the job *name*, whose log *tail* reads. *follow* is that of ``client.logs``."""

    def __init__(self, link: Link, name: str, tail: RemoteTail, follow: Callable[..., Iterator[bytes]]) -> None:
        self._link, self._name, self._tail = link, name, tail
        self._waiting: queue.Queue[tuple[bytes, Any, int]] = queue.Queue(MOST_WAITING)
        self._readable, self._wake = os.pipe()
        os.set_blocking(self._wake, False)
        os.set_blocking(self._readable, False)
        self._is_left, self._is_over = threading.Event(), threading.Event()
        self._error: GpuQueueError | None = None
        #: Why keys are lost now, and the message about it until it is shown.
        self._trouble: GpuQueueError | None = None
        self._message = b""
        self._thread = threading.Thread(target=self._read, args=(follow,), name="terminal", daemon=True)
        self._thread.start()

    def fileno(self) -> int:
        """Return a descriptor that is readable when :meth:`output` may have more to return."""
        return self._readable

    def type(self, typed: bytes) -> None:
        """Send typed input to the job."""
        self._send(TerminalInput(typed=typed.decode("utf-8", "surrogateescape")))

    def resize(self, window: Window) -> None:
        """Send the size of the user's terminal to the job."""
        self._send(TerminalInput(window=window))

    def output(self) -> tuple[Sequence[bytes], bool]:
        """Return the output since the last call, and whether the run has ended.

        Raises:
            GpuQueueError: the log cannot be followed any more.

        """
        is_over = self._is_over.is_set()  # before the output is taken, so that none is missed
        with contextlib.suppress(BlockingIOError):
            os.read(self._readable, MOST_WAITING)
        message, self._message = self._message, b""
        found = [message] if message else []
        with contextlib.suppress(queue.Empty):
            while True:
                chunk, self._tail.path, self._tail.offset = self._waiting.get_nowait()
                found.append(chunk)
        if is_over and self._error is not None:
            raise self._error
        return found, is_over

    def close(self) -> None:
        """Leave the terminal. The job runs on. The stream ends with its next sign of life."""
        self._is_left.set()

    def _send(self, wanted: TerminalInput) -> None:
        path = f"/jobs/{self._name}/terminal"
        try:
            self._link.answered("POST", path, wanted, kind=Whether, resend=False)
        except (Unreachable, Refused) as error:
            self._lost(error)
        else:
            self._trouble = None

    def _lost(self, error: GpuQueueError) -> None:
        if type(error) is not type(self._trouble):
            self._message = _in_words(error).encode()
        self._trouble = error
        self._signal()

    def _read(self, follow: Callable[..., Iterator[bytes]]) -> None:
        """Follow the log from where the user's tail stands. Runs in a thread, with a tail of its own."""
        tail, patience = RemoteTail(self._link), Patience(self._lost)
        tail.path, tail.offset = self._tail.path, self._tail.offset
        patience.answered()  # the service has just answered that there is a terminal
        try:
            while not self._is_followed(follow, tail, patience):
                pass
        except _IsLeft:
            pass
        except GpuQueueError as error:
            self._error = error
        finally:
            self._is_over.set()
            self._signal()

    def _is_followed(self, follow: Callable[..., Iterator[bytes]], tail: RemoteTail, patience: Patience) -> bool:
        """Follow the log as long as the service answers. Return whether the run has ended."""
        try:
            for chunk in follow(self._name, tail, seen=self._stop_if_left, again=_stop):
                patience.answered()
                self._put((chunk, tail.path, tail.offset))
        except ABSENCES as error:
            patience.bear(error)
            return False
        return True

    def _put(self, piece: tuple[bytes, Any, int]) -> None:
        while True:
            self._stop_if_left()
            with contextlib.suppress(queue.Full):
                self._waiting.put(piece, timeout=1.0)
                self._signal()
                return

    def _stop_if_left(self, _job: object = None) -> None:
        if self._is_left.is_set():
            raise _IsLeft

    def _signal(self) -> None:
        with contextlib.suppress(OSError):  # a full pipe wakes the reader too
            os.write(self._wake, b".")


def _in_words(error: GpuQueueError) -> str:
    """Return the message that keys are lost. That of a service or a store is long, so only its name is there."""
    if isinstance(error, Refused):
        return LOST.format(in_one_line(str(error)), "")
    if isinstance(error, HostUnreachable):
        return LOST.format(in_one_line(str(error)), " until it does")
    what = "service" if isinstance(error, ServiceUnreachable) else "store or the history"
    return LOST.format(f"the {what} does not answer", " until it does")


def _stop(_run: object) -> None:
    raise _IsLeft
