"""The claim loop: look at the device, claim a job that fits, hand it over."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from gpuqueue.clock import Clock
from gpuqueue.device import Device
from gpuqueue.errors import Unreachable
from gpuqueue.queue.jobqueue import JobQueue, new_nonce
from gpuqueue.queue.lease import Claim
from gpuqueue.run import RunDevice
from gpuqueue.settings import Settings
from workers.devices.backend import DeviceBackend
from workers.gate import Gate
from workers.live import LiveRun, LiveRuns
from workers.rundir import Held, RunDir

log = logging.getLogger(__name__)

#: Pause after the store did not answer or a claim could not be handed over, in seconds.
PAUSE_S = 1.0


class Claimer:
    """Claims jobs for one device and hands each to *hand_over*, which must not block."""

    def __init__(  # noqa: PLR0913 - the worker's parts meet here
        self,
        settings: Settings,
        queue: JobQueue,
        backend: DeviceBackend,
        device: Device,
        gate: Gate,
        runs: LiveRuns,
        clock: Clock,
        *,
        worker: str,
        hand_over: Callable[[LiveRun], None],
    ) -> None:
        self._settings = settings
        self._queue = queue
        self._known = {each.uuid: each for each in backend.devices()}
        self._device = device
        self._gate = gate
        self._runs = runs
        self._clock = clock
        self._worker = worker
        self._hand_over = hand_over
        self.wake = threading.Event()

    def loop(self, stopping: threading.Event) -> None:
        """Claim until *stopping* is set: at every ring of the doorbell, at every end of a run, and by the clock."""
        while not stopping.is_set():
            self.wake.clear()
            try:
                while not stopping.is_set() and self.claim_one(stopping):
                    pass
            except Unreachable as error:
                log.warning("no claims for now: %s", error)
                stopping.wait(PAUSE_S)
            self.wake.wait(self._settings.poll_s)

    def claim_one(self, stopping: threading.Event) -> bool:
        """Claim and hand over one job; return whether there was one."""
        if len(self._runs) >= self._settings.slots:
            return False
        offer = self._gate.look()
        if offer is None:
            return False
        claim = self._claim(offer.foreign_bytes, stopping)
        if claim is None:
            return False
        self._take(claim)
        return True

    def _claim(self, foreign_bytes: int, stopping: threading.Event) -> Claim | None:
        """Ask with one nonce until there is an answer: a lost reply must not become a lost job."""
        nonce = new_nonce()
        while True:
            try:
                return self._queue.claim(
                    host=self._settings.host,
                    device=self._device.uuid,
                    worker=self._worker,
                    lease_s=self._settings.lease_s,
                    foreign_bytes=foreign_bytes,
                    nonce=nonce,
                )
            except Unreachable:
                if stopping.wait(PAUSE_S):
                    return None  # if it was claimed all the same, the next worker of this device gives it up

    def _take(self, claim: Claim) -> None:
        held = Held(
            job_id=claim.job_id,
            token=claim.token,
            devices=tuple(self._run_device(uuid, claim.lease_bytes) for uuid in claim.devices),
        )
        try:
            directory = RunDir.create(self._settings.runs_dir, held)
            lock_fd = directory.try_lock()
        except OSError as error:
            log.warning("job %s goes back: no run directory: %s", claim.job_id, error)
            self._queue.giveback(
                claim.job_id, claim.token, f"no run directory on {self._settings.host}: {error.strerror}"
            )
            self.wake.wait(PAUSE_S)
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
        self._hand_over(run)

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
