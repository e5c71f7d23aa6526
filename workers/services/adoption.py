"""What a worker says to a store that lost its memory: who it is, what runs here, and what has ended here."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping

from gpuqueue.errors import Unreadable
from gpuqueue.model.job import JobState
from gpuqueue.queue.jobqueue import JobQueue
from gpuqueue.queue.lease import Offer, Stray
from gpuqueue.settings.settings import Settings
from gpuqueue.system.process import boot_id
from workers.measure.active_runs import LiveRun, LiveRuns

#: Most runs of which the store is asked at one beat whether the book has them.
MOST = 1000

log = logging.getLogger(__name__)


class Adoption:
    """Offers this worker's runs to the store. Its word is the run directories': they outlive store and worker.

    Whether a run is taken back the store decides, in one step (``adopt.lua``). So any run may be offered at any time.
    """

    def __init__(
        self, settings: Settings, queue: JobQueue, runs: LiveRuns, *, worker: str, near: Mapping[str, int] | None = None
    ) -> None:
        self._settings = settings
        self._queue = queue
        self._runs = runs
        self._worker = worker
        self._near = near
        #: Gives a run to a thread that settles it once more.
        self.hand_over: Callable[[LiveRun], None] | None = None

    def introduce(self, offer: Offer) -> None:
        """Tell a store that does not know us all that it must know.

        Raises:
            Unreachable: it does not answer; say it all again.

        """
        self._queue.announce(offer, worker=self._worker, pid=os.getpid(), boot_id=boot_id(), near=self._near)
        for run in self._runs.all():
            # A run that has not asked for its start yet will do so, and hear what has become of its claim.
            if run.directory.may_have_started():
                self._offer_anyhow(run)
        for run in self._runs.told():
            self._deal_with(run, self._offer_anyhow(run))

    def _offer_anyhow(self, run: LiveRun) -> JobState | None:
        """Offer *run*; one that makes no sense to the store must not keep the others from being offered."""
        try:
            return self.offer(run)
        except Unreadable as error:
            log.error("%s cannot be offered: %s", run, error)  # noqa: TRY400 - what was written is at fault, not we
            return None

    def offer(self, run: LiveRun) -> JobState | None:
        """Offer *run*; return its job's state, or None if this is not its job's run (any more).

        Raises:
            Unreachable: the store does not answer.

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
        return self._queue.adopt(stray, lease_s=self._settings.lease_s)

    def forget_recorded(self, epoch: str) -> None:
        """Empty the directories of the runs that the book has by now.

        Raises:
            Unreachable: the store does not answer.

        """
        told = self._runs.told()[:MOST]  # those that were told first are recorded first
        states = self._queue.unrecorded(epoch, {run.held.job_id: run.held.token for run in told}) if told else None
        if states is not None:
            for run in told:
                self._deal_with(run, states.get(run.held.token))

    def _deal_with(self, run: LiveRun, state: JobState | None) -> None:
        """Go on with a run whose end the store was told: the state is its job's, None where the store has no such run.

        One directory's trouble must not keep the others from being emptied.
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
            log.warning("%s: the store has forgotten its end, it is told again", run)
            self._runs.add(run)
            self._runs.forget(token)
            if self.hand_over is not None:
                self.hand_over(run)
