"""The claim loop: read the device, claim a job that fits, and hand the run over."""

from __future__ import annotations

import logging
import math
import os
import threading
from collections.abc import Callable

from gpuqueue.clock import Clock
from gpuqueue.errors import Unreachable
from gpuqueue.model.device import Device, DeviceKind
from gpuqueue.model.job import JobState
from gpuqueue.model.run import Ending, RunDevice
from gpuqueue.queue.jobqueue import JobQueue
from gpuqueue.queue.lease import BrokenClaim, Claim, Later
from gpuqueue.queue.requests import new_nonce
from gpuqueue.settings.settings import Settings
from workers.devices.backend import DeviceBackend
from workers.measure.active_runs import LiveRun, LiveRuns
from workers.measure.admission import AdmissionCheck
from workers.run.directory import RunDir
from workers.run.start_health import in_words
from workers.run.values import Held
from workers.threads.steady_clock import SteadyEvent

log = logging.getLogger(__name__)

#: Pause after the store did not answer or a claim was released, in seconds.
PAUSE_S = 1.0


class Claimer:
    """Claims jobs for one device and passes each run to *hand_over*, which must not block."""

    def __init__(  # noqa: PLR0913 - needs most parts of the worker
        self,
        settings: Settings,
        queue: JobQueue,
        backend: DeviceBackend,
        device: Device,
        admission: AdmissionCheck,
        runs: LiveRuns,
        clock: Clock,
        *,
        worker: str,
        hand_over: Callable[[LiveRun], None],
        stopping: threading.Event,
    ) -> None:
        self._settings = settings
        self._queue = queue
        self._known = {each.uuid: each for each in backend.devices()}
        self._gpus_here = any(each.kind is not DeviceKind.CPU for each in self._known.values())
        self._device = device
        self._admission = admission
        self._runs = runs
        self._clock = clock
        self._worker = worker
        self._hand_over = hand_over
        self._stopping = stopping
        self._slots = settings.slots_for(device)
        self._said: str | None = None
        self._paused_until_s = 0.0
        #: Seconds until the next claim attempt, after a job was left to a better device.
        self._again_s = math.inf
        self.wake = SteadyEvent()

    def loop(self) -> None:
        """Claim jobs until the worker stops.

        The loop runs after each wake-up message, after the end of each run, and at least every ``poll_s`` seconds.
        """
        while not self._stopping.is_set():
            self.wake.clear()
            while not self._stopping.is_set() and self.claim_one():
                pass
            self.wake.wait(min(self._settings.poll_s, self._again_s))

    def pause(self) -> None:
        """Stop claiming for ``PAUSE_S``, so that this worker does not reclaim a job that it has just released."""
        self._paused_until_s = self._clock.monotonic_s() + PAUSE_S

    def claim_one(self) -> bool:
        """Claim one job and hand it over. Return whether there was one."""
        self._again_s = math.inf
        if len(self._runs) >= self._slots or self._clock.monotonic_s() < self._paused_until_s:
            return False
        claim = self._claim()
        if claim is None:
            return False
        self._take(claim)
        return True

    def _say(self, trouble: str) -> None:
        if trouble != self._said:
            log.warning("%s takes no new job: %s", self._device.uuid, trouble)
            self._said = trouble

    def _claim(self) -> Claim | None:
        """Ask for a job with the same nonce until the store answers, so that a lost reply does not lose the job.

        Each attempt reads the device again, because the store may have been unavailable for a while.
        """
        nonce = new_nonce()
        while True:
            offer = self._admission.look()
            if offer.trouble is not None:
                self._say(offer.trouble)
                return None  # a job claimed by an unanswered attempt returns to the queue when its lease expires
            try:
                found = self._queue.runs.seek(
                    offer,
                    worker=self._worker,
                    lease_s=self._settings.lease_s,
                    nonce=nonce,
                    gpus_here=self._gpus_here,
                )
            except BrokenClaim as broken:
                self._refuse(broken)
                nonce = new_nonce()  # the broken job has ended: ask for the next one
            except Unreachable as error:
                log.warning("no claims for now: %s", error)
                if self._stopping.wait(PAUSE_S):
                    return None  # if the store did claim a job, the next worker of this device reports it as lost
            else:
                if isinstance(found, Later):
                    self._again_s = found.after_s
                    return None
                return found

    def _refuse(self, broken: BrokenClaim) -> None:
        """End a job that cannot be run. If the claim were released, the job would be claimed again at once."""
        why = f"{broken.why}: submit the job again"
        log.error("job %s is refused: %s", broken.job_id, why)
        while True:
            try:
                self._queue.runs.finish(
                    broken.job_id,
                    broken.token,
                    state=JobState.FAILED,
                    ending=Ending.refused(why),
                    duration_s=None,
                    devices=(),
                )
            except Unreachable:
                if self._stopping.wait(PAUSE_S):
                    return  # the next worker of this device reports the claim as lost
            else:
                return

    def _take(self, claim: Claim) -> None:
        held = Held(
            job_id=claim.job_id,
            token=claim.token,
            devices=tuple(self._run_device(uuid, claim.lease_bytes) for uuid in claim.devices),
            capped=self._settings.cap and claim.spec.cap,
            claimed_ms=claim.claimed_ms,
        )
        try:
            directory, lock_fd = self._make_directory(held, claim.payload)
        except OSError as error:
            log.warning("job %s goes back: no run directory: %s", claim.job_id, error)
            self._admission.ground.failed(in_words(error))
            self._give_back(claim, f"no run directory on {self._settings.host}: {error.strerror}")
            return
        run = LiveRun(
            held=held,
            directory=directory,
            since_s=self._clock.monotonic_s(),
            lock_fd=lock_fd,
            spec=claim.spec,
        )
        self._runs.add(run)
        log.info("claimed %s", run)
        try:
            self._hand_over(run)
        except Exception as error:
            log.exception("%s could not be handed over", run)
            self._runs.remove(run.held.token)
            if lock_fd is not None:
                os.close(lock_fd)
            directory.discard()
            self._admission.ground.failed(in_words(error))  # for example, the host cannot create a thread
            self._give_back(claim, f"it could not be handed over: {error}")

    def _make_directory(self, held: Held, payload: str) -> tuple[RunDir, int | None]:
        directory = RunDir.create(self._settings.runs_dir, held, payload)
        try:
            return directory, directory.try_lock()
        except OSError:
            directory.discard()
            raise

    def _give_back(self, claim: Claim, why: str) -> None:
        self.pause()
        while True:
            try:
                self._queue.runs.release_claim(claim.job_id, claim.token, why)
            except Unreachable:
                if self._stopping.wait(PAUSE_S):
                    return  # the lease expires
            else:
                return

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
