"""Announces a worker, its live runs and its ended runs to a store that lost its data."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Mapping

from gpuqueue.errors import Unreadable
from gpuqueue.model.job import JobState
from gpuqueue.queue.jobqueue import JobQueue
from gpuqueue.queue.lease import Alive, Offer, Stray
from gpuqueue.settings.settings import Settings
from gpuqueue.system.machine_id import address_towards
from gpuqueue.system.process import boot_id
from workers.measure.active_runs import LiveRun, LiveRuns
from workers.run.directory import unsettled

#: Most ended runs per heartbeat for which the store is asked whether the history has them.
MOST = 1000

log = logging.getLogger(__name__)
#: The shim's deadline as a share of the lease. A shim ends its run before the lease expires.
SHIM_SHARE = 0.7


class Adoption:
    """Offers this worker's runs to the store. The data comes from the run directories, which outlive store and worker.

    The store decides in one atomic step (``adopt.lua``) whether it takes a run back, so any run may be offered at any
    time.
    """

    def __init__(
        self, settings: Settings, queue: JobQueue, runs: LiveRuns, *, worker: str, near: Mapping[str, int] | None = None
    ) -> None:
        self._settings = settings
        self._queue = queue
        self._runs = runs
        self._worker = worker
        self._near = near
        #: Gives a run to a thread that settles it again.
        self.hand_over: Callable[[LiveRun], None] | None = None

    def introduce(self, offer: Offer) -> None:
        """Announce the worker and offer its runs to a store that does not know them.

        Raises:
            Unreachable: The store does not answer. The caller must repeat the whole call.

        """
        settings = self._settings
        address = address_towards((settings.store_through_service and settings.service_url) or settings.redis_url)
        self._queue.devices.announce(
            offer,
            worker=self._worker,
            pid=os.getpid(),
            boot_id=boot_id(),
            near=self._near,
            address=address,
            environments=sorted(self._settings.environments),
            limits_jobs=self._settings.launcher_in_use is not None,
        )
        for run in self._runs.all():
            # A run that has not asked for its start yet will ask, and learn then whether its claim is still valid.
            if run.directory.may_have_started():
                self._offer_anyhow(run)
        for run in self._runs.reported():
            self._deal_with(run, self._offer_anyhow(run))

    def _offer_anyhow(self, run: LiveRun) -> JobState | None:
        """Offer *run* and return its job's state. An error of this run must not prevent the offer of the others."""
        try:
            return self.offer(run)
        except Unreadable as error:
            log.error("%s cannot be offered: %s", run, error)  # noqa: TRY400 - bad data, so a traceback does not help
            return None

    def offer(self, run: LiveRun) -> JobState | None:
        """Offer *run*, and return its job's state, or None if it is not the job's current run.

        Raises:
            Unreachable: The store does not answer.

        """
        stray = Stray(
            job_id=run.held.job_id,
            token=run.held.token,
            host=self._settings.host,
            worker=self._worker,
            devices=run.held.devices,
            claimed_ms=run.held.claimed_ms,
            log_path=str(run.directory.log),
            payload=run.directory.payload(),
        )
        return self._queue.runs.adopt(stray, lease_s=self._settings.lease_s)

    def forget_recorded(self, epoch: str) -> None:
        """Settle the directories of the runs whose end is in the history.

        Raises:
            Unreachable: The store does not answer.

        """
        reported = self._runs.reported()[:MOST]  # the ends are recorded in the order of their reports
        states = (
            self._queue.runs.unrecorded(epoch, {run.held.job_id: run.held.token for run in reported})
            if reported
            else None
        )
        if states is not None:
            for run in reported:
                self._deal_with(run, states.get(run.held.token))

    def _deal_with(self, run: LiveRun, state: JobState | None) -> None:
        """Settle, keep or report again a run whose end was reported, depending on its job's *state* in the store.

        *state* is None if the store has no such run. An error of one directory must not affect the other runs.
        """
        token = run.held.token
        if state is None:
            run.directory.close()
            try:
                run.directory.settle()
            except OSError as error:
                log.warning("%s: its run directory cannot be emptied: %s", run, error)
            else:
                self._runs.forget(token)
        elif not state.is_end:
            log.warning("%s: the store has forgotten its end, it is reported again", run)
            self._runs.add(run)
            self._runs.forget(token)
            if self.hand_over is not None:
                self.hand_over(run)


def park(settings: Settings, for_s: float) -> int:
    """Park all runs of this host for *for_s* seconds, and return how many were parked.

    Each shim gets a heartbeat that is valid for *for_s*, and each lease is renewed for longer. The workers must have
    stopped before, because a heartbeat of a worker shortens the lease again.
    """
    queue = JobQueue.of(settings)
    statuses = {status.device.uuid: status for status in queue.devices.all(settings.host)}
    parked = 0
    for directory in unsettled(settings.runs_dir):
        held = directory.held()
        if held is None or held.devices[0].uuid not in statuses:
            continue
        lead = statuses[held.devices[0].uuid]
        nothing_to_allocate = Offer(
            device=lead.device,
            host=lead.host,
            headroom_bytes=lead.headroom_bytes,
            external_bytes=lead.device.total_bytes,
            slots=lead.slots,
            pool=lead.pool,
        )
        observed = {device.uuid: 0 for device in held.devices}
        alive = Alive(job_id=held.job_id, token=held.token, observed=observed)
        queue.devices.heartbeat(nothing_to_allocate, [alive], lease_s=settings.lease_s)
        if queue.runs.park(held.job_id, held.token, lease_s=for_s / SHIM_SHARE):
            directory.renew(time.monotonic() + for_s)
            directory.close()
            parked += 1
    queue.close()
    return parked
