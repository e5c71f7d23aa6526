"""The worker of one device: its parts, and the order in which they start and stop. Independent of Celery.

Before it starts, it finds the distances to the other devices of the host and opens the directory of the runs to
submitters, if jobs run as them.
"""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import stat
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from gpuqueue.clock import Clock
from gpuqueue.errors import Refused, Unreachable, unusable
from gpuqueue.lazy.imports import later
from gpuqueue.model.device import Device
from gpuqueue.model.run import EndingKind
from gpuqueue.queue.jobqueue import JobQueue
from gpuqueue.queue.lease import PreemptRequest
from gpuqueue.queue.scripts import load_all
from gpuqueue.queue.wakeup import Subscriber, WakeUp
from gpuqueue.settings.settings import Settings
from workers.claimer import Claimer
from workers.devices.backend import DeviceBackend, DeviceTrouble
from workers.measure.active_runs import LiveRun, LiveRuns
from workers.measure.admission import AdmissionCheck
from workers.measure.monitor import DeviceMonitor
from workers.measure.output import OutputWatch
from workers.measure.sampler import Sampler
from workers.run import process_tree
from workers.run.directory import ENTERED
from workers.runner import Runner
from workers.services.adoption import Adoption
from workers.services.heartbeats import Heartbeats, ask_preempt
from workers.services.prune import Pruner
from workers.services.reaper import Reaper
from workers.steps.report import NOT_STARTED
from workers.takeover import Takeover
from workers.threads import SteadyEvent

if TYPE_CHECKING:
    from workers.devices import mps
    from workers.whole import prepare as whole
    from workers.whole import sweep
else:  # few sites use them
    mps = later("workers.devices.mps")
    whole = later("workers.whole.prepare")
    sweep = later("workers.whole.sweep")

log = logging.getLogger(__name__)

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
        self.queue = JobQueue.of(settings)
        self.runs = LiveRuns()
        self._monitor = DeviceMonitor(settings, backend, self.runs, clock)
        self._admission = AdmissionCheck(settings, self._monitor, device, clock)
        self._sampler = Sampler(self._monitor, self.runs, clock, settings.on_wrong_device)
        self._output = OutputWatch(self.runs, clock)
        self._adoption = Adoption(
            settings, self.queue, self.runs, worker=self.name, near=distances_from(backend, device)
        )
        parts = (self._admission, self._monitor, self.runs, clock, self._adoption)
        self._runner = Runner(settings, self.queue, *parts, host_devices=count_devices(backend))
        self._heartbeats = Heartbeats(settings, self.queue, self._admission, self.runs, clock, self._adoption)
        self._reaper = Reaper(settings, self.queue, clock)
        self._pruner = Pruner(settings, clock)
        self._claimer = Claimer(
            settings, self.queue, self._monitor, self._admission, self.runs, clock, worker=self.name
        )
        self._stopping = SteadyEvent()
        self._takeover = Takeover(
            settings, self.queue, device, self._monitor, self.runs, clock, self._heartbeats, self._stopping
        )
        self._sweep = (
            sweep.Sweep(whole.engine_of(settings), self.queue, whole.site_of(settings))
            if device.kind.is_engine
            else None
        )
        self._threads: list[threading.Thread] = []
        self._device_lock: int | None = None

    # ---- start ---------------------------------------------------------------------------------------------------

    def start(self, hand_over: HandOver) -> None:
        """Lock the device, adopt the runs that an earlier worker left there, and then start to claim.

        Raises:
            Refused: Another worker serves the device and does not exit.
            Refused: Jobs run as their submitters, who cannot enter the directory of the runs.
            Refused: The site has turned MPS on, and jobs cannot share the device through it.
            Refused: The device is an engine, and jobs run as their submitters.
            GpuQueueError: The state directory cannot be used.
            StoreUnreachable: The store does not answer.
            StoreNotOpen: The store does not open in time.

        """
        load_all()
        if self._sweep is not None:
            whole.check_host(self.settings, self.device)
        if process_tree.hides_others():
            log.warning(
                "/proc hides the processes of other accounts (hidepid): external processes may be unnamed or unseen"
            )
        prepare_runs_directory(self.settings)
        if self.settings.mps:
            mps.check(self.settings, [self.device])
        self._device_lock = self._takeover.lock()
        self._runner.prepare()
        self._adoption.hand_over = hand_over
        for run in self._takeover.adopt():
            log.info("adopted %s", run)
            hand_over(run)
        loops: dict[str, Callable[[SteadyEvent], None]] = {
            "heartbeats": self._heartbeats.loop,
            "keeper": self._heartbeats.keep,
            "sampler": self._sampler.loop,
            "output": self._output.loop,
            "reaper": self._reaper.loop,
            "pruner": self._pruner.loop,
            "listener": self._listen,
            "warm": self._runner.tidy,
            "claimer": lambda stopping: self._claimer.loop(hand_over, stopping),
        }
        if self._sweep is not None:
            loops["sweep"] = self._sweep.loop
        for name, loop in loops.items():
            thread = threading.Thread(
                target=self._restart_always, args=(name, loop), name=f"gpuqueue-{name}", daemon=True
            )
            thread.start()
            self._threads.append(thread)
        log.info("worker %s serves %s (%s)", self.name, self.device.name, self.device.uuid)

    def _restart_always(self, name: str, loop: Callable[[SteadyEvent], None]) -> None:
        """Run *loop* until the worker stops, and restart it after an exception."""
        while not self._stopping.is_set():
            try:
                loop(self._stopping)
            except Exception as error:
                # A host that is short of a resource may be so for long: log no traceback each time.
                trace = not isinstance(error, OSError)
                log.error("the %s failed, it goes on in a moment: %s", name, error, exc_info=trace)  # noqa: TRY400
                self._stopping.wait(1.0)

    # ---- runs and wake-up messages -------------------------------------------------------------------------------

    def work(self, token: str) -> str:
        """Execute the run with this token, and return its outcome. Called in a thread of the pool."""
        run = self.runs.get(token)
        if run is None:
            return "unknown"  # a message for an earlier process of this device's worker
        try:
            outcome = self._runner.run(run)
        finally:
            self.runs.remove(token)
        if outcome == NOT_STARTED:
            self._claimer.pause()
        self._claimer.slot_is_free()
        return outcome

    def _listen(self, stopping: SteadyEvent) -> None:
        while not stopping.is_set():
            try:
                with Subscriber(self.settings.redis_url) as wakeups:
                    self._claimer.wake.set()  # a message may have been lost while the listener was not subscribed
                    while not stopping.is_set():
                        wake = wakeups.wait(LISTEN_S)
                        if wake is None:
                            continue
                        if wake.what == "cancel" and wake.token is not None:
                            self._cancel(wake.token)
                        elif wake.what == "preempt" and wake.token is not None:
                            self._ask_preempt(wake)
                        elif wake.what == "extend" and wake.token is not None:
                            self._extend(wake)
                        elif wake.device in (None, self.device.uuid):
                            self._claimer.wake.set()
            except Unreachable as error:
                log.warning("no wake-up messages for now: %s", error)
                stopping.wait(1.0)

    def _cancel(self, token: str) -> None:
        run = self.runs.get(token)
        if run is not None:
            with contextlib.suppress(OSError):  # the next heartbeat asks again
                run.directory.ask_end(EndingKind.CANCELLED)

    def _ask_preempt(self, wake: WakeUp) -> None:
        run = self.runs.get(wake.token or "")
        if run is not None and wake.by is not None and wake.left_s is not None:
            with contextlib.suppress(OSError):  # the next heartbeat asks again
                ask_preempt(run, PreemptRequest(by=wake.by, left_s=wake.left_s))

    def _extend(self, wake: WakeUp) -> None:
        run = self.runs.get(wake.token or "")
        if run is not None and wake.limit_s is not None:
            with contextlib.suppress(OSError):  # the next heartbeat repeats it
                run.directory.extend(wake.limit_s)

    # ---- stop ----------------------------------------------------------------------------------------------------

    def detach(self) -> None:
        """Stop claiming, and leave the runs in their shims until another worker adopts them.

        The claimer stops first, so that no new run begins. The runner stops last, so that its threads can still report
        runs that have just ended.
        """
        self._stopping.set()
        self._claimer.wake.set()
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


def count_devices(backend: DeviceBackend) -> int | None:
    """Return how many devices this host serves, None if the driver does not answer."""
    try:
        return len(backend.devices())
    except DeviceTrouble:
        return None


def distances_from(backend: DeviceBackend, device: Device) -> dict[str, int]:
    """Return the distance from *device* to each other device, by UUID. Unknown distances are left out.

    The CPU and MIG instances are left out, because no job on several devices uses them. So are devices that do not
    answer. Distances only improve speed, so a partial result is acceptable.
    """
    found: dict[str, int] = {}
    if not device.kind.is_gpu or device.mig_parent is not None:
        return found
    others: tuple[Device, ...] = ()
    with contextlib.suppress(DeviceTrouble):
        others = backend.devices()
    for other in others:
        if other.uuid != device.uuid and other.kind is device.kind and other.mig_parent is None:
            with contextlib.suppress(DeviceTrouble):
                steps = backend.distance(device, other)
                if steps is not None:
                    found[other.uuid] = steps
    return found


def prepare_runs_directory(settings: Settings) -> None:
    """Make the directory of the runs: a pilot that has it has begun to serve.

    If jobs run as their submitters, these may enter it and not list it.

    Raises:
        Refused: A directory above it is closed to them.
        GpuQueueError: The directory cannot be made.

    """
    try:
        settings.runs_dir.mkdir(parents=True, exist_ok=True)
        if settings.launcher_in_use is None:
            return
        settings.runs_dir.chmod(ENTERED)
    except OSError as error:
        raise unusable(settings.runs_dir, error) from error
    for above in settings.runs_dir.parents:
        if not os.stat(above).st_mode & stat.S_IXOTH:  # noqa: PTH116 - follows links
            raise Refused(
                f"run_as is submitter, but submitters cannot enter {above}, which is above their run directories: "
                "set runs_dir to a directory outside of state_dir that everybody may enter"
            )
