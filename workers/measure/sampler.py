"""Looks at what each run holds, often while it is young, and keeps the figures."""

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

#: Most runs reach their peak while they load: look ten times a second for the first ten seconds.
YOUNG_S = 10.0
YOUNG_INTERVAL_S = 0.1
#: From the start of a run to the first look at it, in seconds. Right at its start there is its shim and nothing to see;
#: the look came in the way of the start itself, and of each job in a row of short ones.
FIRST_S = 0.02
#: With less than this share free, a job may be about to run out of memory.
NEARLY_FULL = 0.1


class Sampler:
    """Samples the runs of one worker, on every device that they have. Without a run it looks at nothing."""

    def __init__(
        self,
        backend: DeviceBackend,
        runs: LiveRuns,
        clock: Clock,
        watchdog: Watchdog,
        look_around: Callable[[], object] = lambda: None,
        newest: Callable[[Device, float], Reading | None] = lambda _device, _since_s: None,
    ) -> None:
        """Make a sampler that calls *look_around* while a device is nearly full: who is there may matter soon.

        *newest* returns a look that somebody else has just taken at a device, not before a given time on the host's
        monotonic clock, and has noted which processes of runs hold what; None if nobody has.
        """
        self._backend = backend
        self._watchdog = watchdog
        self._look_around = look_around
        self._newest = newest
        self._runs = runs
        self._clock = clock
        self._devices = {device.uuid: device for device in backend.devices()}
        self._health_due_s: dict[str, float] = {}
        #: What was said of each device that gives no reading: once, not ten times a second.
        self._said: dict[str, str] = {}

    def loop(self, stopping: threading.Event) -> None:
        """Sample until *stopping* is set; a new run is looked at without waiting for the next turn."""
        while not stopping.is_set():
            self.sample()
            if self._runs.wait(self._pause_s()):
                stopping.wait(FIRST_S)

    def _pause_s(self) -> float:
        now = self._clock.monotonic_s()
        runs = self._runs.all()
        # A job that has just taken too much is looked at again at once: every second counts for its neighbours.
        soon = any(now - run.since_s < YOUNG_S or run.in_excess for run in runs)
        return YOUNG_INTERVAL_S if soon else INTERVAL_S

    # ---- look ----------------------------------------------------------------------------------------------------

    def sample(self) -> None:
        """Take one sample of every run that was started, on every device that it holds."""
        runs = [run for run in self._runs.all() if run.shim is not None]
        held: dict[str, list[int | None]] = {run.held.token: [] for run in runs}
        for device in self._devices_of(runs):
            there = [run for run in runs if run.has(device.uuid)]
            # In a row of short jobs there is a claim's look for each; one that saw the newest run at work will do.
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
        """Take one sample of *runs* on *device*, and add what each holds there to *held*.

        Where it is *noted* already, whoever took the look has told the runs what their processes hold.
        """
        now_s = self._clock.monotonic_s()
        pids = pids_by_run(device, reading, {run.held.token: run.shim for run in runs})
        for run in runs:
            ours = pids.get(run.held.token, frozenset())
            if device.kind is not DeviceKind.GPU and not ours:
                continue  # not yet, or no more: a process holds some memory while it lives
            used = self._backend.used_by(reading, ours)
            if not (noted and ours):
                run.note(device.uuid, reading, used, ours, now_s)
            held[run.held.token].append(used)
            self._watchdog.look(run, device, used, reading)
        if now_s >= self._health_due_s.get(device.uuid, 0.0):
            # Once a second, whatever the pace of the samples: these calls are not cheap on every driver.
            self._health_due_s[device.uuid] = now_s + INTERVAL_S
            self._look_at_health(device, runs)
            if reading.free_bytes < NEARLY_FULL * device.total_bytes:
                self._look_around()

    def _look_at_health(self, device: Device, runs: Sequence[LiveRun]) -> None:
        try:
            health = self._backend.health(device)
        except DeviceTrouble:
            return  # the next reading says it
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

    # ---- tell ----------------------------------------------------------------------------------------------------

    def told(self, run: LiveRun, max_rss_bytes: int | None, report: InsideReport | None) -> tuple[RunDevice, ...]:
        """Return the devices of a run that has ended, each with its peak and what else was seen.

        *max_rss_bytes* is the kernel's own maximum of the run's largest process, *report* what the run's processes
        told about themselves.
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
        if device.kind is None:  # the worker that claimed it did not know the device, so nobody has looked
            return Peak.unknown()
        source = device.kind.peak_source
        if device.kind is not DeviceKind.GPU:
            alone = len(run.held.devices) == 1  # else nobody knows on which of them
            return peak_of(meter, source, kernel_bytes=max_rss_bytes if alone else None)
        torch_bytes = report.reserved(device.uuid, position) if report is not None else None
        if torch_bytes is not None and torch_bytes > (device.total_bytes or torch_bytes):
            torch_bytes = None  # the job can write into the report what it likes
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
