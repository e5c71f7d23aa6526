"""The result of ``gpuqueue probe`` as text. Pure."""

from __future__ import annotations

from gpuqueue.lazy.frozen import dataclass
from gpuqueue.learning.probed import Probed, as_time
from gpuqueue.model.job import JobState
from gpuqueue.model.progress import Progress
from gpuqueue.model.run import PROBE_ENDED, EndingKind, Record, Run
from gpuqueue.text.sanitize import plain
from gpuqueue.text.units import format_bytes, format_duration
from gpuqueue.words.values import devices_of


@dataclass(frozen=True, kw_only=True, slots=True)
class Shown:
    """An ended probe, what it has shown, and the last progress in its log."""

    record: Record
    found: Probed
    progress: Progress | None


def lines(shown: Shown) -> list[str]:
    """Return the result as lines: what the run was and showed, the options to ask with, and notes on these."""
    record, found = shown.record, shown.found
    run = record.last_run
    bound = "" if found.is_whole else "at least "
    return [
        f"job {record.job.label}  {plain(record.job.spec.name)} on {devices_of(run)}, {_end(record)}",
        f"peak      {bound}{format_bytes(found.peak_bytes)}{_source(run)}",
        *([] if shown.progress is None else [f"progress  {plain(shown.progress.words)}"]),
        "",
        f"ask for  {options(found)}",
        *_notes(shown),
    ]


def options(found: Probed) -> str:
    """Return the options to ask with: ``--mem 7G --time 1h20m``."""
    words = [f"--mem {format_bytes(found.mem_bytes)}"]
    return " ".join([*words, *([] if found.time_s is None else [f"--time {as_time(found.time_s)}"])])


def _notes(shown: Shown) -> list[str]:
    advice, notes = shown.record.advice, list[str]()
    if advice is not None and advice.runs > 1:
        notes.append(f"The memory is what --mem auto asks for: {plain(advice.reason)}.")
    if shown.found.time_s is None:
        notes.append("No time is proposed: the run was ended early, and its output does not show how much was left.")
    elif not shown.found.is_whole:
        notes.append("The time is for the whole by this progress, and half as much again.")
    return notes


def _end(record: Record) -> str:
    """Return how and when the run ended."""
    run = record.last_run
    took = format_duration(run.duration_s if run is not None else None)
    if run is not None and run.ending is not None and run.ending.kind is EndingKind.EXITED:
        return f"ended by itself after {took}"
    return f"ended by the probe after {took}: {why_ended(record)}"


def why_ended(record: Record) -> str:
    """Return why a probe ended its run."""
    texts = [note.text.partition(": ")[2] for note in record.notes if note.text.startswith(PROBE_ENDED)]
    return plain(texts[-1]) if texts else "its time was over"


def _source(run: Run | None) -> str:
    peaks = [] if run is None else [device.peak for device in run.devices]
    fullest = max(peaks, key=lambda peak: peak.bytes or 0, default=None)
    return "" if fullest is None else f" ({fullest.source}, {fullest.samples} samples)"


def was_cancelled(record: Record) -> bool:
    """Return whether somebody cancelled the job."""
    return record.job.state is JobState.CANCELLED


def has_failed(record: Record) -> bool:
    """Return whether the script failed by itself."""
    ending = record.last_run.ending if record.last_run is not None else None
    return ending is not None and ending.kind in {
        EndingKind.EXITED,
        EndingKind.SIGNALLED,
        EndingKind.OUT_OF_MEMORY,
    } and ending.shell_code != 0  # fmt: skip


def why_not(record: Record) -> str:
    """Return why a probe has no answer, and what to do."""
    job, run = record.job.label, record.last_run
    ending = None if run is None else run.ending
    if run is None or ending is None:
        return f"job {job} ended without a run that the history has yet: gpuqueue show {job}"
    if ending.kind is EndingKind.OUT_OF_MEMORY:
        needs = f"job {job} needs more than {_whole(run)}"
        return f"{needs}: name a larger one (--device-type), or give it more devices or a smaller batch"
    if has_failed(record):
        return f"job {job} failed ({ending}): gpuqueue logs {job}"
    if ending.kind in {EndingKind.EXITED, EndingKind.TIMED_OUT}:
        if run.notes:
            return f"job {job}: {plain(run.notes[0].words)}"
        took = format_duration(run.duration_s)
        return (
            f"no memory of job {job} was seen on its device in {took}: it used none, or its driver does not report it"
        )
    return f"job {job} was not run to an end ({ending}): try again"


def _whole(run: Run) -> str:
    sizes = [device.total_bytes for device in run.devices if device.total_bytes is not None]
    return f"a whole device of {format_bytes(min(sizes))}" if sizes else "a whole device"
