"""The base class of all parts of the queue: one store with its scripts."""

from __future__ import annotations

from typing import cast

from gpuqueue.queue import keys
from gpuqueue.queue.connect import Connect, answering, connect
from gpuqueue.queue.scripts import Scripts


class Store:
    """The store at *url*, its scripts and its clock. *by* makes the client; long-lived processes use redis-py."""

    def __init__(self, url: str, *, by: Connect = connect) -> None:
        self.url = url
        self._by = by
        self._redis = by(url)
        self._scripts = Scripts(self._redis)

    @answering
    def epoch(self) -> str | None:
        """Return the store's epoch, or None if it is not open."""
        return cast("str | None", self._redis.get(keys.EPOCH))

    @answering
    def now_ms(self) -> int:
        """Return the store's time, in milliseconds since 1970."""
        seconds, micros = self._redis.time()
        return int(seconds) * 1000 + int(micros) // 1000

    def close(self) -> None:
        """Close the connections."""
        self._redis.close()
