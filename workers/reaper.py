"""Takes back the leases that nobody renewed. Any number of reapers may run at once."""

from __future__ import annotations

import logging
import threading

from gpuqueue.clock import Clock
from gpuqueue.errors import Unreachable
from gpuqueue.queue.jobqueue import JobQueue
from gpuqueue.settings import Settings

log = logging.getLogger(__name__)


class Reaper:
    """Runs the reap script at every beat. The script itself knows when it was away too long to judge."""

    def __init__(self, settings: Settings, queue: JobQueue, clock: Clock) -> None:
        self._settings = settings
        self._queue = queue
        self._clock = clock
        self._last_s: float | None = None

    def loop(self, stopping: threading.Event) -> None:
        """Reap until *stopping* is set."""
        while not stopping.is_set():
            try:
                self.reap()
            except Unreachable as error:
                log.warning("nothing reaped for now: %s", error)
            stopping.wait(self._settings.beat_s)

    def reap(self) -> None:
        """Reap once."""
        now_s = self._clock.monotonic_s()
        reaped = self._queue.reap(
            loss_limit=self._settings.loss_limit,
            lease_s=self._settings.lease_s,
            tick_s=self._settings.beat_s,
            passed_s=None if self._last_s is None else now_s - self._last_s,
        )
        self._last_s = now_s
        for job_id, state in reaped.items():
            log.warning("job %s: its lease expired, it is %s now", job_id, state)
