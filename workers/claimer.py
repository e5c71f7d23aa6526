"""The claim loop: read the device, claim a job that fits, and hand the run over."""

from __future__ import annotations

import contextlib
import logging
import math
from collections.abc import Callable
from functools import partial

from gpuqueue.clock import Clock
from gpuqueue.model.job import JobState
from gpuqueue.model.run import Ending, RunDevice
from gpuqueue.queue.jobqueue import JobQueue
from gpuqueue.queue.lease import BrokenClaim, Claim, Later
from gpuqueue.queue.requests import new_nonce
from gpuqueue.settings.settings import Settings
from gpuqueue.system.process import is_ending
from workers.measure.active_runs import LiveRun, LiveRuns
from workers.measure.admission import AdmissionCheck
from workers.measure.monitor import DeviceMonitor
from workers.run.directory import Held, RunDir
from workers.run.start_health import in_words
from workers.steps.conclusion import Detached, answered
from workers.threads import SteadyEvent

log = logging.getLogger(__name__)

#: Pause after a claim was released, in seconds.
PAUSE_S = 1.0


class Claimer:
    """Claims jobs for one device."""

    def __init__(
        self,
        settings: Settings,
        queue: JobQueue,
        monitor: DeviceMonitor,
        admission: AdmissionCheck,
        runs: LiveRuns,
        clock: Clock,
        *,
        worker: str,
    ) -> None:
        self._settings = settings
        self._queue = queue
        self._monitor = monitor
        self._known = monitor.devices
        self._gpus_here = any(each.kind.is_gpu for each in self._known.values())
        self._admission = admission
        self._runs = runs
        self._clock = clock
        self._worker = worker
        self._slots = settings.slots_for(admission.device)
        self._logged: str | None = None
        self._paused_until_s = 0.0
        #: Seconds until the next claim attempt, after a job was left to a better device.
        self._again_s = math.inf
        #: Whether the last claim attempt found all slots taken.
        self._was_full = False
        self.wake = SteadyEvent()

    def loop(self, hand_over: Callable[[LiveRun], None], stopping: SteadyEvent) -> None:
        """Claim jobs until *stopping* is set, and pass each run to *hand_over*, which must not block.

        The loop runs after each wake-up message, after the end of each run, and at least every ``poll_s`` seconds.
        """
        while not stopping.is_set():
            self.wake.clear()
            with contextlib.suppress(Detached):  # the next worker of this device reports an open claim as lost
                while not stopping.is_set() and (claim := self._claim(stopping)) is not None:
                    self._take(claim, hand_over, stopping)
            self.wake.wait(min(self._settings.poll_s, self._again_s))

    def pause(self) -> None:
        """Stop claiming for ``PAUSE_S``, so that this worker does not reclaim a job that it has just released."""
        self._paused_until_s = self._clock.monotonic_s() + PAUSE_S

    def slot_is_free(self) -> None:
        """Try again if the last attempt found all slots taken. Else the message of the run's end was enough."""
        if self._was_full:
            self.wake.set()

    def _claim(self, stopping: SteadyEvent) -> Claim | None:
        """Claim one job, or return None if there is no free slot or no job that fits.

        The store is asked with the same nonce until it answers, so that a lost reply does not lose the job.
        """
        self._again_s = math.inf
        self._was_full = True  # before the check, so that a slot that gets free meanwhile is seen
        if len(self._runs) >= self._slots or self._clock.monotonic_s() < self._paused_until_s or is_ending():
            return None
        self._was_full = False
        while True:
            nonce = new_nonce()
            try:
                found = answered(lambda: self._seek(nonce), stopping)  # noqa: B023 - called in this round
            except BrokenClaim as broken:
                self._refuse(broken, stopping)  # the broken job has ended: ask for the next one
                continue
            if isinstance(found, Later):
                self._again_s = found.after_s
                return None
            return found

    def _seek(self, nonce: str) -> Claim | Later | None:
        """Ask the store for a job. The store may have been away for a while, so a sample counts only for a moment.

        If the device is in trouble, a job claimed by an unanswered attempt returns to the queue when its lease expires.
        """
        sample = self._monitor.recent(self._admission.device)
        offer = self._admission.offer(None if sample is None or sample.is_outdated else sample)
        if offer.trouble is not None:
            if offer.trouble != self._logged:
                log.warning("%s takes no new job: %s", offer.device.uuid, offer.trouble)
            self._logged = offer.trouble
            return None
        self._was_full = True
        if len(self._runs) >= offer.slots:  # the store learns with the next heartbeat that the slots have changed
            return None
        self._was_full = False
        return self._queue.runs.seek(
            offer, worker=self._worker, lease_s=self._settings.lease_s, nonce=nonce, gpus_here=self._gpus_here
        )

    def _refuse(self, broken: BrokenClaim, stopping: SteadyEvent) -> None:
        """End a job that cannot be run. If the claim were released, the job would be claimed again at once."""
        why = f"{broken.why}: submit the job again"
        log.error("job %s is refused: %s", broken.job_id, why)
        refuse = partial(self._queue.runs.finish, broken.job_id, broken.token, state=JobState.FAILED)
        answered(partial(refuse, ending=Ending.refused(why), duration_s=None, devices=()), stopping)

    def _take(self, claim: Claim, hand_over: Callable[[LiveRun], None], stopping: SteadyEvent) -> None:
        """Hand the claimed run over. If the host is short of disk space or threads, release the claim."""
        run = None
        try:
            run = self._run_of(claim)
            self._runs.add(run)
            log.info("claimed %s", run)
            hand_over(run)
        except Exception as error:
            trace = not isinstance(error, OSError)
            log.error("job %s cannot be started: %s", claim.job_id, error, exc_info=trace)  # noqa: TRY400
            if run is not None:
                self._runs.remove(claim.token)
                run.close()
                run.directory.discard()
            self._admission.start_health.failed(in_words(error))
            self.pause()
            why = f"it could not be started on {self._settings.host}: {getattr(error, 'strerror', None) or error}"
            answered(lambda: self._queue.runs.release_claim(claim.job_id, claim.token, why), stopping)

    def _run_of(self, claim: Claim) -> LiveRun:
        """Create the directory of a claimed run, and lock it.

        Raises:
            OSError: The directory cannot be created. No part of it is left.

        """
        held = Held(
            job_id=claim.job_id,
            token=claim.token,
            devices=tuple(self._run_device(uuid, claim.lease_bytes) for uuid in claim.devices),
            capped=self._settings.cap and claim.spec.cap,
            claimed_ms=claim.claimed_ms,
            probe=claim.spec.probe,
            stop_on_nan=claim.spec.stop_on_nan,
            stop_when_stalled_s=claim.spec.stop_when_stalled_s,
            has_terminal=claim.spec.pty is not None,
            cwd=claim.spec.cwd if claim.spec.snapshot is None else None,
            member=None if claim.member is None else str(claim.member),
        )
        directory = RunDir.create(
            self._settings.runs_dir, held, claim.payload, entered=self._settings.launcher_in_use is not None
        )
        run = LiveRun(held=held, directory=directory, since_s=self._clock.monotonic_s(), spec=claim.spec)
        try:
            run.lock_fd = directory.try_lock()
        except OSError:
            directory.discard()
            raise
        return run

    def _run_device(self, uuid: str, lease_bytes: int) -> RunDevice:
        known = self._known.get(uuid)
        if known is None:
            return RunDevice(uuid=uuid, lease_bytes=lease_bytes)
        return RunDevice(
            uuid=uuid,
            lease_bytes=lease_bytes,
            index=known.index,
            name=known.name,
            kind=known.kind,
            total_bytes=known.total_bytes,
        )
