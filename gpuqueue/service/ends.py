"""The ends of jobs, from one subscription of the service to all requests that wait for them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Collection

from gpuqueue.client.connection import Connection
from gpuqueue.errors import GpuQueueError
from gpuqueue.settings.settings import Settings

#: How long the subscription waits for one message, and how long before it is made again, in seconds.
WAIT_S, AGAIN_S = 1.0, 1.0


class Ends:
    """Wakes the requests that wait for the end of a job. A message may be lost, so they also poll."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._waiting: dict[int, set[asyncio.Event]] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._over = threading.Event()

    async def wait(self, job_ids: Collection[int], timeout_s: float) -> None:
        """Return when one of the jobs has ended, or after *timeout_s*."""
        self._start()
        woken = asyncio.Event()
        for each in job_ids:
            self._waiting.setdefault(each, set()).add(woken)
        try:
            await asyncio.wait_for(woken.wait(), max(0.0, timeout_s))
        except TimeoutError:
            pass
        except asyncio.TimeoutError:  # another class before Python 3.11
            pass
        finally:
            for each in job_ids:
                self._waiting[each].discard(woken)
                if not self._waiting[each]:
                    del self._waiting[each]

    def wake(self, job_id: int) -> None:
        """Wake the requests that wait for this job. Call it in the event loop."""
        for each in self._waiting.get(job_id, ()):
            each.set()

    def close(self) -> None:
        """End the subscription."""
        self._over.set()
        if self._thread is not None:
            self._thread.join()

    def _start(self) -> None:
        if self._thread is None:
            self._loop = asyncio.get_running_loop()
            self._thread = threading.Thread(target=self._listen, name="ends", daemon=True)
            self._thread.start()

    def _listen(self) -> None:
        while not self._over.is_set():
            try:
                with Connection(self._settings).ends() as wakeups:
                    while not self._over.is_set():
                        wake = wakeups.wait(WAIT_S)
                        if wake is not None and wake.job_id is not None and self._loop is not None:
                            self._loop.call_soon_threadsafe(self.wake, wake.job_id)
            except GpuQueueError:  # the store does not answer: the requests poll, and raise its error
                self._over.wait(AGAIN_S)
