"""Waiting by the clock that cannot be set."""

from __future__ import annotations

import contextlib
import math
import os
import select
import threading
import weakref


class SteadyEvent(threading.Event):
    """An event whose timeout goes by the monotonic clock in every Python.

    Where Python was built for a C library older than 2.30 (conda, uv, RHEL 8) the timeout of a lock ends at a time of
    day: when the wall clock is set back by an hour, whoever waits for ten seconds waits for an hour, and no beat goes
    out. So this one waits with poll(2), as does whoever waits for a socket.
    """

    def __init__(self) -> None:
        super().__init__()
        self._fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        weakref.finalize(self, os.close, self._fd)

    def set(self) -> None:
        """Set it, and let everybody go on who waits for it."""
        super().set()
        os.eventfd_write(self._fd, 1)

    def clear(self) -> None:
        """Let everybody wait again. One who sets it in this very moment ends at least the next wait."""
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._fd)
        super().clear()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until it is set, at most *timeout* seconds; return whether it is."""
        poll = select.poll()
        poll.register(self._fd, select.POLLIN)
        poll.poll(None if timeout is None else max(0, math.ceil(timeout * 1000)))
        return self.is_set()
