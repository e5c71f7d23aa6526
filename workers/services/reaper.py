"""Reclaims expired leases, and applies aging, preemption and reservations so that no job waits for ever.

Any number of reapers may run at once.
"""

from __future__ import annotations

import logging
import threading

from gpuqueue.clock import Clock
from gpuqueue.errors import Unreachable
from gpuqueue.model.preemption import parse_preempt
from gpuqueue.queue.jobqueue import JobQueue
from gpuqueue.queue.rules import send_rules
from gpuqueue.settings.settings import Settings
from gpuqueue.settings.sources import is_far

log = logging.getLogger(__name__)


class Reaper:
    """Runs the periodic acts every ``heartbeat_s`` seconds. After a gap, all leases get one more period."""

    def __init__(self, settings: Settings, queue: JobQueue, clock: Clock) -> None:
        self._settings = settings
        self._queue = queue
        self._clock = clock
        self._last_s: float | None = None
        self._reported_epoch: str | None = None
        self._reserved: dict[int, tuple[str, ...]] = {}

    def loop(self, stopping: threading.Event) -> None:
        """Tick until *stopping* is set."""
        while not stopping.is_set():
            self.tick()
            stopping.wait(self._settings.heartbeat_s)

    def tick(self) -> None:
        """Run each step once. No exception is raised, because the recorder's process would not restart the reaper.

        A failing step does not affect the others, but an unreachable store ends the tick. A host that has joined
        through a service only reaps. It does not have the rules of the site: its own would replace them. And to serve
        long waits is to read all devices of the site: a thousand pilots would keep the store busy with nothing else.
        """
        is_joined = is_far(self._settings.service_url)
        for step in (self.reap,) if is_joined else (self.send_policy, self.reap, self.serve_long_waits):
            try:
                step()
            except Unreachable as error:
                log.warning("no lease is reaped for now: %s", error)
                return
            except Exception:
                log.exception("a step of the reaper failed; it is repeated in %g s", self._settings.heartbeat_s)

    def send_policy(self) -> None:
        """Send the site's policy and limits to the store, once per epoch of the store."""
        epoch = self._queue.epoch()
        if epoch is None or epoch == self._reported_epoch:
            return
        send_rules(self._queue, self._settings)
        self._reported_epoch = epoch

    def reap(self) -> None:
        """Reclaim the expired leases, and log what became of their jobs."""
        now_s = self._clock.monotonic_s()
        reaped = self._queue.maintenance.reap(
            loss_limit=self._settings.loss_limit,
            lease_s=self._settings.lease_s,
            tick_s=self._settings.heartbeat_s,
            passed_s=None if self._last_s is None else now_s - self._last_s,
        )
        self._last_s = now_s
        for job_id, state in reaped.items():
            log.warning("job %s: its lease expired, it is %s now", job_id, state)

    def serve_long_waits(self) -> None:
        """Promote jobs that have waited long, preempt jobs, and reserve devices for jobs that fit nowhere."""
        settings = self._settings
        if settings.age_after_s is not None:
            promoted = self._queue.maintenance.promote(after_s=settings.age_after_s)
            if promoted:
                log.info("%s jobs waited long and were promoted by one priority", promoted)
        self.preempt()
        after_s, most = settings.reserve_after_s, settings.reservations
        most, budget = 0 if after_s is None else most, settings.reserve_budget
        found = self._queue.maintenance.reserve(after_s=after_s or 0.0, most=most, budget=budget)
        reserved = {each.job_id: each.devices for each in found}
        for job_id, devices in reserved.items():
            if self._reserved.get(job_id) != devices:
                log.info("job %s has waited too long: room on %s is reserved for it", job_id, ", ".join(devices))
        self._reserved = reserved

    def preempt(self) -> None:
        """Preempt jobs for jobs of a higher priority, if the site enables that."""
        priorities = parse_preempt(self._settings.preempt)
        if not priorities:
            return
        after_s, grace_s = self._settings.preempt_after_s, self._settings.preempt_grace_s
        for job_id, by in self._queue.maintenance.preempt(priorities, after_s=after_s, grace_s=grace_s).items():
            log.warning("job %s is being preempted for job %s, in %g s at the latest", job_id, by, grace_s)
