"""Calls with a time limit, for calls that may never return, such as those to a dead file server."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable
from typing import TypeVar

from gpuqueue.system.timed_call import CallFailed, TimedCall

T = TypeVar("T")

#: The timeout(1) program. It starts and ends another program; a direct start from a dead file server would block too.
TIMEOUT = shutil.which("timeout") or "/usr/bin/timeout"
#: Largest number of unfinished calls. While there are this many, no new call is started.
MOST = 32
_room = threading.BoundedSemaphore(MOST)


def in_time(ask: Callable[[], T], limit_s: float) -> T | None:
    """Return what *ask* returns, or None if it takes longer than *limit_s* seconds or cannot be started.

    The thread of a call that takes too long goes on until the call returns. Exceptions of *ask* are raised here.
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
