"""Which of several figures is a run's peak on a device, and what it rests on. Pure.

Each source misses something else, so the largest of those that can only be too low is taken, and named:

- samples of what the driver says that the run's processes hold together miss spikes between two looks;
- the driver's own maximum of a process (its accounting, where an administrator has switched that on) misses nothing
  of that one process; for several it is no more than a lower bound, because their maxima need not have met;
- what torch's allocator reserved misses CUDA's own memory and every other library's;
- how much fuller the device became is worth something only where nobody else was on it.
"""

from __future__ import annotations

from collections.abc import Mapping

from gpuqueue.model.device import Peak, PeakSource
from workers.measure.meter import Meter

#: A device on which no process of the run was seen held nothing of it, if there was time to look.
ENOUGH_SAMPLES = 10


def peak_of(
    meter: Meter,
    sampled_from: PeakSource,
    *,
    kernel_bytes: int | None = None,
    accounted: Mapping[int, int] | None = None,
    torch_bytes: int | None = None,
) -> Peak:
    """Return the peak of the run whose samples *meter* has taken.

    Args:
        meter: The run's figures on the device.
        sampled_from: Where the samples come from.
        kernel_bytes: A maximum that the kernel kept, where memory is the host's.
        accounted: The driver's own maximum of each process of the run, where it keeps one.
        torch_bytes: What torch's allocators reserved at most, as they told themselves.

    """
    figures: list[tuple[int, PeakSource]] = []
    sampled = [figure for figure in (_sampled(meter), kernel_bytes) if figure is not None]
    if sampled:
        figures.append((max(sampled), sampled_from))
    if accounted:
        figures.append((max(accounted.values()), PeakSource.NVML_ACCOUNTING))
    if torch_bytes:
        figures.append((torch_bytes, PeakSource.TORCH))
    if meter.delta_bytes is not None and meter.na_samples and not meter.shared:
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
    """Return the largest sample.

    Looks that saw nothing say nothing where they were few, before a short run took its memory, or where the driver
    would not say what was there later.
    """
    nothing = meter.peak_bytes == 0 and (meter.samples < ENOUGH_SAMPLES or meter.na_samples > 0)
    return None if nothing else meter.peak_bytes


def _exact(source: PeakSource, meter: Meter) -> bool:
    """Return whether a figure from *source* is exact, so that of two equal ones it is the one to name."""
    return source is PeakSource.NVML_ACCOUNTING and len(meter.pids) == 1
