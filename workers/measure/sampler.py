"""Samples the devices of the live runs, more often while a run is young.

Ends runs that use too much memory, and runs of probes whose answer is known.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING

from gpuqueue.clock import Clock
from gpuqueue.lazy.imports import later
from gpuqueue.model.device import Device
from workers.devices.backend import DeviceTrouble
from workers.measure.active_runs import LiveRun, LiveRuns
from workers.measure.meter import INTERVAL_S
from workers.measure.monitor import MOMENT_S, DeviceMonitor
from workers.measure.sample import Sample
from workers.measure.watchdog import enforce_limit

if TYPE_CHECKING:
    from workers.measure import probe_watch
else:  # few jobs are probes
    probe_watch = later("workers.measure.probe_watch")

log = logging.getLogger(__name__)

#: Most runs reach their peak while they load, so the sampler polls every 0.1 s for the first 10 s.
YOUNG_S = 10.0
YOUNG_INTERVAL_S = 0.1
#: Time from the start of a run to its first sample, in seconds. At the start only the shim exists, and an earlier
#: sample would slow down the start itself, which matters in a series of short jobs.
FIRST_S = 0.02


class Sampler:
    """Samples the runs of one worker on all their devices. Without a run it samples no device."""

    def __init__(self, monitor: DeviceMonitor, runs: LiveRuns, clock: Clock) -> None:
        self._monitor = monitor
        self._runs = runs
        self._clock = clock
        #: The trouble last logged for each device that gives no sample, so that each trouble is logged once.
        self._logged: dict[str, str] = {}
        self._probes: probe_watch.Probes | None = None

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

    def sample(self) -> None:
        """Take one sample of every started run, on each of its devices."""
        runs = [run for run in self._runs.all() if run.shim is not None]
        samples: list[Sample] = []
        for device in self._monitor.devices.values():
            there = [run for run in runs if run.has(device.uuid)]
            sample = self._sample(device, there) if there else None
            if sample is not None:
                samples.append(sample)
                for run in there:
                    enforce_limit(run, sample)
        for run in runs:
            shares = [sample.measured(run.held.token) for sample in samples]
            run.note_at_once(share.used_bytes for share in shares if share is not None)
        probes = [run for run in runs if run.held.probe is not None]
        if probes:
            self._probes = self._probes or probe_watch.Probes()
            self._probes.check(probes, self._clock.monotonic_s())

    def _sample(self, device: Device, runs: Sequence[LiveRun]) -> Sample | None:
        # In a series of short jobs each claim samples the device. Reuse that sample if the newest run had started.
        began_s = max(run.since_s for run in runs) + FIRST_S / 2
        try:
            sample = self._monitor.sample(device, max(began_s, self._clock.monotonic_s() - MOMENT_S))
            # At most once per INTERVAL_S, at any sampling rate: these calls are slow with some drivers.
            self._monitor.health(device, INTERVAL_S)
        except (DeviceTrouble, OSError) as trouble:
            if self._logged.get(device.uuid) != str(trouble):
                log.warning("no sample of %s: %s", device.uuid, trouble)
            self._logged[device.uuid] = str(trouble)
            return None
        self._logged.pop(device.uuid, None)
        return sample
