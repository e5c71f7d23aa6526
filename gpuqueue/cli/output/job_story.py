"""The text of ``gpuqueue show``: a job, its runs and their measurements."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING

import click

from gpuqueue.cli.output.render import LOG_BYTES, TINY, hanging, log_lines, state
from gpuqueue.cli.output.silent_hosts import silent_lines
from gpuqueue.client import Client
from gpuqueue.errors import GpuQueueError
from gpuqueue.lazy.frozen import dataclass
from gpuqueue.lazy.imports import later, pattern
from gpuqueue.model.array import Indexes
from gpuqueue.model.device import Peak, PeakSource, Timeline
from gpuqueue.model.job import Job, JobState
from gpuqueue.model.job_ref import JobName
from gpuqueue.model.job_spec import JobSpec
from gpuqueue.model.notification import Delivery, Outcome, is_before_end, mark_and_attempt, target_number
from gpuqueue.model.run import Note, Record, Run, RunDevice
from gpuqueue.model.run_files import KeptFiles, KeptState
from gpuqueue.text.sanitize import cells, plain, short, wrapped
from gpuqueue.text.units import format_bytes, format_duration
from gpuqueue.words.values import (
    activity_lines,
    asked_in_words,
    asked_of,
    checkout_of,
    device_label,
    limits_in_words,
    metric_in_words,
    priority_of,
    stop_rules,
    waits_for,
    when,
)

if TYPE_CHECKING:
    import json

    from gpuqueue.model import code_snapshot, host_limits
    from gpuqueue.model.job_values import JobValues
    from gpuqueue.model.progress import Progress
    from gpuqueue.model.run_mark import RunMark
else:
    code_snapshot = later("gpuqueue.model.code_snapshot")
    host_limits = later("gpuqueue.model.host_limits")
    json = later("json")

#: Width of a label of `story`, in columns; and the labels whose text is not wrapped, so that it can be copied.
_LABEL, _COPIED = 13, {"command", "directory", "log"}
#: Longest text of an array's indexes, in columns.
_INDEXES = 40
#: Longest text of the values of a sweep, and of a result, in columns.
_VALUES = 200
#: Most failed members of an array that are read, and the longest last line of a log, in columns.
MAX_FAILED, LAST_LINE = 500, 200
#: Blocks of a memory line, from the lowest value to the highest.
BLOCKS = "▁▂▃▄▅▆▇█"
#: Most blocks of a memory line.
LINE_WIDTH = 48
#: Fewest blocks of a memory line.
LEAST_BLOCKS = 8
#: Longest time between two consecutive samples of a run, in seconds. A longer time is a gap.
POLL_S = 1.5
#: How programs say that a file is missing: Python, its interpreter, NumPy and others, and the shell with its tools.
_MISSING = pattern(
    r"FileNotFoundError: [^\"'\n]*[\"'](?P<quoted>[^\"'\n]+)"
    r"|FileNotFoundError: (?P<library>\S+) (?:not found|does not exist)"
    r"|No such file or directory: [\"'](?P<python>[^\"'\n]+)"
    r"|can't open file [\"'](?P<interpreter>[^\"'\n]+)"
    r"|(?:^|[\s:\"'\u2018`])(?P<shell>[^\s:\"'\u2018\u2019`]+)[\"'\u2019]?: No such file\b"
)
_WORDS = {KeptState.WAITING: "not yet", KeptState.FAILED: "nothing", KeptState.UNKNOWN: "not known"}


def story(
    record: Record,
    live: Live | None = None,
    width: int | None = None,
    *,
    failed: Iterable[str] = (),
    kept: str | None = None,
) -> str:
    """Return the text of ``gpuqueue show``, wrapped to *width* columns; None: for a pipe, not wrapped.

    *live* is the current state of a running job, *failed* are the lines of :func:`failed_lines`, and *kept* is the line
    about its kept files. Commands and paths are not wrapped, so that they can be copied.
    """
    more = [*failed, *([kept] if kept is not None else [])]
    lines = _lines(record, live, width, more)
    return "\n".join(each for line in lines for each in _under_its_label(line, width))


def _under_its_label(line: str, width: int | None) -> list[str]:
    """Return a *line* of `story`, wrapped to *width* columns and indented under its label."""
    label, words = line[:_LABEL], line[_LABEL:]
    if width is None or cells(click.unstyle(line)) <= width or label.strip() in _COPIED:
        return [line]
    if not label.startswith(" "):
        return hanging(line, width)
    first, *more = wrapped(words, max(TINY, width - _LABEL))
    return [f"{label}{first}", *(" " * _LABEL + each for each in more)]


def _lines(record: Record, live: Live | None, width: int | None, more: Iterable[str]) -> list[str]:
    lines = [*_request_lines(record), *_course_lines(record, live), *more]
    for run in record.runs:
        notes = [note for note in record.notes if note.attempt == run.attempt]
        lines += ["", *_run_lines(run, record.job, live, width), *map(_run_note_line, notes)]
    verdict = _verdict(record)
    return [*lines, "", f"memory: {verdict}"] if verdict else lines


def request_story(spec: JobSpec, width: int | None = None) -> str:
    """Return what a job with this *spec* would ask for, in the lines of `story`."""
    job = Job(
        id=0,
        spec=spec,
        state=JobState.QUEUED,
        submitted_at=datetime.now(timezone.utc),
        begins_at=spec.waits.begin_at,
        tags=spec.tags,
    )
    held = ["  state      held"] if spec.waits.hold else []
    lines = [f"  name       {plain(spec.name)}", *held, *_requested_lines(Record(job=job))]
    return "\n".join(each for line in lines for each in _under_its_label(line, width))


def _request_lines(record: Record) -> list[str]:
    """Return the state of a job and what was asked for."""
    job = record.job
    return [
        f"job {job.label}  {plain(job.spec.name)}",
        f"  state      {state(job)}{_why(job)}",
        *_requested_lines(record),
    ]


def _requested_lines(record: Record) -> list[str]:
    """Return what was asked for."""
    job, spec = record.job, record.job.spec
    has_limits = (spec.cpus, spec.cpu_mem_bytes) != (None, None)  # most jobs have none, and need no module for them
    limits = host_limits.words(spec.cpus, spec.cpu_mem_bytes) if has_limits else None
    return [
        f"  user       {plain(spec.account.name)} on {plain(spec.account.host)}",
        f"  command    {plain(spec.command)}",
        f"  directory  {plain(spec.cwd)}",
        *code_lines(spec),
        f"  asked      {asked_in_words(spec)}"
        + (f", at most {format_duration(spec.time_limit_s)}" if spec.time_limit_s else "")
        + (f" ({format_duration(spec.extended_s)} of it added)" if spec.extended_s else "")
        + (f", {spec.signal} before that" if spec.signal else "")
        + f", {priority_of(job)}",
        *([f"  limits     {limits}"] if limits is not None else []),
        *_places(spec),
        *[f"  {name:10} {plain(file)}" for name, file in (("output", spec.output), ("error", spec.error)) if file],
        *_wait_lines(job),
        *([f"  stops      {' or '.join(stops)}"] if (stops := stop_rules(spec)) else []),
        *_array_lines(job),
        *([f"  tags       {' '.join(job.tags)}"] if job.tags else []),
        *_note_lines(job.note),
        *_notification_lines(record),
        *([f"  retry of   job {spec.retry_of}"] if spec.retry_of is not None else []),
    ]


def _places(spec: JobSpec) -> list[str]:
    """Return lines about the options that were not typed: those of each file and line."""
    options: dict[str, list[str]] = {}
    for option, place in spec.given_in.items():
        options.setdefault(place, []).append(f"--{option}")
    lines = [f"{' '.join(names)} in {place}" for place, names in options.items()]
    return [f"  {'' if number else 'options':10} {plain(line)}" for number, line in enumerate(lines)]


def _why(job: Job) -> str:
    """Return why a job is in its state, in parentheses, or an empty text."""
    never_began = job.state is JobState.CANCELLED and not job.attempt and job.spec.array is None
    why = job.because or waits_for(job, datetime.now(timezone.utc)) or ("before it started" if never_began else "")
    return f" ({why})" if why and why != str(job.state) else ""


def _course_lines(record: Record, live: Live | None) -> list[str]:
    """Return the times of a job, the notes whose run is unknown, and its current memory and progress."""
    job, known = record.job, {run.attempt for run in record.runs}
    return [
        f"  submitted  {when(job.submitted_at)}",
        *(_run_note_line(note) for note in record.notes if note.attempt not in known),
        f"  started    {when(job.started_at)}",
        f"  ended      {when(job.ended_at)}",
        *_live_lines(job, live),
    ]


def _run_note_line(note: Note) -> str:
    return f"  note       {when(note.at)} {plain(note.text)}"


def _note_lines(note: str | None) -> list[str]:
    """Return the lines of the user's note."""
    lines = (note or "").splitlines()
    return [f"  {'' if number else 'note':10} {plain(line)}".rstrip() for number, line in enumerate(lines)]


def _verdict(record: Record) -> str | None:
    from gpuqueue.estimate.verdict import asked_and_used  # noqa: PLC0415 - lazy import: tables do not need it

    return asked_and_used(record)


def _wait_lines(job: Job) -> list[str]:
    """Return the lines about dependencies, begin time, dedupe key, retries and requeues of a job."""
    spec, lines = job.spec, []
    if spec.waits.after:
        lines.append(f"  after      {', '.join(map(str, spec.waits.after))}")
    if job.begins_at is not None:
        lines.append(f"  begins     {when(job.begins_at)}")
    if spec.waits.dedupe is not None:
        lines.append(f"  dedupe     {plain(spec.waits.dedupe)}")
    if spec.retries.times:
        on = ", ".join(map(str, spec.retries.on)).replace("_", " ")
        lines.append(f"  retries    {job.retries} of {spec.retries.times}, after: {on}")
    if job.requeues:
        lines.append(f"  requeues   {job.requeues}, asked for by exit 75")
    if job.mem_retries:
        lines.append(f"  mem retry  {job.mem_retries} of {spec.retries.most_mem_times}, after out of memory")
    return lines


def _array_lines(job: Job) -> list[str]:
    """Return the lines of ``show`` about an array, or about the array of a member."""
    if job.member is not None:
        own_id = f", job {job.id}" if job.attempt else ""  # a member has an id of its own once a device takes it
        return [f"  member     {job.member.index} of array {job.member.array_id}{own_id}"]
    array, here = job.spec.array, job.tally
    if array is None:
        return []
    most = f", at most {array.at_once} at once" if array.at_once else ""
    if array.max_failures:
        most += f", held after {array.max_failures} failure{'' if array.max_failures == 1 else 's'}"
    lines = [f"  members    {len(array)} ({short(str(array.indexes), _INDEXES)}){most}"]
    for axis in array.axes:
        values, text = len(axis), plain(f"{axis.name}={axis.text}")
        lines.append(f"  sweep      {text if len(text) <= _VALUES else f'{short(text, _VALUES)} ({values} values)'}")
    if here is not None:
        ended = sum(here.ended.values())
        taken = len(array) - ended - len(here.left) - len(here.held)
        words = [(len(here.left), "wait"), (len(here.held), "held"), (taken, "begun and not ended")]
        words += [(count, state) for state, count in here.ended.items()]
        if here.awaiting:
            words.insert(1, (len(here.awaiting), f"of them for their member of job {job.spec.waits.followed}"))
        lines.append("  so far     " + (", ".join(f"{count} {word}" for count, word in words if count)))
    return lines


def _notification_lines(record: Record) -> list[str]:
    """Return the notifications of a job and their outcomes. URLs are masked, since they may hold secrets."""
    reported, lines = {each.number: each for each in record.reported}, []
    for number, each in enumerate(record.job.spec.notifications):
        lines.append(f"  {f'on {each.when}':10} {plain(each.shown)}{_outcome(reported.get(number))}")
        for early in record.reported:
            if is_before_end(early.number) and target_number(early.number) == number:
                kind, _ = mark_and_attempt(early.number)
                label = f"on {kind or 'mark'}" if record.job.spec.array is None else "on hold"
                lines.append(f"  {label:10} {plain(each.shown)}{_outcome(early)}")
    return lines


def _outcome(reported: Delivery | None) -> str:
    if reported is None:
        return ""
    if reported.outcome is Outcome.SENT:
        return f": sent {when(reported.at)}"
    if reported.outcome is Outcome.NOT_NEEDED:
        return ": not needed"
    times = "1 try" if reported.tries == 1 else f"{reported.tries} tries"
    why = f" after {times}: {plain(reported.trouble)}" if reported.trouble else ""
    return f": {'given up' if reported.outcome is Outcome.GIVEN_UP else 'not sent yet'}{why}" if why else ""


def _live_lines(job: Job, live: Live | None) -> list[str]:
    """Return the current memory and progress of a running job, and what looks wrong about it."""
    lines = [f"  {each.kind:10} since {when(each.since)}: {plain(each.words)}" for each in job.marks]
    if live is not None and live.held_bytes is not None and not job.spec.is_whole:
        lines.append(f"  memory     {format_bytes(live.held_bytes)}/{asked_of(job)} now")
    if live is not None and live.progress is not None:
        from gpuqueue.cli.output.render import share_bar  # noqa: PLC0415 - only for a job with progress

        lines.append(f"  progress   {share_bar(live.progress)}")
    return lines


def _run_lines(run: Run, job: Job, live: Live | None, width: int | None) -> list[str]:
    goes_on = run.ending is None and run.attempt == job.attempt and job.state.is_active
    so_far = f"{format_duration(live.elapsed_s)} so far" if goes_on and live is not None else None
    lines = [
        f"run {run.attempt} on {plain(run.host)}",
        f"  claimed    {when(run.claimed_at)}" + (f" ({run.start_kind})" if run.start_kind else ""),
        f"  took       {so_far or format_duration(run.duration_s)}",
        f"  ending     {plain(str(run.ending)) if run.ending else '-'}",
        *(f"  marked     {_mark_line(each)}" for each in run.marks if each.until is not None or not goes_on),
        *(f"  note       {plain(note.words)}" for note in run.notes),
        f"  log        {plain(run.log_path or '-')}",
        *([f"  limits     {limits_in_words(run.limits)}"] if run.limits else []),
        *(_value_lines(run.values) if run.values is not None else []),
    ]
    for device in run.devices:
        label = device_label(device) if device.name else "?"
        allocated = f"{label} {plain(device.name or device.uuid)}: lease {format_bytes(device.lease_bytes)}"
        least = "at least " if run.gap is not None and device.peak.bytes is not None else ""
        peak = f"peak {least}{format_bytes(device.peak.bytes)} ({_evidence(device.peak)})"
        lines.append(f"  device     {allocated}, {'its peak is reported at the end' if goes_on else peak}")
        seen = (*activity_lines(device.activity), memory_line(device, run.duration_s, width and width - _LABEL))
        lines += [f"             {words}" for words in seen if words]
    return lines


def _mark_line(mark: RunMark) -> str:
    """Return what looked wrong about a run, and when."""
    until = "the end" if mark.until is None else when(mark.until)
    return f"{plain(mark.words)}, from {when(mark.since)} to {until}"


def _value_lines(values: JobValues) -> list[str]:
    """Return the lines about what a job reported of its run."""
    params = ", ".join(f"{name}={value}" for name, value in values.params.items())
    lines = [f"  params     {plain(params)}"] if params else []
    lines += [f"  metric     {metric_in_words(each)}" for each in values.metrics]
    if values.result is not None:
        lines.append(f"  result     {short(json.dumps(values.result, ensure_ascii=False), _VALUES)}")
    return lines


def _evidence(peak: Peak) -> str:
    """Return the source of a peak: method, number and interval of samples, and whether other jobs shared the device."""
    if peak.source is PeakSource.NONE:
        return "not measured"
    what = ": resident memory" if peak.source.is_resident else ""
    words = [f"{peak.source}{what}", f"{peak.samples} samples"]
    if peak.interval_s:
        words.append(f"every {_pause(peak.interval_s)}")
    if peak.na_samples:
        words.append(f"{peak.na_samples} without an answer")
    if peak.shared:
        words.append("others were there")
    return ", ".join(words)


def _pause(interval_s: float) -> str:
    """Return the time between two samples; below a tenth of a second in milliseconds."""
    return f"{interval_s * 1000:.0f}ms" if interval_s < 0.1 else format_duration(interval_s)  # noqa: PLR2004 - see the docstring


def memory_line(device: RunDevice, duration_s: float | None = None, width: int | None = None) -> str:
    """Return the run's memory over time as a line of blocks, at most *width* columns wide; empty without a timeline.

    The highest block is the largest value. The line covers *duration_s* seconds, with blanks for times without samples.
    """
    line = device.timeline
    if line is None or not any(line.bytes):
        return ""
    sampled = _between_samples(line)
    steps = [*sampled, *[None] * (int((duration_s or 0.0) / line.step_s) - len(sampled))]
    over = f" over {format_duration(len(steps) * line.step_s)}"
    room = LINE_WIDTH if width is None else max(LEAST_BLOCKS, width - len(f"memory {over}"))
    count = min(LINE_WIDTH, len(steps), room)
    largest = max(each for each in line.bytes if each is not None)
    blocks = []
    for cell in range(count):
        known = [
            each for each in steps[cell * len(steps) // count : (cell + 1) * len(steps) // count] if each is not None
        ]
        blocks.append(BLOCKS[max(known) * (len(BLOCKS) - 1) // largest] if known else " ")
    return f"memory {''.join(blocks)}{over}"


def _between_samples(line: Timeline) -> list[int | None]:
    """Return the steps of *line*; steps between two consecutive samples have the value of the first one."""
    steps, last = list(line.bytes), 0
    for place, seen in enumerate(line.bytes):
        if seen is None:
            continue
        if (place - last) * line.step_s <= POLL_S:
            steps[last:place] = [line.bytes[last]] * (place - last)
        last = place
    return steps


def code_lines(spec: JobSpec) -> list[str]:
    """Return the lines about the code of a job, each only if there is something to say."""
    return [
        *([f"  git        {checkout_of(spec.git)}"] if spec.git else []),
        *([f"  python     environment {plain(spec.environment)}"] if spec.environment is not None else []),
        *([f"  container  {plain('  '.join((spec.container, *spec.binds)))}"] if spec.container is not None else []),
        *([f"  code       {_code_of(spec.snapshot)}"] if spec.snapshot else []),
        *([f"  keep       {plain('  '.join(spec.keep))}"] if spec.keep else []),
    ]


def _code_of(text: str) -> str:
    """Return a snapshot of code in words."""
    snapshot = code_snapshot.CodeSnapshot.parse(text)
    below = "" if snapshot.directory == "." else f", in {plain(snapshot.directory)}"
    return f"a copy of its own, snapshot {snapshot.address[:12]}{below}"


def missing_file_line(record: Record, written: bytes, own_host: str) -> str | None:
    """Return a line about a file that the failed last run did not find, if the file is where the job was submitted.

    *written* is the end of its log. Only on the host of the submit, *own_host*, is it known what is there.
    """
    job, run = record.job, record.last_run
    spec = job.spec
    if run is None or run.ending is None or run.ending.shell_code == 0 or spec.account.host != own_host:
        return None
    if spec.snapshot is None and run.host == own_host:
        return None
    names = [each[each.lastgroup or 0] for each in _MISSING.finditer(written.decode("utf-8", "surrogateescape"))]
    for name in dict.fromkeys(reversed(names)):
        path = os.path.normpath(Path(spec.cwd, _without_copy(name, run, spec)))
        if os.path.exists(path):  # noqa: PTH110 - Path.exists raises on a name that is too long
            where = f"{plain(path)} is here, where the job was submitted, but not where it ran"
            if spec.snapshot is None:
                return f"{where}: give its path on {plain(run.host)}"
            return f"{where}: ignored and newer files do not travel with the code. Give data by its path on the host"
    return None


def _without_copy(name: str, run: Run, spec: JobSpec) -> str:
    """Return the path *name*, which a run printed: relative to the working directory if it is in its copy."""
    tree = f"{(run.log_path or '').rpartition('/')[0]}/code/tree"
    if spec.snapshot is None or not name.startswith(f"{tree}/"):
        return name
    return os.path.relpath(name, f"{tree}/{code_snapshot.CodeSnapshot.parse(spec.snapshot).directory}")


def kept_of(client: Client, record: Record) -> KeptFiles | None:
    """Return the state of the files that a job keeps; None if it keeps none, or has not run."""
    job = record.job
    if not job.spec.keep or job.spec.array is not None or not any(run.log_path for run in record.runs):
        return None
    try:
        return client.files.kept(job.label)
    except GpuQueueError as error:
        return KeptFiles(state=KeptState.UNKNOWN, reason=str(error))


def kept_line(found: KeptFiles, label: str) -> str:
    """Return the line of ``gpuqueue show`` about the kept files of the job *label*."""
    if found.state is KeptState.KEPT and found.size_bytes is not None:
        until = f" until {when(found.expires_at)}" if found.expires_at is not None else ""
        return f"  kept       {format_bytes(found.size_bytes)}{until} (gpuqueue fetch --kept {label})"
    return f"  kept       {_WORDS.get(found.state, str(found.state))}: {plain(found.reason or '-')}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Live:
    """The run time of a job in seconds, its last sample of memory on all its devices in bytes, and its progress."""

    elapsed_s: float | None
    held_bytes: int | None
    progress: Progress | None


def live_of(client: Client, job: Job) -> Live | None:
    """Return the current state of *job*, or None if it does not run or the store does not answer."""
    if job.state not in {JobState.RUNNING, JobState.CANCELLING}:
        return None
    try:
        page = client.jobs.listing(limit=1, after=job.id - 1)
        progress = client.logs.progress([job], page.logs).get(job.id)
    except GpuQueueError:  # the output is complete without the live state
        return None
    return Live(
        elapsed_s=None if job.started_at is None else max(0.0, (page.at - job.started_at).total_seconds()),
        held_bytes=page.held_bytes.get(job.id),
        progress=progress,
    )


def silent_host_lines(client: Client, job: Job) -> Iterator[str]:
    """Yield a line if the host that runs *job* is silent. Yield nothing if the store does not answer."""
    if job.state.is_active:
        with suppress(GpuQueueError):
            yield from silent_lines(client.devices.list(), client.settings, job.id)


def failed_lines(client: Client, job: Job) -> Iterator[str]:
    """Yield the lines about the members of the array *job* that failed: which, why one did, and what ran them again.

    Yield nothing of what the history or the logs do not answer.
    """
    states = (JobState.FAILED, JobState.LOST)
    ended = {} if job.tally is None else job.tally.ended
    if not any(ended.get(each.value) for each in states):
        return
    with suppress(GpuQueueError):
        found = client.history.search(array=job.id, states=states, reverse=True, limit=MAX_FAILED)
        indexes = Indexes.of(each.job.member.index for each in found if each.job.member is not None)
        if found:
            yield f"  failed     {short(str(JobName(job.id, indexes)), _INDEXES)}"
            yield f"  such as    {found[0].job.label}: {_how_it_ended(client, found[0])}"
        retries = ", ".join(map(str, client.jobs.retries(job.id)))
        if retries:
            yield f"  retried    as job {short(retries, _INDEXES)}"


def _how_it_ended(client: Client, record: Record) -> str:
    """Return how a job ended, and the last line of its log."""
    ending = record.last_run.ending if record.last_run is not None else None
    how = plain(str(ending) if ending is not None else record.outcome)
    last = last_line(client, record)
    return f"{how}; its log ends with: {last}" if last else how


def last_line(client: Client, record: Record) -> str:
    """Return the last line of a job's log, of standard error if that is apart; empty if it has none to read."""
    with suppress(GpuQueueError):
        for stderr in (True, False) if record.job.spec.separate_stderr else (False,):
            lines = log_lines(client.logs.end(record, LOG_BYTES, stderr=stderr))
            last = next((line for line in reversed(lines) if line.strip()), "")
            if last:
                return short(last.strip(), LAST_LINE)
    return ""
