"""The messages about the end of a job, a marked run and a held array. Pure, except for the last lines of the log."""

from __future__ import annotations

import itertools
from pathlib import Path

from gpuqueue.lazy.frozen import dataclass
from gpuqueue.model.device import DeviceKind
from gpuqueue.model.job import JobState, WaitReason
from gpuqueue.model.mem_source import OUT_OF_MEMORY
from gpuqueue.model.run import NO_USE, Record, Run
from gpuqueue.model.run_mark import MarkKind, predicate_of
from gpuqueue.system.logs import is_log_of, last_bytes
from gpuqueue.text.sanitize import ESCAPES, plain, short, terminal_lines
from gpuqueue.text.units import format_bytes

#: Most lines of the log in a message, the most characters of them, and the bytes of its end that are read for them.
LOG_LINES, LOG_TEXT, DRAWN_BYTES = 10, 2000, 64 * 1024
#: Longest command in a message, in columns.
MOST_COMMAND = 500

_MINUTE_S, _HOUR_S, _DAY_S = 60, 3600, 86400


@dataclass(frozen=True, kw_only=True, slots=True)
class Message:
    """A message to send. ``good`` is whether the job succeeded."""

    title: str
    body: str
    good: bool


def message_of(record: Record, *, host: str) -> Message:
    """Return the message about an ended job. It quotes the log only if the last run was on *host*, this host."""
    job, title = record.job, title_of(record)
    body = [_asked(record), f"command  {short(job.spec.command, MOST_COMMAND)}"]
    body += _memory_lines(record)
    body += [f"why      {plain(job.because)}"] if job.because else []
    run = record.last_run
    body += [f"note     {plain(note.words)}" for note in run.notes] if run is not None else []
    ending = run.ending if run is not None else None
    if ending is not None and ending.detail and plain(ending.detail) not in title:
        body.append(f"ending   {plain(ending.detail)}")
    lines = _log_lines(record, host)
    if lines:
        body += ["", f"the last lines of its log ({plain(str(lines[0]))}):", *lines[1]]
    body += ["", f"gpuqueue show {job.label}"]
    return Message(title=title, body="\n".join(body), good=job.state is JobState.SUCCEEDED)


def mark_message_of(record: Record, kind: str) -> Message:
    """Return the message about a job whose run has a mark of this *kind*."""
    job, run = record.job, record.last_run
    where = f" on {_place(run)}" if run is not None else ""
    body = [_asked(record), f"command  {short(job.spec.command, MOST_COMMAND)}"]
    mark = next((each for each in run.marks if each.kind == kind), None) if run is not None else None
    texts = [each.text for each in record.notes if kind == MarkKind.IDLE.value and each.text.startswith(NO_USE)]
    why = texts[-1] if texts else mark.words if mark is not None else ""
    body += [f"why      {plain(why)}"] if why else []
    body += ["", f"gpuqueue show {job.label}", f"gpuqueue cancel {job.label}"]
    title = f"job {job.label} ({short(job.spec.name, 60)}) {predicate_of(kind)}{where}"
    return Message(title=title, body="\n".join(body), good=False)


def held_message_of(record: Record) -> Message:
    """Return the message about an array whose rest is held."""
    job = record.job
    left = 0 if job.tally is None else len(job.tally.held)
    why = f": {plain(job.because)}" if job.because else ""
    body = [
        f"command  {short(job.spec.command, MOST_COMMAND)}",
        f"held     {left} of {len(job.spec.array or ())} members",
        "",
        f"gpuqueue show {job.label}",
        f"gpuqueue release {job.label}",
        f"gpuqueue cancel {job.label}",
    ]
    return Message(
        title=f"array {job.label} ({short(job.spec.name, 60)}) is held{why}", body="\n".join(body), good=False
    )


def title_of(record: Record) -> str:
    """Return the title: ``job 17 (train) failed: exit 1 after 3 h 12 min on node1:0``."""
    job, run = record.job, record.last_run
    noun = "job" if job.spec.array is None else "array"
    words = [f"{noun} {job.label} ({short(job.spec.name, 60)})", _ended(record)]
    if run is not None:
        words += [f"after {took(run.duration_s)}" if run.duration_s is not None else "", f"on {_place(run)}"]
    return " ".join(word for word in words if word)


def _ended(record: Record) -> str:
    job, run = record.job, record.last_run
    if job.spec.array is not None:
        ended = job.tally.ended if job.tally is not None else {}
        counts = ", ".join(f"{count} {state}" for state, count in ended.items() if count)
        return f"{job.state}: {counts}" if counts else str(job.state)
    if run is None:
        why = ": its dependency can no longer be met" if job.reason is WaitReason.DEPENDENCY else ""
        return f"{job.state} before it ever ran{why}"
    if job.state is JobState.FAILED and run.ending is not None:
        return f"failed: {plain(str(run.ending))}"
    return str(job.state)


def _place(run: Run) -> str:
    if any(device.kind is DeviceKind.CPU for device in run.devices):
        return plain(f"the CPU of {run.host}")
    if any(device.kind is not None and device.kind.is_engine for device in run.devices):
        return plain(f"an engine, by {run.host}")
    indexes = [device.index for device in run.devices if device.index is not None]
    if not indexes or len(indexes) < len(run.devices):
        return plain(f"a device of {run.host}")
    return plain(f"{run.host}:{','.join(map(str, indexes))}")


def _asked(record: Record) -> str:
    spec, run = record.job.spec, record.last_run
    times = f"{spec.gpus} x " if spec.gpus > 1 else ""
    asked = "all of a device" if spec.placement.whole else f"{times}{format_bytes(spec.mem_bytes)}"
    asked = f"{spec.gpus} GPUs of an engine" if spec.is_whole else asked
    peak = format_bytes(run.peak_bytes) if run is not None and run.peak_bytes is not None else "unknown"
    return f"memory   peak {peak}, asked {asked}"


def _memory_lines(record: Record) -> list[str]:
    """Return what the queue decided after each run that lacked device memory, one line for each."""
    return [f"memory   {short(each.text, 300)}" for each in record.notes if each.text.startswith(OUT_OF_MEMORY)]


def took(duration_s: float) -> str:
    """Return *duration_s* in at most two units: ``12 s``, ``3 min 5 s``, ``3 h 12 min``, ``2 d 4 h``."""
    whole = round(duration_s)
    units = (("d", _DAY_S), ("h", _HOUR_S), ("min", _MINUTE_S), ("s", 1))
    for (unit, size), (smaller, smaller_s) in itertools.pairwise(units):
        if whole >= size:
            count, rest = whole // size, whole % size // smaller_s
            return f"{count} {unit} {rest} {smaller}" if rest else f"{count} {unit}"
    return f"{whole} s"


def _log_lines(record: Record, host: str) -> tuple[Path, list[str]] | None:
    """Return the path and the last lines of the last run's log, or None if it is elsewhere, empty or unreadable.

    The lines are what a terminal would show: of a progress bar that is redrawn, only its last state.
    """
    run = record.last_run
    if run is None or run.log_path is None or run.host != host:
        return None
    if not is_log_of(Path(run.log_path), run.job_id, run.token):
        return None
    path = Path(run.log_path)
    lines = terminal_lines(last_bytes(path, DRAWN_BYTES).decode("utf-8", "replace").rstrip())[-LOG_LINES:]
    while len("\n".join(lines)) > LOG_TEXT:
        lines = lines[1:] or [lines[0][-LOG_TEXT:]]
    return (path, [plain(ESCAPES.sub("", line).expandtabs(4)) for line in lines]) if any(lines) else None
