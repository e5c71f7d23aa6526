"""Ends jobs at the engine that nobody waits for: they were cancelled, or ended, while nobody followed them."""

from __future__ import annotations

import logging

from gpuqueue.engines.engine import EngineUnreachable, WholeJobEngine
from gpuqueue.engines.whole_job import WholeKey
from gpuqueue.errors import Unreachable
from gpuqueue.queue.jobqueue import JobQueue
from workers.threads import SteadyEvent

log = logging.getLogger(__name__)

#: How often the engine's jobs are compared with those of the queue, in seconds.
SWEEP_S = 60.0


class Sweep:
    """Compares the jobs of one site at the engine with those in the queue."""

    def __init__(self, engine: WholeJobEngine, queue: JobQueue, site: str) -> None:
        self._engine = engine
        self._queue = queue
        self._site = site

    def loop(self, stopping: SteadyEvent) -> None:
        """Sweep until *stopping* is set."""
        while not stopping.wait(SWEEP_S):
            try:
                self.sweep()
            except (EngineUnreachable, Unreachable) as error:
                log.warning("jobs that nobody waits for are not looked for now: %s", error)

    def sweep(self) -> int:
        """End each such job, and return how many there were.

        A job that waits for another attempt, or is held, keeps its job at the engine. The queue is asked after the
        engine, so a job that was handed over meanwhile is known there.

        Raises:
            EngineUnreachable: the engine does not answer.
            Unreachable: the store does not answer.

        """
        ended = 0
        for ref in self._engine.alive():
            key = WholeKey.parse(ref.key)
            if key is None or key.site != self._site:
                continue
            job = self._queue.jobs.get(key.job_id)
            if job is None or job.state.is_end:
                log.warning("job %s of the engine is ended: job %s here has ended", ref.id, key.job_id)
                self._engine.cancel(ref, now=True)
                ended += 1
        return ended
