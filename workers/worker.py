"""The worker of one device: its parts, and the order in which they start and stop. Independent of Celery."""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Protocol

from gpuqueue.clock import Clock
from gpuqueue.errors import Refused, StoreNotOpen, Unreachable
from gpuqueue.model.device import Device
from gpuqueue.model.run import EndingKind
from gpuqueue.queue.jobqueue import JobQueue
from gpuqueue.queue.lease import MakePlace, Verdicts
from gpuqueue.queue.scripts import load_all
from gpuqueue.queue.wakeup import Doorbell, WakeUp
from gpuqueue.settings.settings import Settings, unusable
from gpuqueue.system.process import is_locked_anywhere
from workers.claimer import Claimer
from workers.devices.backend import DeviceBackend
from workers.devices.topology import near
from workers.measure.active_runs import LiveRun, LiveRuns
from workers.measure.admission import AdmissionCheck
from workers.measure.sampler import Sampler
from workers.measure.watchdog import Watchdog
from workers.run import process_tree
from workers.run.directory import RunDir, reported, unsettled
from workers.run.environment import TOKEN
from workers.runner import NOT_STARTED, Runner
from workers.services.adoption import Adoption
from workers.services.heartbeats import Heartbeats
from workers.services.prune import Pruner
from workers.services.reaper import Reaper
from workers.threads.steady_clock import SteadyEvent

log = logging.getLogger(__name__)

#: How long a new worker waits for the previous worker of the device to exit, in seconds.
TAKE_OVER_S = 20.0
#: How long a new worker waits for a store that is not open, in seconds.
OPEN_S = 20.0
#: Adopted runs that a worker can follow beyond its slots, if the setting was lowered. Unused threads cost nothing.
ADOPTED = 64
#: Longest wait for a wake-up message before the listener checks whether to stop, in seconds.
LISTEN_S = 0.5


class HandOver(Protocol):
    """Gives a run to a thread that calls :meth:`Worker.work` with the run's token. Must not block."""

    def __call__(self, run: LiveRun) -> None:
        """Hand *run* over."""


class Worker:
    """Serves one device: claims jobs, runs them, sends heartbeats, samples memory. Runs outlive it in their shims."""

    def __init__(self, settings: Settings, backend: DeviceBackend, device: Device, clock: Clock) -> None:
        self.settings = settings
        self.device = device
        #: How many jobs may run there at a time.
        self.slots = settings.slots_for(device)
        # The random part distinguishes a restarted worker from the previous one.
        self.name = f"{settings.host}/{device.uuid}/{secrets.token_hex(4)}"
        self.queue = JobQueue(settings.redis_url)
        self.runs = LiveRuns()
        self._backend = backend
        self._clock = clock
        self._admission = AdmissionCheck(settings, backend, device, self.runs, clock)
        watchdog = Watchdog(self._admission.allocated_bytes)
        self._sampler = Sampler(backend, self.runs, clock, watchdog, self._admission.look, self._admission.newest)
        self._adoption = Adoption(settings, self.queue, self.runs, worker=self.name, near=near(backend, device))
        self._runner = Runner(settings, self.queue, self._admission, self._sampler, self.runs, clock, self._adoption)
        self._heartbeats = Heartbeats(settings, self.queue, self._admission, self.runs, clock, self._adoption)
        self._reaper = Reaper(settings, self.queue, clock)
        self._pruner = Pruner(settings, clock)
        self._stopping = SteadyEvent()
        self._threads: list[threading.Thread] = []
        self._claimer: Claimer | None = None
        self._device_lock: int | None = None

    # ---- start ---------------------------------------------------------------------------------------------------

    def start(self, hand_over: HandOver) -> None:
        """Lock the device, adopt the runs that an earlier worker left there, and then start to claim.

        Raises:
            Refused: Another worker serves the device and does not exit.
            GpuQueueError: The state directory cannot be used.
            StoreUnreachable: The store does not answer.
            StoreNotOpen: The store does not open in time.

        """
        load_all()
        if process_tree.hides_others():
            log.warning(
                "/proc hides the processes of other accounts (hidepid): external processes may be unnamed or unseen"
            )
        self._device_lock = self._lock_device()
        self._runner.prepare()
        self._adopt(hand_over)
        self._claimer = Claimer(
            self.settings,
            self.queue,
            self._backend,
            self.device,
            self._admission,
            self.runs,
            self._clock,
            worker=self.name,
            hand_over=hand_over,
            stopping=self._stopping,
        )
        loops: dict[str, Callable[[], None]] = {
            "beats": lambda: self._heartbeats.loop(self._stopping),
            "keeper": lambda: self._heartbeats.keep(self._stopping),
            "sampler": lambda: self._sampler.loop(self._stopping),
            "reaper": lambda: self._reaper.loop(self._stopping),
            "pruner": lambda: self._pruner.loop(self._stopping),
            "doorbell": self._listen,
            "warm": lambda: self._runner.tidy(self._stopping),
            "claimer": self._claim_loop,
        }
        for name, loop in loops.items():
            thread = threading.Thread(target=self._keep_up, args=(name, loop), name=f"gpuqueue-{name}", daemon=True)
            thread.start()
            self._threads.append(thread)
        log.info("worker %s serves %s (%s)", self.name, self.device.name, self.device.uuid)

    def _keep_up(self, name: str, loop: Callable[[], None]) -> None:
        """Run *loop* until the worker stops, and restart it after an exception."""
        while not self._stopping.is_set():
            try:
                loop()
            except OSError as error:  # the host is short of a resource, perhaps for long: log no traceback each time
                log.error("the %s failed, it goes on in a moment: %s", name, error)  # noqa: TRY400 - see above
                self._stopping.wait(1.0)
            except Exception:
                log.exception("the %s failed, it goes on in a moment", name)
                self._stopping.wait(1.0)

    def _claim_loop(self) -> None:
        if self._claimer is not None:
            self._claimer.loop()

    def _lock_of(self, uuid: str) -> Path:
        """Return the path of the file that the worker of the device *uuid* holds a lock on."""
        return self.settings.state_dir / "devices" / f"{uuid}.lock"

    def _lock_device(self) -> int:
        lock = self._lock_of(self.device.uuid)
        try:
            lock.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            fd = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise unusable(self.settings.state_dir, error) from error
        deadline = time.monotonic() + TAKE_OVER_S
        while True:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() > deadline:
                    os.close(fd)
                    raise Refused(f"another worker serves {self.device.uuid}: stop it first (gpuqueue down)") from None
                self._stopping.wait(0.1)
            else:
                return fd

    def _adopt(self, hand_over: HandOver) -> None:
        """Adopt the runs that an earlier worker of this device left. Report claims without a usable run as lost."""
        self._adoption.hand_over = hand_over
        adopted = list(self._left_behind(unsettled(self.settings.runs_dir)))
        for run in adopted:
            self.runs.add(run)
        for run in self._left_behind(reported(self.settings.runs_dir)):
            self.runs.report(run)
        self._give_up_orphans(self._first_heartbeat())
        for run in adopted:
            log.info("adopted %s", run)
            hand_over(run)

    def _left_behind(self, directories: Iterable[RunDir]) -> Iterator[LiveRun]:
        for directory in directories:
            if not directory.claimed:
                directory.settle()  # an earlier worker died during the settlement
                continue
            held = directory.held()
            if held is not None and self._falls_to_us(held.devices[0].uuid):
                run = LiveRun(held=held, directory=directory, since_s=self._clock.monotonic_s())
                run.resume()
                yield run

    def _first_heartbeat(self) -> Verdicts:
        """Send the first heartbeat. Wait up to ``OPEN_S`` for the store to open, and keep the runs alive meanwhile.

        Raises:
            StoreNotOpen: The store does not open in time. The host process starts the worker again.
            StoreUnreachable: The store does not answer.

        """
        deadline_s = self._clock.monotonic_s() + OPEN_S
        while True:
            asked_s = self._clock.monotonic_s()
            try:
                return self._heartbeats.heartbeat()
            except StoreNotOpen as error:
                log.warning("the runs go on: %s", error)
                self._heartbeats.renew_all(asked_s)
                if asked_s > deadline_s or self._stopping.wait(LISTEN_S):
                    raise

    def _falls_to_us(self, uuid: str) -> bool:
        """Return whether this worker adopts the runs of the device *uuid*.

        A worker adopts the runs of its own device. The worker of the first device also adopts the runs of devices that
        are gone: a card can drop out, and ``up`` can be called with other devices than before.
        """
        here = sorted(self._backend.devices(), key=lambda device: device.index)
        if uuid == self.device.uuid or uuid in {device.uuid for device in here}:
            return uuid == self.device.uuid
        # A worker in another container may share the state directory and serve the device.
        return here[0].uuid == self.device.uuid and not is_locked_anywhere(self._lock_of(uuid))

    def _give_up_orphans(self, verdicts: Verdicts) -> None:
        for lease in verdicts.others:
            if not lease.leads:
                continue
            # The earlier worker died right after the claim and left no run directory, or the directory is damaged.
            directory = RunDir(self.settings.runs_dir / str(lease.job_id) / lease.token)
            damaged = directory.damaged()
            if damaged and not self._ended(directory):
                log.error("job %s: its run cannot be adopted and does not end: its lease must run out", lease.job_id)
                continue
            swept = process_tree.sweep(TOKEN, lease.token)  # the run may have started before its directory was deleted
            words = "its run directory is damaged" if damaged else "its worker vanished between the claim and the start"
            if swept:
                words = f"nobody answered for it any more, {swept} processes of it were ended"
            limit = self.settings.loss_limit
            state = self.queue.runs.lose(lease.job_id, lease.token, loss_limit=limit, detail=words)
            log.warning("job %s: %s, it is %s now", lease.job_id, words, state)
            directory.settle()  # no link may exist for this run, so `unsettled` would not find it later

    def _ended(self, directory: RunDir) -> bool:
        """End a run that cannot be adopted, and return whether its shim is gone.

        A job must never run twice at the same time, so the caller may report the run as lost only if the shim is gone.
        """
        with contextlib.suppress(OSError):
            directory.ask_end(EndingKind.LOST)
        deadline = time.monotonic() + self.settings.kill_grace_s + TAKE_OVER_S
        while (lock_fd := directory.try_lock()) is None:
            if time.monotonic() > deadline:
                return False
            self._stopping.wait(0.1)
        os.close(lock_fd)
        return True

    # ---- runs and wake-up messages -------------------------------------------------------------------------------

    def work(self, token: str) -> str:
        """Execute the run with this token, and return its outcome. Called in a thread of the pool."""
        run = self.runs.get(token)
        if run is None:
            return "unknown"  # a message for an earlier process of this device's worker
        outcome = self._runner.run(run)
        if outcome == NOT_STARTED and self._claimer is not None:
            self._claimer.pause()
        self._wake()
        return outcome

    def _listen(self) -> None:
        while not self._stopping.is_set():
            try:
                with Doorbell(self.settings.redis_url) as wakeups:
                    self._wake()  # a message may have been lost while the listener was not subscribed
                    while not self._stopping.is_set():
                        wake = wakeups.wait(LISTEN_S)
                        if wake is None:
                            continue
                        if wake.what == "cancel" and wake.token is not None:
                            self._cancel(wake.token)
                        elif wake.what == "preempt" and wake.token is not None:
                            self._ask_for_place(wake)
                        elif wake.device in (None, self.device.uuid):
                            self._wake()
            except Unreachable as error:
                log.warning("the doorbell is silent: %s", error)
                self._stopping.wait(1.0)

    def _wake(self) -> None:
        if self._claimer is not None:
            self._claimer.wake.set()

    def _cancel(self, token: str) -> None:
        run = self.runs.get(token)
        if run is not None:
            with contextlib.suppress(OSError):  # the next heartbeat asks again
                run.directory.ask_end(EndingKind.CANCELLED)

    def _ask_for_place(self, wake: WakeUp) -> None:
        run = self.runs.get(wake.token or "")
        if run is not None and wake.by is not None and wake.left_s is not None:
            with contextlib.suppress(OSError):  # the next heartbeat asks again
                self._heartbeats.ask_for_place(run, MakePlace(by=wake.by, left_s=wake.left_s))

    # ---- stop ----------------------------------------------------------------------------------------------------

    def detach(self) -> None:
        """Stop claiming, and leave the runs in their shims until another worker adopts them.

        The claimer stops first, so that no new run begins. The runner stops last, so that its threads can still report
        runs that have just ended.
        """
        self._stopping.set()
        self._wake()
        self.runs.wake()
        for thread in self._threads:
            thread.join(timeout=LISTEN_S + 5)
        self._runner.detach()

    def close(self) -> None:
        """Unlock the device and close the connection to the store."""
        if self._device_lock is not None:
            os.close(self._device_lock)
            self._device_lock = None
        self.queue.close()
