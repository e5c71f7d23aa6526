"""Samples the memory of each run, more often while the run is young, and keeps the figures."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace

from gpuqueue.clock import Clock
from gpuqueue.model.device import Device, DeviceKind, Peak, Reading
from gpuqueue.model.run import RunDevice
from workers.devices.backend import DeviceBackend, DeviceTrouble
from workers.measure.active_runs import LiveRun, LiveRuns
from workers.measure.attribution import pids_by_run
from workers.measure.meter import INTERVAL_S
from workers.measure.peak import peak_of
from workers.measure.watchdog import Watchdog
from workers.run.torch_report import InsideReport

log = logging.getLogger(__name__)

#: Most runs reach their peak while they load, so the sampler polls every 0.1 s for the first 10 s.
YOUNG_S = 10.0
YOUNG_INTERVAL_S = 0.1
#: Time from the start of a run to its first sample, in seconds. At the start only the shim exists, and an earlier
#: sample would slow down the start itself, which matters in a series of short jobs.
FIRST_S = 0.02
#: If a smaller share of the device is free, a job may be about to run out of memory.
NEARLY_FULL = 0.1


class Sampler:
    """Samples the runs of one worker on all their devices. Without a run it reads no device."""

    def __init__(
        self,
        backend: DeviceBackend,
        runs: LiveRuns,
        clock: Clock,
        watchdog: Watchdog,
        look_around: Callable[[], object] = lambda: None,
        newest: Callable[[Device, float], Reading | None] = lambda _device, _since_s: None,
    ) -> None:
        """Create a sampler.

        The sampler calls *look_around* while a device is nearly full, so that the neighbours of a run are known if it
        runs out of memory. *newest* returns a recent reading of a device that another thread took after a given time
        on the host's monotonic clock, or None. That thread has recorded the samples of the runs already.
        """
        self._backend = backend
        self._watchdog = watchdog
        self._look_around = look_around
        self._newest = newest
        self._runs = runs
        self._clock = clock
        self._devices = {device.uuid: device for device in backend.devices()}
        self._health_due_s: dict[str, float] = {}
        #: The trouble last logged for each device that gives no reading, so that each trouble is logged once.
        self._said: dict[str, str] = {}

    def loop(self, stopping: threading.Event) -> None:
        """Sample until *stopping* is set. A new run is sampled without waiting for the next poll."""
        while not stopping.is_set():
            self.sample()
            if self._runs.wait(self._pause_s()):
                stopping.wait(FIRST_S)

    def _pause_s(self) -> float:
        now = self._clock.monotonic_s()
        runs = self._runs.all()
        # A job that uses too much is sampled again soon, since it endangers its neighbours.
        soon = any(now - run.since_s < YOUNG_S or run.in_excess for run in runs)
        return YOUNG_INTERVAL_S if soon else INTERVAL_S

    # ---- sample --------------------------------------------------------------------------------------------------

    def sample(self) -> None:
        """Take one sample of every started run, on each of its devices."""
        runs = [run for run in self._runs.all() if run.shim is not None]
        held: dict[str, list[int | None]] = {run.held.token: [] for run in runs}
        for device in self._devices_of(runs):
            there = [run for run in runs if run.has(device.uuid)]
            # In a series of short jobs each claim reads the device. Reuse that reading if the newest run had started.
            taken = self._newest(device, max(run.since_s for run in there) + FIRST_S / 2)
            reading = self._read(device) if taken is None else taken
            if reading is not None:
                self._sample_device(device, reading, there, held, noted=taken is not None)
        for run in runs:
            run.note_at_once(held[run.held.token])

    def _sample_device(
        self,
        device: Device,
        reading: Reading,
        runs: Sequence[LiveRun],
        held: dict[str, list[int | None]],
        *,
        noted: bool,
    ) -> None:
        """Take one sample of *runs* on *device*, and append the bytes of each run to *held*.

        If *noted* is true, the samples of *reading* are recorded already for runs with a process on the device.
        """
        now_s = self._clock.monotonic_s()
        pids = pids_by_run(device, reading, {run.held.token: run.shim for run in runs})
        for run in runs:
            ours = pids.get(run.held.token, frozenset())
            if device.kind is not DeviceKind.GPU and not ours:
                continue  # the run has no process now; a live process always uses some host memory
            used = self._backend.used_by(reading, ours)
            if not (noted and ours):
                run.note(device.uuid, reading, used, ours, now_s)
            held[run.held.token].append(used)
            self._watchdog.look(run, device, used, reading)
        if now_s >= self._health_due_s.get(device.uuid, 0.0):
            # At most once per INTERVAL_S, at any sampling rate: these calls are slow with some drivers.
            self._health_due_s[device.uuid] = now_s + INTERVAL_S
            self._look_at_health(device, runs)
            if reading.free_bytes < NEARLY_FULL * device.total_bytes:
                self._look_around()

    def _look_at_health(self, device: Device, runs: Sequence[LiveRun]) -> None:
        try:
            health = self._backend.health(device)
        except DeviceTrouble:
            return  # the next reading reports the trouble
        for run in runs:
            run.meter(device.uuid).note_health(health)

    def _devices_of(self, runs: Sequence[LiveRun]) -> list[Device]:
        wanted = {each.uuid for run in runs for each in run.held.devices}
        return [device for uuid, device in self._devices.items() if uuid in wanted]

    def _read(self, device: Device) -> Reading | None:
        try:
            reading = self._backend.reading(device)
        except DeviceTrouble as trouble:
            if self._said.get(device.uuid) != str(trouble):
                log.warning("no reading of %s: %s", device.uuid, trouble)
            self._said[device.uuid] = str(trouble)
            return None
        self._said.pop(device.uuid, None)
        return reading

    # ---- report --------------------------------------------------------------------------------------------------

    def reported(self, run: LiveRun, max_rss_bytes: int | None, report: InsideReport | None) -> tuple[RunDevice, ...]:
        """Return the devices of an ended run, each with its peak, activity and timeline.

        *max_rss_bytes* is the kernel's maximum for the run's largest process. *report* has the figures of torch's
        allocators in the run's processes.
        """
        return tuple(
            replace(
                device,
                peak=self._peak(run, device, position, max_rss_bytes, report),
                activity=run.meter(device.uuid).activity(),
                timeline=run.meter(device.uuid).timeline(),
            )
            for position, device in enumerate(run.held.devices)
        )

    def _peak(
        self, run: LiveRun, device: RunDevice, position: int, max_rss_bytes: int | None, report: InsideReport | None
    ) -> Peak:
        meter = run.meter(device.uuid)
        if device.kind is None:  # the worker that claimed the run did not know the device, so no samples exist
            return Peak.unknown()
        source = device.kind.peak_source
        if device.kind is not DeviceKind.GPU:
            alone = len(run.held.devices) == 1  # with several devices the maximum cannot be divided among them
            return peak_of(meter, source, kernel_bytes=max_rss_bytes if alone else None)
        torch_bytes = report.reserved(device.uuid, position) if report is not None else None
        if torch_bytes is not None and torch_bytes > (device.total_bytes or torch_bytes):
            torch_bytes = None  # the job writes the report, so its figures may be wrong
        return peak_of(meter, source, accounted=self._accounted(device.uuid, meter.pids), torch_bytes=torch_bytes)

    def _accounted(self, uuid: str, pids: set[int]) -> dict[int, int]:
        device = self._devices.get(uuid)
        if device is None or not pids:
            return {}
        try:
            return dict(self._backend.accounted(device, pids))
        except DeviceTrouble as trouble:
            log.warning("no accounting of %s: %s", uuid, trouble)
            return {}
