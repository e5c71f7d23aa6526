"""Compares the memory that a job requested with the memory that it used, and advises on the next request. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuqueue.learning.past_run import ENOUGH_SAMPLES
from gpuqueue.learning.rule import DIED_FACTOR, is_worth_less, rounded_up, with_margin
from gpuqueue.model.device import PeakSource
from gpuqueue.model.run import EndingKind
from gpuqueue.text.units import format_apart, format_bytes

if TYPE_CHECKING:
    from gpuqueue.model.run import Ending, Record, Run


def asked_and_used(record: Record) -> str | None:
    """Return a text on the memory that the last ended run requested and used on its fullest device.

    Return None if no run has ended, and for a whole job. The advice is that of ``--mem auto``;
    while the history does not answer, that of :mod:`gpuqueue.learning.rule` after this run alone.
    """
    run = record.last_ended
    if run is None or run.ending is None or not run.devices or record.job.spec.is_whole:
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
    if run.gap is not None:
        return f"asked {asked}{each}, used at least {used}: {run.gap.words}"
    return f"asked {asked}{each}, used {used} at most: {_advice(record, run, run.ending, peak)}"


def _not_enough(record: Record, run: Run, each: str) -> str:
    """Return what to do about a *run* that ended out of memory. The job may ask for more already."""
    spec, had = record.job.spec, max(device.lease_bytes for device in run.devices)
    from gpuqueue.model import mem_source  # noqa: PLC0415 - only after a lack of memory

    noted = " ".join(note.text for note in record.notes if note.attempt == run.attempt)
    if mem_source.TAKEN_BY_OTHERS in noted:
        return f"asked {format_bytes(had)}{each}, and others took its memory: the same size may do"
    if spec.placement.whole:
        return f"asked all of the device{each} and it was not enough: it needs a larger one"
    asked = f"asked {format_bytes(had)}{each} and it was not enough"
    if spec.mem_bytes > had:
        return f"{asked}: it asks for {format_bytes(spec.mem_bytes)} now"
    for refusal in (mem_source.NO_LARGER_DEVICE, mem_source.LIMITED):
        if refusal in noted:
            return f"{asked}, and {refusal}"
    return f"{asked}: {_next_try(record, run, had)}"


def larger_mem_bytes(record: Record) -> int | None:
    """Return the memory to ask for on each device when a job that ended out of memory runs again.

    None if its last run did not end so, if the same size may do, or if no larger size is known to help.
    """
    run, spec = record.last_ended, record.job.spec
    if run is None or run.ending is None or run.ending.kind is not EndingKind.OUT_OF_MEMORY or not run.devices:
        return None
    from gpuqueue.model import mem_source  # noqa: PLC0415 - only after a lack of memory

    had = max(device.lease_bytes for device in run.devices)
    no_help = (mem_source.TAKEN_BY_OTHERS, mem_source.NO_LARGER_DEVICE, mem_source.LIMITED)
    is_noted = any(words in note.text for note in record.notes if note.attempt == run.attempt for words in no_help)
    if is_noted or spec.placement.whole or spec.mem_bytes > had:
        return None
    enough_bytes, room_bytes = _enough_after(record, run, had)
    return enough_bytes if room_bytes is None or enough_bytes <= room_bytes else None


def _enough_after(record: Record, run: Run, had: int) -> tuple[int, int | None]:
    """Return what may be enough after *run*, which had *had* bytes on each device, and what its devices have."""
    enough_bytes = rounded_up(DIED_FACTOR * max(had, *(device.peak.bytes or 0 for device in run.devices)))
    if record.advice is not None and record.advice.mem_bytes > had:
        enough_bytes = record.advice.mem_bytes
    totals = (device.total_bytes for device in run.devices if device.total_bytes is not None)
    return enough_bytes, min(totals, default=None)


def _next_try(record: Record, run: Run, had: int) -> str:
    """Return what to ask for after *run*, which had *had* bytes on each device. No more than its devices have."""
    placement = record.job.spec.placement
    seen_bytes = max(had, *(device.peak.bytes or 0 for device in run.devices))
    enough_bytes, room_bytes = _enough_after(record, run, had)
    if room_bytes is None or enough_bytes <= room_bytes:
        return f"try {format_bytes(enough_bytes)}"
    larger = "name a larger device" if len(placement.devices) == record.job.spec.gpus else "it needs a larger device"
    if seen_bytes < room_bytes:
        return f"try what its device of {format_bytes(room_bytes)} gives at most, or {larger}"
    return f"{larger} than {format_bytes(room_bytes)}"


def _advice(record: Record, run: Run, ending: Ending, peak_bytes: int) -> str:
    spec, advice = record.job.spec, record.advice
    enough = rounded_up(with_margin([peak_bytes])) if advice is None else advice.mem_bytes
    why = "" if advice is None else f" ({advice.reason})"
    if peak_bytes > spec.mem_bytes and not spec.placement.exclusive:
        return f"more than it asked for, {format_bytes(enough)} would have been enough{why}"
    is_whole = spec.probe is None if ending.kind is EndingKind.TIMED_OUT else run.is_complete
    if not is_whole:
        return "a complete run may need more"
    if advice is None and not _is_seen_well(run):
        return "sampled too rarely for advice"
    if spec.placement.whole:
        return f"{format_bytes(enough)} would do, if other jobs may share the device{why}"
    return f"{format_bytes(enough)} would do{why}" if is_worth_less(spec.mem_bytes, enough) else "as it should be"


def _is_seen_well(run: Run) -> bool:
    """Return whether the peaks are reliable: from the driver's accounting, or from enough samples."""
    peaks = [device.peak for device in run.devices]
    return all(peak.source is PeakSource.NVML_ACCOUNTING or peak.samples >= ENOUGH_SAMPLES for peak in peaks)
