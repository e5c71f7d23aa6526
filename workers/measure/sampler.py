"""Samples the devices of the live runs, more often while a run is young.

Ends runs that use too much memory, and runs of probes whose answer is known.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from enum import Enum
from typing import TYPE_CHECKING

from gpuqueue.clock import Clock
from gpuqueue.lazy.imports import later
from gpuqueue.model.device import Device, DeviceKind
from gpuqueue.model.run import EndingKind
from gpuqueue.text.units import MIB, format_bytes
from workers.devices.backend import DeviceTrouble
from workers.measure.active_runs import LiveRun, LiveRuns
from workers.measure.meter import INTERVAL_S
from workers.measure.monitor import MOMENT_S, DeviceMonitor
from workers.measure.sample import Sample

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
#: How far a job may exceed its lease before it is ended: a share of the lease, and at least so many bytes.
#: CUDA's own memory is not part of a framework's cap, and its size differs from card to card.
TOLERANCE = 0.05
TOLERANCE_BYTES = 256 * MIB
#: The score of a meter at which a job is ended. A sample with `Excess.END` adds 2, any other sample subtracts 1.
ENOUGH = 4


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


class Excess(Enum):
    """How a job's memory on a device relates to its lease."""

    NONE = "none"
    #: Above the lease, but within the tolerance and without harm to other jobs.
    WARN = "warn"
    #: Above the tolerance, or in memory that is allocated to other jobs.
    END = "end"


def limit_bytes(lease_bytes: int) -> int:
    """Return the bytes that a job with a lease of *lease_bytes* may use before it is ended."""
    return lease_bytes + max(TOLERANCE_BYTES, round(TOLERANCE * lease_bytes))


def excess(used_bytes: int, lease_bytes: int, *, free_bytes: int, allocated_bytes: int) -> Excess:
    """Return the excess of a job that uses *used_bytes*; *allocated_bytes* are allocated to jobs and not used yet."""
    if used_bytes <= lease_bytes:
        return Excess.NONE
    if used_bytes > limit_bytes(lease_bytes) or free_bytes < allocated_bytes:
        return Excess.END
    return Excess.WARN


def enforce_limit(run: LiveRun, sample: Sample) -> None:
    """Check one sample of a run, and warn or end the run if it uses too much.

    This is the last of the layers in docs/explanation/memory-cap.md, and the only one that measures all frameworks and
    all processes of a job together. It reacts within a sample or two. A neighbour that allocates memory before that may
    still find the card full.

    On a simulated device the resident memory counts, interpreter and libraries included. A request for a GPU
    does not cover these, so a run within the tolerance is not warned there. The CPU's memory is left to the kernel.
    """
    device, share = sample.device, sample.measured(run.held.token)
    if share is None or share.used_bytes is None or device.kind is DeviceKind.CPU or not run.held.capped:
        return
    used_bytes, lease_bytes = share.used_bytes, share.lease_bytes
    reading, not_used_bytes = sample.reading, sample.committed_bytes - sample.reading.used_bytes
    found = excess(used_bytes, lease_bytes, free_bytes=reading.free_bytes, allocated_bytes=not_used_bytes)
    if device.kind is DeviceKind.SIMULATED and used_bytes <= limit_bytes(lease_bytes):
        found = Excess.NONE
    meter = run.meter(device.uuid)
    # One high sample alone may be a process that is exiting. The score also catches a job that goes up and down.
    meter.excess = meter.excess + 2 if found is Excess.END else max(0, meter.excess - 1)
    asked = format_bytes(lease_bytes)
    holds = f"it holds {format_bytes(used_bytes)} on {device.uuid}"
    if found is not Excess.NONE and not meter.warned:
        meter.warned = True
        words = (
            f"{holds}, more than the {asked} it asked for; above {format_bytes(limit_bytes(lease_bytes))} it is ended"
        )
        run.notes.append(words)
        _log(run, words)
    if meter.excess >= ENOUGH and not meter.ended:
        words = f"ended: {holds} and asked for {asked}; give it more with --mem"
        meter.ended = run.ask_end(EndingKind.OUT_OF_MEMORY, words)
        if meter.ended:
            _log(run, words)


def _log(run: LiveRun, words: str) -> None:
    """Write *words* to the job's log and to the worker's log."""
    log.warning("%s: %s", run, words)
    run.write_to_log(words)
