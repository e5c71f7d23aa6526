"""Reads something in the background, at most one read at a time, so that a slow store or history holds up nobody."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Generic, TypeVar

from gpuqueue.errors import GpuQueueError
from gpuqueue.lazy.frozen import dataclass

T = TypeVar("T")
log = logging.getLogger(__name__)

#: How long a result is used again, in seconds. More scrapes than that cost the store and the history nothing.
FRESH_S = 5.0
#: How long a scrape waits for a read, in seconds. Prometheus itself waits 10 s by default.
WAIT_S = 3.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Reading(Generic[T]):
    """The result of a read: None if the read failed, or is not over yet. ``took_s`` is None for the latter."""

    value: T | None = None
    took_s: float | None = None

    @property
    def is_there(self) -> bool:
        """Return whether what was asked has answered."""
        return self.value is not None


class Reader(Generic[T]):
    """Calls *read* in a thread of *pool* when its last result is too old. Belongs to one event loop."""

    def __init__(self, read: Callable[[], T], pool: Executor) -> None:
        self._read, self._pool = read, pool
        self._running: asyncio.Future[Reading[T]] | None = None
        self._last: Reading[T] = Reading()
        self._read_at_s = float("-inf")

    async def reading(self) -> Reading[T]:
        """Return a reading that is at most FRESH_S old, without a value if that takes longer than WAIT_S.

        All callers wait for the same read.
        """
        running = self._running
        if running is None:
            if time.monotonic() - self._read_at_s < FRESH_S:
                return self._last
            running = self._running = asyncio.get_running_loop().run_in_executor(self._pool, self._timed)
            running.add_done_callback(self._finished)
        await asyncio.wait({running}, timeout=WAIT_S)
        return _result(running) if running.done() else Reading()

    def _timed(self) -> Reading[T]:
        start_s = time.monotonic()
        try:
            value = self._read()
        except GpuQueueError:  # it is away, which the metrics say; the log of the service has the reason already
            value = None
        return Reading(value=value, took_s=time.monotonic() - start_s)

    def _finished(self, done: asyncio.Future[Reading[T]]) -> None:
        self._running, self._read_at_s, self._last = None, time.monotonic(), _result(done)
        if not done.cancelled() and done.exception() is not None:
            log.error("a read for the metrics failed", exc_info=done.exception())


def _result(done: asyncio.Future[Reading[T]]) -> Reading[T]:
    return Reading() if done.cancelled() or done.exception() is not None else done.result()
