"""The text that a scrape gets, and what of the site answers.

A scrape reads the store and the history at most every FRESH_S seconds, however many scrapers there are, and never in
the threads that serve requests. It waits a bounded time for either, and says which of them is away.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TypeVar

import prometheus_client
from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from gpuqueue.history.database import HistoryDatabase
from gpuqueue.queue.jobqueue import JobQueue
from gpuqueue.queue.lease import SILENT_HEARTBEATS
from gpuqueue.service.metrics import reader
from gpuqueue.service.metrics.counters import RecordedCounters
from gpuqueue.service.metrics.families import general_families, store_families
from gpuqueue.service.metrics.figures import StoreFigures, is_open, store_figures
from gpuqueue.service.metrics.reader import Reader, Reading
from gpuqueue.service.metrics.requests import RequestTimes
from gpuqueue.settings.settings import Settings

T = TypeVar("T")

#: Threads for reads: one for each reader. And threads that identify scrapers and write the text.
READ_THREADS, SCRAPE_THREADS = 4, 2

# It would be a second series for each counter, which nobody reads.
prometheus_client.disable_created_metrics()  # type: ignore[no-untyped-call] # it has no types


class _Read(Collector):
    """The metrics of the last read."""

    def __init__(self) -> None:
        self.families: list[Metric] = []

    def collect(self) -> Iterable[Metric]:
        """Return them."""
        return self.families


class Metrics:
    """All metrics of one service. ``close`` ends its threads."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._registry = CollectorRegistry()
        self._read = _Read()
        self._registry.register(self._read)
        ProcessCollector(registry=self._registry)
        self.requests = RequestTimes(self._registry)
        self._queue = JobQueue(settings.redis_url)
        self._database = HistoryDatabase(settings.database_url)
        counters = RecordedCounters(self._registry, self._database)
        self._readers = ThreadPoolExecutor(READ_THREADS, thread_name_prefix="metrics-read")
        self._scrapes = ThreadPoolExecutor(SCRAPE_THREADS, thread_name_prefix="metrics-scrape")
        self._store: Reader[StoreFigures] = Reader(partial(store_figures, self._queue, settings), self._readers)
        self._history: Reader[bool] = Reader(counters.advance, self._readers)
        self._store_answers: Reader[bool] = Reader(partial(is_open, settings), self._readers)
        self._history_answers: Reader[bool] = Reader(self._probe_history, self._readers)
        #: Content type -> when the text was written, and the text.
        self._written: dict[str, tuple[float, bytes]] = {}
        self._writing = asyncio.Lock()
        self._render_lock = threading.Lock()

    async def in_thread(self, work: Callable[[], T]) -> T:
        """Call *work* in a thread that serves no requests."""
        return await asyncio.get_running_loop().run_in_executor(self._scrapes, work)

    async def text(self, accept: str) -> tuple[bytes, str]:
        """Return all metrics in the format that *accept*, a header, asks for, and its content type."""
        encode, content_type = choose_encoder(accept)
        async with self._writing:
            at_s, content = self._written.get(content_type, (float("-inf"), b""))
            if time.monotonic() - at_s >= reader.FRESH_S:
                store, history = await asyncio.gather(self._store.reading(), self._history.reading())
                content = await self.in_thread(lambda: self._render(encode, store, history))
                self._written[content_type] = time.monotonic(), content
        return content, content_type

    async def away(self) -> list[str]:
        """Return what does not answer: the store, the history."""
        found = await asyncio.gather(self._store_answers.reading(), self._history_answers.reading())
        return [name for name, reading in zip(("store", "history"), found, strict=True) if not reading.is_there]

    def close(self) -> None:
        """End the threads, after the reads that are being made, and close the connections."""
        self._readers.shutdown()
        self._scrapes.shutdown()
        self._queue.close()
        self._database.close()

    def _probe_history(self) -> bool:
        self._database.cursor()
        return True

    def _render(
        self, encode: Callable[[CollectorRegistry], bytes], store: Reading[StoreFigures], history: Reading[bool]
    ) -> bytes:
        up = {"store": store.is_there, "history": history.is_there}
        families = list(general_families(up, {"store": store.took_s, "history": history.took_s}))
        if store.value is not None:
            silent_s = SILENT_HEARTBEATS * self._settings.heartbeat_s
            families += store_families(store.value, silent_s=silent_s)
        with self._render_lock:
            self._read.families = families
            return encode(self._registry)
