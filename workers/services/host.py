"""The host process of one machine: supervises the embedded store, a worker for each device, the recorder, the relay.

``gpuqueue up`` starts it.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial

from gpuqueue.clock import SystemClock
from gpuqueue.embedded.device_list import DeviceList
from gpuqueue.embedded.supervision import LIVED_WELL_S, StoreSupervisor
from gpuqueue.errors import GpuQueueError, StoreNotOpen
from gpuqueue.model.device import Device, DeviceKind
from gpuqueue.queue.drains import BY_HOST, DrainOrigin
from gpuqueue.queue.jobqueue import JobQueue
from gpuqueue.queue.lease import SILENT_HEARTBEATS
from gpuqueue.settings.settings import Settings
from gpuqueue.system.account import current_account
from gpuqueue.system.machine_id import machine_id
from gpuqueue.system.process import end, installed, stop_signal
from workers.devices.select import remember
from workers.run import deliveries
from workers.services.log_watch import LogWatch
from workers.services.worker_parent import ForkedWorker, WorkerParent

log = logging.getLogger(__name__)

#: Pauses before an ended process is restarted, in seconds, by its number of failures in a row. A process that lived
#: longer than ``LIVED_WELL_S`` or was killed starts over with the first pause.
RESTART_PAUSES_S = (0.2, 1.0, 5.0, 30.0)
#: Longest pause as a share of the shims' grace. Without a worker a run gets no heartbeats, and its shim ends it.
GRACE_SHARE = 1 / 7
#: How long a process may take to exit before it is killed, in seconds.
LEAVE_S = 15.0
#: Pauses before the devices are listed again while a temporary one is served, in seconds. The last one is repeated.
LIST_PAUSES_S = (2.0, 5.0, 10.0, 30.0, 60.0, 300.0)
#: Longest such pause while a job runs on a temporary device, in seconds.
MAX_BUSY_S = 15.0
#: Time between two tries of ``gpuqueue down`` at the end of this host's time, in seconds.
DOWN_PAUSE_S = 5.0
POLL_S = 0.1
#: Time between two checks whether a process is needed, in seconds.
NEEDED_S = 1.0


@dataclass(slots=True)
class Child:
    """A supervised process. Of a worker, *args* are the words after ``gpuqueue-worker``: its parent forks it."""

    name: str
    args: list[str]
    is_worker: bool = False
    process: subprocess.Popen[bytes] | ForkedWorker | None = None
    started_s: float = 0.0
    failures: int = 0
    due_s: float = 0.0
    #: Whether there is work for it. It is started only then, and may end by itself. None: it works always.
    needed: Callable[[], bool] | None = None


class Host:
    """Keeps the processes of this machine alive until *stopping* of :meth:`serve` is set."""

    def __init__(
        self,
        settings: Settings,
        devices: Sequence[Device],
        devices_spec: str,
        *,
        record: bool,
        needs_store: bool = False,
        until: datetime | None = None,
    ) -> None:
        """Serve *devices*, which *devices_spec* has selected. There are none where only the recorder runs.

        With *needs_store*, :meth:`serve` ends with an error if the embedded store cannot be started again. *until* is
        the end of this host's time: of all its devices, and shortly before it everything is stopped.
        """
        self._until, self._clock = until, SystemClock()
        self._down: subprocess.Popen[bytes] | None = None
        self._down_due_s = 0.0
        self._settings = settings
        self._spec = devices_spec
        self._devices = devices
        command = [installed("gpuqueue-worker")]
        self._parent = WorkerParent()
        self._workers = list(map(self._worker, devices))
        #: Lists the devices again while a temporary one is served. The number of lists, and when the next one is due.
        self._list: DeviceList | None = None
        self._lists, self._list_due_s = 0, time.monotonic() + LIST_PAUSES_S[0]
        socket = settings.server_socket
        api = [] if socket is None else ["--socket", str(socket)]
        self._recorder = [Child("recorder", [*command, "record", *api])] if record else []
        self._store = (
            StoreSupervisor(settings, partial(pause_s, grace_s=settings.shim_grace_s), may_end=needs_store)
            if settings.embedded
            else None
        )
        self._relay = [Child("relay", [*command, "relay"], needed=self._needs_relay)]
        self._tunnel = [Child("tunnel", [*command, "tunnel"])] if settings.store_through_service else []

    def serve(self, stopping: threading.Event) -> None:
        """Start all processes, and restart those that end. Once *stopping* is set, end workers, then the recorder.

        The store stays: ``down`` stops it after this process.

        Raises:
            StoreUnreachable: the embedded store cannot be started again. All processes were ended.

        """
        os.chdir("/")  # so that the directory of the caller can be removed or unmounted
        if self._devices:
            self._take_over()
            watch = partial(LogWatch(self._settings).loop, stopping)
            # A thread of its own: a file server with the runs that does not answer must not hold up the supervision.
            threading.Thread(target=watch, name="gpuqueue-log-watch", daemon=True).start()
        try:
            while not stopping.is_set():
                if self._store is not None:
                    self._store.poll()
                self._list_again()
                self._end_in_time()
                for child in (*self._tunnel, *self._recorder, *self._workers, *self._relay):
                    self._supervise(child)
                stopping.wait(POLL_S)
        finally:
            # The recorder still has to record the last events of the workers, and all of them need the tunnel.
            for group in ([*self._workers, *self._relay], self._recorder, self._tunnel):
                _leave(group)
            self._parent.close()

    def _worker(self, device: Device) -> Child:
        served = ["--devices", self._spec]
        if device.no_gpu is not None:  # a new worker must serve the CPU also when the driver answers again
            served = ["--devices", "cpu", "--no-gpu", device.no_gpu]
        return Child(device.uuid, ["run", *served, "--device", device.uuid], is_worker=True)

    def _needs_relay(self) -> bool:
        """Return whether somebody may ask for the logs of this host, or a run has files to pack."""
        return self._settings.service_url is not None or any(True for _ in deliveries.settled(self._settings))

    def _take_over(self) -> None:
        """Undo the drains that ``down`` made, and withdraw the devices that this host no longer has."""
        queue = JobQueue.of(self._settings)
        if not queue.devices.is_of(self._settings.host, machine_id(self._settings.state_dir)):
            return  # the workers say so and end
        here = {device.uuid for device in self._devices}
        has_no_gpu = any(device.no_gpu is not None for device in self._devices)
        for status in queue.devices.all(self._settings.host):
            silent = status.seen_s_ago > SILENT_HEARTBEATS * self._settings.heartbeat_s
            if status.device.uuid in here or not silent or status.jobs:
                continue
            if has_no_gpu and status.device.kind is DeviceKind.GPU:
                # Jobs for a GPU must not move to the CPU: its first heartbeat withdraws this one, see machines.lua.
                log.warning("%s is missing: jobs without --device wait for a GPU", status.device.uuid)
                continue
            queue.devices.withdraw(self._settings.host, status.device.uuid)
        with contextlib.suppress(StoreNotOpen):  # a store that is not open has no drains, and the workers wait for it
            self._open(queue, here)
        queue.close()

    def _open(self, queue: JobQueue, uuids: Collection[str]) -> None:
        """Undo the drains of an earlier start, and set the end of these devices. Drains by users and by deaths stay."""
        queue.devices.resume(uuids, origins=BY_HOST)
        if self._until is not None and uuids:
            who = current_account(self._settings.host).name
            queue.devices.drain(uuids, origin=DrainOrigin.UNTIL, why="", by=who, begins_at=self._until)

    def _end_in_time(self) -> None:
        """Start ``gpuqueue down --preempt-jobs`` once it is time, and again if it fails. It ends this process."""
        if self._until is None or self._clock.now() < self._until - timedelta(seconds=self._settings.preempt_grace_s):
            return
        if (self._down is not None and self._down.poll() is None) or time.monotonic() < self._down_due_s:
            return
        self._down_due_s = time.monotonic() + DOWN_PAUSE_S
        log.warning("the time of this host is over at %s: its jobs are preempted", self._until.isoformat())
        try:
            self._down = subprocess.Popen(
                [installed("gpuqueue"), "down", "--preempt-jobs"],
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
        except OSError as error:  # as below
            log.error("gpuqueue down cannot be started: %s", error)  # noqa: TRY400 - a traceback does not help

    def _list_again(self) -> None:
        """List the devices again, at growing intervals, while a temporary one is served. Serve those that are new.

        Each list is made by a process of its own, because a library that is loaded does not fit a new driver.
        """
        if time.monotonic() < self._list_due_s or not any(device.is_temporary for device in self._devices):
            return
        is_busy = False
        try:
            self._list = self._list or DeviceList(self._spec, checked=False)
            devices = self._list.poll()
            if devices is None:
                return
            is_busy = not self._serve_new(devices)
        except (GpuQueueError, OSError) as error:
            log.warning("no other devices are served: %s", error)
        self._list, self._lists = None, min(self._lists + 1, len(LIST_PAUSES_S) - 1)
        pause_s = LIST_PAUSES_S[self._lists]
        self._list_due_s = time.monotonic() + (min(pause_s, MAX_BUSY_S) if is_busy else pause_s)

    def _serve_new(self, listed: Sequence[Device]) -> bool:
        """Serve those of *listed* that are new, in place of the temporary devices that are not listed any more.

        Return False, and change nothing, while a job runs on one of these.
        """
        if any(device.no_gpu is not None for device in listed):
            return True  # no GPU was found
        silent = {device.uuid for device in listed if device.is_temporary}
        remaining = {
            device.uuid: device for device in self._devices if not device.is_temporary or device.uuid in silent
        }
        new = [device for device in listed if device.uuid not in remaining]
        ended = [child for child in self._workers if child.name not in remaining]
        gone = {child.name for child in ended} - {device.uuid for device in new}
        if not ended and not new:
            return True
        if self._have_jobs(gone):
            return False
        _leave(ended)  # from now on nobody claims for them
        if self._have_jobs(gone):
            for child in ended:
                child.process = None  # it is started again, and takes the jobs over
            return False
        self._devices = [*remaining.values(), *new]
        self._workers = [*(child for child in self._workers if child.name in remaining), *map(self._worker, new)]
        if new:
            log.warning("served from now on: %s", ", ".join(device.uuid for device in new))
            remember(self._settings, listed)
        with closing(JobQueue.of(self._settings)) as queue:
            for uuid in gone:
                queue.devices.withdraw(self._settings.host, uuid)
            self._open(queue, [device.uuid for device in new])
        return True

    def _have_jobs(self, uuids: Collection[str]) -> bool:
        if not uuids:
            return False
        with closing(JobQueue.of(self._settings)) as queue:
            return any(status.jobs for status in queue.devices.all(self._settings.host) if status.device.uuid in uuids)

    def _supervise(self, child: Child) -> None:
        now = time.monotonic()
        if child.process is not None and child.process.poll() == 0 and child.needed is not None:
            child.process = None  # it has done its work
            child.due_s = now + NEEDED_S
        if child.process is not None and child.process.poll() is not None:
            code = child.process.returncode
            log.error("%s ended with %s", child.name, code)
            # A process that was killed did not fail, and its runs wait for a worker that adopts them.
            did_fail = code != -signal.SIGKILL and now - child.started_s <= LIVED_WELL_S
            child.failures = child.failures + 1 if did_fail else 0
            child.due_s = now + pause_s(child.failures, self._settings.shim_grace_s)
            child.process = None
        if child.process is None and now >= child.due_s:
            if child.needed is not None and not child.needed():
                child.due_s = now + NEEDED_S
                return
            child.started_s = now
            try:
                child.process = self._spawn(child)
            except OSError as error:  # the host is short of a resource; the other processes must continue
                log.error("%s cannot be started: %s", child.name, error)  # noqa: TRY400 - a traceback does not help
                child.failures += 1
                child.due_s = now + pause_s(child.failures, self._settings.shim_grace_s)

    def _spawn(self, child: Child) -> subprocess.Popen[bytes] | ForkedWorker:
        logs = self._settings.logs_dir
        logs.mkdir(parents=True, exist_ok=True, mode=0o700)
        with (logs / f"{child.name}.log").open("ab") as out:
            if child.is_worker:
                return self._parent.start(child.args, out.fileno())
            return subprocess.Popen(
                [*child.args, "--parent", str(os.getpid())],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                cwd="/",
                start_new_session=True,  # Ctrl-C reaches only the host process, which ends the others in order
            )


def pause_s(failures: int, grace_s: float) -> float:
    """Return the pause before a restart, in seconds, for a process that ended early *failures* times in a row."""
    return min(RESTART_PAUSES_S[min(failures, len(RESTART_PAUSES_S) - 1)], GRACE_SHARE * grace_s)


def _leave(children: list[Child]) -> None:
    alive = [child.process for child in children if child.process is not None and child.process.poll() is None]
    for process in alive:
        process.send_signal(stop_signal())
    deadline = time.monotonic() + LEAVE_S
    for process in alive:
        try:
            process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            log.warning("pid %s does not exit, it is killed", process.pid)
            end(process, 0.0)
