"""Compares the memory that a job requested with the memory that it used, with the advice of an estimate. Pure."""

from __future__ import annotations

from gpuqueue.estimate.figures import as_option, rounded_up
from gpuqueue.estimate.past import ENOUGH_SAMPLES, enough_after, more_than
from gpuqueue.model.device import PeakSource
from gpuqueue.model.job_spec import JobSpec
from gpuqueue.model.run import Ending, EndingKind, Record, Run
from gpuqueue.text.units import format_apart, format_bytes


def asked_and_used(record: Record) -> str | None:
    """Return a text on the memory that the last ended run requested and used on its fullest device.

    Return None if no run has ended. The advice uses the formulas of :mod:`gpuqueue.estimate.past` for one run: 5 % and
    256 MiB more than the peak of a run that did its work, or twice what was not enough.
    """
    run = next((run for run in reversed(record.runs) if run.ending is not None), None)
    if run is None or run.ending is None or not run.devices:
        return None
    spec = record.job.spec
    each = " on each device" if len(run.devices) > 1 else ""
    asked = "all of the device" if spec.placement.whole else format_bytes(spec.mem_bytes)
    if run.ending.kind is EndingKind.OUT_OF_MEMORY:
        return _not_enough(record, run, each)
    peak = max((device.peak.bytes for device in run.devices if device.peak.bytes is not None), default=None)
    if peak is None or run.peak_bytes is None:
        return f"asked {asked}{each}, use unknown: it could not be measured"
    used = format_bytes(peak)
    if not spec.placement.whole:
        asked, used = format_apart(spec.mem_bytes, peak)
    return f"asked {asked}{each}, used {used} at most: {_advice(spec, run, run.ending, peak)}"


def _not_enough(record: Record, run: Run, each: str) -> str:
    """Return what to do about a *run* that ended out of memory. The job may ask for more already."""
    spec, had = record.job.spec, max(device.lease_bytes for device in run.devices)
    if spec.placement.whole:
        return f"asked all of the device{each} and it was not enough: it needs a larger one"
    from gpuqueue.model.mem_retry import NO_LARGER_DEVICE  # noqa: PLC0415 - only after a lack of memory

    asked = f"asked {format_bytes(had)}{each} and it was not enough"
    if spec.mem_bytes > had:
        return f"{asked}: it asks for {format_bytes(spec.mem_bytes)} now"
    if any(note.attempt == run.attempt and NO_LARGER_DEVICE in note.text for note in record.notes):
        return f"{asked}, and {NO_LARGER_DEVICE}"
    wanted_bytes = rounded_up(more_than(max(had, *(device.peak.bytes or 0 for device in run.devices))))
    sizes = [device.total_bytes for device in run.devices if device.total_bytes is not None]
    if len(spec.placement.devices) == spec.gpus and sizes and wanted_bytes > min(sizes):
        return f"{asked}: name a larger device than {format_bytes(min(sizes))}"
    return f"{asked}: try --mem {as_option(wanted_bytes)}"


def _advice(spec: JobSpec, run: Run, ending: Ending, peak_bytes: int) -> str:
    enough_bytes = rounded_up(enough_after(peak_bytes))
    if peak_bytes > spec.mem_bytes and not spec.placement.whole:
        return f"more than it asked for, --mem {as_option(enough_bytes)} would have been enough"
    is_whole = spec.probe is None if ending.kind is EndingKind.TIMED_OUT else ending.shell_code == 0
    if not is_whole:
        return "a complete run may need more"
    if not _is_seen_well(run):
        return "sampled too rarely for advice"
    if spec.placement.whole:
        return f"--mem {as_option(enough_bytes)} would do, if other jobs may share the device"
    return f"--mem {as_option(enough_bytes)} would do" if enough_bytes < spec.mem_bytes else "as it should be"


def _is_seen_well(run: Run) -> bool:
    """Return whether the peaks are reliable: from the driver's accounting, or from enough samples."""
    peaks = [device.peak for device in run.devices]
    return all(peak.source is PeakSource.NVML_ACCOUNTING or peak.samples >= ENOUGH_SAMPLES for peak in peaks)
