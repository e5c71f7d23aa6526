"""Takes a device over from an earlier worker: its lock, its live runs, and the claims that never became a run."""

from __future__ import annotations

import fcntl
import logging
import os
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from gpuqueue.clock import Clock
from gpuqueue.errors import Refused, StoreNotOpen, unusable
from gpuqueue.model.device import Device
from gpuqueue.queue.jobqueue import JobQueue
from gpuqueue.queue.lease import Verdicts
from gpuqueue.settings.settings import Settings
from gpuqueue.system.process import is_locked_anywhere
from workers.measure.active_runs import LiveRun, LiveRuns
from workers.measure.monitor import DeviceMonitor
from workers.run.directory import RunDir, reported, unsettled
from workers.run.orphans import end_run, sweep_run
from workers.services.heartbeats import Heartbeats

log = logging.getLogger(__name__)

#: How long a new worker waits for the previous worker of the device to exit, in seconds.
TAKE_OVER_S = 20.0
#: How long a new worker waits for a store that is not open, in seconds, and the pause between two attempts.
OPEN_S, PAUSE_S = 20.0, 0.5


class Takeover:
    """The takeover of *device* by a new worker."""

    def __init__(
        self,
        settings: Settings,
        queue: JobQueue,
        device: Device,
        monitor: DeviceMonitor,
        runs: LiveRuns,
        clock: Clock,
        heartbeats: Heartbeats,
        stopping: threading.Event,
    ) -> None:
        self._settings = settings
        self._queue = queue
        self._device = device
        self._monitor = monitor
        self._runs = runs
        self._clock = clock
        self._heartbeats = heartbeats
        self._stopping = stopping

    def lock(self) -> int:
        """Lock the device, wait for an earlier worker to exit, and return the lock's descriptor.

        Raises:
            Refused: Another worker serves the device and does not exit.
            GpuQueueError: The state directory cannot be used.

        """
        lock = self._lock_path(self._device.uuid)
        try:
            lock.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            fd = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise unusable(self._settings.state_dir, error) from error
        deadline = time.monotonic() + TAKE_OVER_S
        while True:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() > deadline:
                    os.close(fd)
                    raise Refused(f"another worker serves {self._device.uuid}: stop it first (gpuqueue down)") from None
                self._stopping.wait(0.1)
            else:
                return fd

    def adopt(self) -> list[LiveRun]:
        """Return the adopted live runs of an earlier worker. Report claims without a usable run as lost.

        Raises:
            StoreUnreachable: The store does not answer.
            StoreNotOpen: The store does not open in time.

        """
        adopted = list(self._left_behind(unsettled(self._settings.runs_dir)))
        for run in adopted:
            self._runs.add(run)
        for run in self._left_behind(reported(self._settings.runs_dir)):
            self._runs.report(run)
        self._give_up_orphans(self._first_heartbeat())
        return adopted

    def _left_behind(self, directories: Iterable[RunDir]) -> Iterator[LiveRun]:
        for directory in directories:
            if not directory.claimed:
                directory.settle()  # an earlier worker died during the settlement
                continue
            held = directory.held()
            if held is not None and self._is_ours(held.devices[0].uuid):
                run = LiveRun(held=held, directory=directory, since_s=self._clock.monotonic_s())
                run.resume()
                yield run

    def _first_heartbeat(self) -> Verdicts:
        """Send the first heartbeat. Wait up to ``OPEN_S`` for the store to open, and keep the runs alive meanwhile."""
        deadline_s = self._clock.monotonic_s() + OPEN_S
        while True:
            asked_s = self._clock.monotonic_s()
            try:
                return self._heartbeats.heartbeat()
            except StoreNotOpen as error:
                log.warning("the runs go on: %s", error)
                self._heartbeats.renew_all(asked_s)
                if asked_s > deadline_s or self._stopping.wait(PAUSE_S):
                    raise

    def _is_ours(self, uuid: str) -> bool:
        """Return whether this worker adopts the runs of the device *uuid*.

        A worker adopts the runs of its own device. The worker of the first device also adopts the runs of devices that
        are gone: a card can drop out, and ``up`` can be called with other devices than before.
        """
        if uuid in self._monitor.devices:
            return uuid == self._device.uuid
        first = min(self._monitor.devices.values(), key=lambda device: device.index)
        # A worker in another container may share the state directory and serve the device.
        return first.uuid == self._device.uuid and not is_locked_anywhere(self._lock_path(uuid))

    def _give_up_orphans(self, verdicts: Verdicts) -> None:
        for lease in verdicts.others:
            if not lease.leads:
                continue
            # The earlier worker died right after the claim and left no run directory, or the directory is damaged.
            directory = RunDir(self._settings.runs_dir / str(lease.job_id) / lease.token)
            damaged = directory.damaged()
            if damaged and not end_run(directory, self._settings.kill_grace_s + TAKE_OVER_S, self._stopping):
                log.error("job %s: its run cannot be adopted and does not end: its lease must run out", lease.job_id)
                continue
            swept = self._swept(lease.token)  # the run may have started before its directory was deleted
            if swept is None:
                continue
            words = "its run directory is damaged" if damaged else "its worker vanished between the claim and the start"
            if swept:
                words = f"it had no shim any more, {swept} processes of it were ended"
            limit = self._settings.loss_limit
            state = self._queue.runs.lose(lease.job_id, lease.token, loss_limit=limit, detail=words)
            log.warning("job %s: %s, it is %s now", lease.job_id, words, state)
            directory.settle()  # no link may exist for this run, so `unsettled` would not find it later

    def _swept(self, token: str) -> int | None:
        """End the processes of a run, and return their number; None if some may be left, so its lease must run out."""
        try:
            return sweep_run(token, self._settings.launcher_in_use)
        except OSError as error:
            log.error("run %s: its processes cannot be ended: %s", token, error)  # noqa: TRY400 - no traceback needed
            return None

    def _lock_path(self, uuid: str) -> Path:
        """Return the path of the file that the worker of the device *uuid* holds a lock on."""
        return self._settings.state_dir / "devices" / f"{uuid}.lock"
