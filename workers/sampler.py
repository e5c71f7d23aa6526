"""Looks at what each run holds, often while it is young, and keeps the peak."""

from __future__ import annotations

import logging
import threading
from collections.abc import Collection

from gpuqueue.clock import Clock
from gpuqueue.device import Device, DeviceKind, Peak, Reading
from workers import tree
from workers.devices.backend import DeviceBackend, DeviceTrouble
from workers.live import LiveRun, LiveRuns
from workers.meter import INTERVAL_S, Meter
from workers.watchdog import Watchdog

log = logging.getLogger(__name__)

#: Most runs reach their peak while they load: look ten times a second for the first ten seconds.
YOUNG_S = 10.0
YOUNG_INTERVAL_S = 0.1


class Sampler:
    """Samples the runs of one worker."""

    def __init__(self, backend: DeviceBackend, runs: LiveRuns, clock: Clock, watchdog: Watchdog) -> None:
        self._backend = backend
        self._watchdog = watchdog
        self._runs = runs
        self._clock = clock
        self._devices = {device.uuid: device for device in backend.devices()}

    def loop(self, stopping: threading.Event) -> None:
        """Sample until *stopping* is set; a new run is looked at without waiting for the next turn."""
        while not stopping.is_set():
            self.sample()
            self._runs.wait(self._pause_s())

    def _pause_s(self) -> float:
        now = self._clock.monotonic_s()
        young = any(now - run.since_s < YOUNG_S for run in self._runs.all())
        return YOUNG_INTERVAL_S if young else INTERVAL_S

    def sample(self) -> None:
        """Take one sample of every run on every device that it holds."""
        readings: dict[str, Reading | None] = {}
        for run in self._runs.all():
            shim = run.directory.shim()
            if shim is None:
                continue  # not started yet
            pids = tree.below(shim.pid)
            if not pids:
                continue  # not yet, or no more: nothing to see is not nothing held
            for meter, device in self._meters(run):
                if device.uuid not in readings:
                    readings[device.uuid] = self._read(device)
                reading = readings[device.uuid]
                if reading is not None:
                    used = self._note(meter, reading, pids)
                    self._watchdog.look(run, device, used, reading)

    def _meters(self, run: LiveRun) -> list[tuple[Meter, Device]]:
        return [
            (run.meters.setdefault(each.uuid, Meter()), self._devices[each.uuid])
            for each in run.held.devices
            if each.uuid in self._devices
        ]

    def _read(self, device: Device) -> Reading | None:
        try:
            return self._backend.reading(device)
        except DeviceTrouble as trouble:
            log.warning("no reading of %s: %s", device.uuid, trouble)
            return None

    def _note(self, meter: Meter, reading: Reading, pids: Collection[int]) -> int | None:
        used = self._backend.used_by(reading, pids)
        others = set(reading.processes) - set(pids)
        meter.note(used, shared=bool(others))
        return used

    def peak(self, run: LiveRun, uuid: str, max_rss_bytes: int | None) -> Peak:
        """Return the peak of *run* on the device *uuid*, with the kernel's own maximum where memory is the host's."""
        device = self._devices.get(uuid)
        on_host = device is not None and device.kind is not DeviceKind.GPU and len(run.held.devices) == 1
        at_least = max_rss_bytes if on_host else None
        return run.meters.get(uuid, Meter()).peak(self._backend.peak_source, at_least_bytes=at_least)
