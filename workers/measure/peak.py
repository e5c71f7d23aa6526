"""Chooses the peak memory of a run on a device from several measurements, and names its source.

Each measurement can be too low but not too high, and each misses something else, so the largest is the peak:

- samples of the memory that the driver reports for all processes of the run miss spikes between two samples;
- the driver's accounting (where an administrator has enabled it) has the exact maximum of one process; for several
  processes the largest maximum is a lower bound, because the maxima need not occur at the same time;
- the memory reserved by torch's allocator, and the context where it was measured, lack kernels and other libraries;
- the increase of the device's used memory counts only if no other process was on the device.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from gpuqueue.model.device import DeviceKind, Peak, PeakSource
from gpuqueue.model.run import NoteKind, RunDevice, RunNote
from workers.measure.active_runs import LiveRun
from workers.measure.meter import Meter
from workers.measure.monitor import DeviceMonitor
from workers.run.verdict import InsideReport

#: With at least this many samples, a largest sample of 0 bytes means that the run used no memory on the device.
ENOUGH_SAMPLES = 10


def measured_devices(
    run: LiveRun, max_rss_bytes: int | None, report: InsideReport | None, monitor: DeviceMonitor
) -> tuple[RunDevice, ...]:
    """Return the devices of an ended run, each with its peak, activity and timeline.

    *max_rss_bytes* is the kernel's maximum for the run's largest process. *report* has the figures of torch's
    allocators in the run's processes. What the run used on a device that it was not given counts as used on one that it
    was: the job needs it somewhere.
    """
    devices = []
    for position, device in enumerate(run.held.devices):
        meter = run.meter(device.uuid)
        if device.kind is None:  # the worker that claimed the run did not know the device, so no samples exist
            peak = Peak.unknown()
        elif device.kind.is_engine:
            peak = Peak.unknown()  # its accounting may know more, see workers.whole.outcome
        elif device.kind is not DeviceKind.GPU:
            alone = len(run.held.devices) == 1  # with several devices the maximum cannot be divided among them
            peak = peak_of(meter, device.kind.peak_source, kernel_bytes=max_rss_bytes if alone else None)
        else:
            torch_bytes = report.reserved(device.uuid, position) if report is not None else None
            if torch_bytes is not None and torch_bytes > (device.total_bytes or torch_bytes):
                torch_bytes = None  # the job writes the report, so its figures may be wrong
            elif torch_bytes:
                torch_bytes += monitor.context_bytes(device.name)
            accounted = monitor.accounted(device.uuid, meter.pids)
            peak = peak_of(meter, device.kind.peak_source, accounted=accounted, torch_bytes=torch_bytes)
        devices.append(replace(device, peak=peak, activity=meter.activity(), timeline=meter.timeline()))
    elsewhere = [meter for uuid, meter in run.meters.items() if not run.has(uuid) and meter.peak_bytes]
    for meter in sorted(elsewhere, key=lambda each: each.peak_bytes or 0, reverse=True)[: len(devices)]:
        least = min(range(len(devices)), key=lambda position: devices[position].peak.bytes or 0)
        device = devices[least]
        if device.kind is not None and (device.peak.bytes or 0) < (meter.peak_bytes or 0):
            peak = peak_of(meter, device.kind.peak_source)
            devices[least] = replace(device, peak=peak, timeline=meter.timeline())
    return tuple(devices)


def gap_note(
    run: LiveRun, devices: Sequence[RunDevice], report: InsideReport | None, duration_s: float | None
) -> RunNote | None:
    """Return a note if the peak of an ended run on one of its *devices* may be higher than what was measured, or None.

    The peak is whole in spite of a time without samples if it is the driver's own maximum of the only process, or if
    torch in the only process has reported the maximum of its allocator.
    """
    gaps_s = []
    for position, device in enumerate(devices):
        meter = run.meters.get(device.uuid)
        if meter is None or device.peak.bytes is None or device.kind is DeviceKind.CPU:
            continue
        if _exact(device.peak.source, meter):
            continue
        if len(meter.pids) == 1 and report is not None and report.reserved(device.uuid, position) is not None:
            continue
        gaps_s.append(meter.gap_s if duration_s is None else meter.gap_until_s(duration_s))
    gap_s = max(gaps_s, default=0.0)
    return RunNote(kind=NoteKind.PEAK_IN_PART.value, count=math.ceil(gap_s)) if gap_s else None


def peak_of(
    meter: Meter,
    sampled_from: PeakSource,
    *,
    kernel_bytes: int | None = None,
    accounted: Mapping[int, int] | None = None,
    torch_bytes: int | None = None,
) -> Peak:
    """Return the peak of a run on one device.

    Args:
        meter: The run's figures on the device.
        sampled_from: The source of the samples.
        kernel_bytes: The kernel's maximum, for host memory.
        accounted: The driver's maximum in bytes by pid, from its accounting.
        torch_bytes: The most that torch's allocators reserved, as the run's processes reported, and a CUDA context.

    """
    figures: list[tuple[int, PeakSource]] = []
    sampled = [figure for figure in (_sampled(meter), kernel_bytes) if figure is not None]
    if sampled:
        figures.append((max(sampled), sampled_from))
    if accounted:
        figures.append((max(accounted.values()), PeakSource.NVML_ACCOUNTING))
    if torch_bytes:
        figures.append((torch_bytes, PeakSource.TORCH))
    if meter.delta_bytes is not None and (meter.na_samples or meter.unlisted) and not meter.shared:
        figures.append((max(0, meter.delta_bytes), PeakSource.DEVICE_DELTA))
    if not figures:
        return Peak.unknown(na_samples=meter.na_samples)
    bytes_, source = max(figures, key=lambda figure: (figure[0], _exact(figure[1], meter)))
    return Peak(
        bytes=bytes_,
        source=source,
        samples=meter.samples,
        na_samples=meter.na_samples,
        interval_s=meter.interval_s,
        shared=meter.shared,
    )


def _sampled(meter: Meter) -> int | None:
    """Return the largest sample, or None if the samples are not conclusive.

    Samples of 0 bytes are not conclusive if there are few, because a short run may have allocated its memory later, if
    the driver reported no figure for other samples, or if it lists no process and memory appeared there.
    """
    nothing = meter.peak_bytes == 0 and (meter.samples < ENOUGH_SAMPLES or meter.na_samples > 0 or meter.unlisted)
    return None if nothing else meter.peak_bytes


def _exact(source: PeakSource, meter: Meter) -> bool:
    """Return whether a figure from *source* is exact. Among equal figures, the exact one is named as the source."""
    return source is PeakSource.NVML_ACCOUNTING and len(meter.pids) == 1
