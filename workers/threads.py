"""Waits on the monotonic clock, and calls with a time limit."""

from __future__ import annotations

import contextlib
import math
import os
import select
import shutil
import threading
import weakref
from collections.abc import Callable
from typing import TypeVar

from gpuqueue.system.timed_call import CallFailed, TimedCall

T = TypeVar("T")

#: The timeout(1) program. It starts and ends another program; a direct start from a dead file server would block too.
TIMEOUT = shutil.which("timeout") or "/usr/bin/timeout"
#: Largest number of unfinished calls of `in_time`. While there are this many, no new call is started.
MAX_CALLS = 32
_room = threading.BoundedSemaphore(MAX_CALLS)


class SteadyEvent(threading.Event):
    """An event whose timeout uses the monotonic clock in every Python.

    A Python built for a glibc older than 2.30 (conda, uv, RHEL 8) uses the wall clock for the timeouts of locks. If the
    wall clock is set back by an hour, a wait of ten seconds takes an hour, and no heartbeat is sent. This class
    waits with poll(2) instead, which uses the monotonic clock.
    """

    def __init__(self) -> None:
        super().__init__()
        self._fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        weakref.finalize(self, os.close, self._fd)

    def fileno(self) -> int:
        """Return a descriptor that is readable while the event is set."""
        return self._fd

    def set(self) -> None:
        """Set the event and wake all threads that wait for it."""
        super().set()
        os.eventfd_write(self._fd, 1)

    def clear(self) -> None:
        """Clear the event. A concurrent `set` still ends at least the next wait."""
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._fd)
        super().clear()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the event is set, at most *timeout* seconds; return whether it is set."""
        poll = select.poll()
        poll.register(self._fd, select.POLLIN)
        poll.poll(None if timeout is None else max(0, math.ceil(timeout * 1000)))
        return self.is_set()


def in_time(ask: Callable[[], T], limit_s: float) -> T | None:
    """Return what *ask* returns, or None if it takes longer than *limit_s* seconds or cannot be started.

    It is for calls that may never return, such as those to a dead file server. The thread of a call that takes too long
    goes on until the call returns. Exceptions of *ask* are raised here.
    """
    room = _room
    if not room.acquire(blocking=False):
        return None

    def counted() -> T:
        try:
            return ask()
        finally:
            room.release()

    try:
        call = TimedCall(counted, limit_s)
    except RuntimeError:  # the host cannot create another thread
        room.release()
        return None
    try:
        return call.wait()
    except CallFailed:
        return None
