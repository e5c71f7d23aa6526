"""Values as text for people. All text from users passes through :mod:`gpuqueue.text.sanitize`."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timezone
from typing import TYPE_CHECKING

import click

from gpuqueue.cli.output.arrays import story as array_story
from gpuqueue.cli.output.terminal_width import TINY, hanging
from gpuqueue.model.device import Activity, Device, DeviceFilter, DeviceKind, Peak, PeakSource, Timeline
from gpuqueue.model.git import Checkout
from gpuqueue.model.job import Job, JobSpec, JobState, WaitReason
from gpuqueue.model.notification import Delivery, Outcome
from gpuqueue.model.placement import Placement
from gpuqueue.model.run import Record, Run, RunDevice
from gpuqueue.text.sanitize import cells, plain, short, wrapped
from gpuqueue.text.units import format_bytes, format_duration

if TYPE_CHECKING:
    from gpuqueue.cli.output.live_run import Live

#: Reasons of a job that waits for a point in time.
_OF_ITS_TIME = {WaitReason.BEGIN, WaitReason.RETRY, WaitReason.REQUEUE}
#: Width of a label in `story`, in columns; and the labels whose text is not wrapped, so that it can be copied.
_LABEL, _COPIED = 13, {"command", "directory", "log"}
#: State -> colour on a terminal.
COLOURS = {
    JobState.RUNNING: "green",
    JobState.STARTING: "green",
    JobState.SUCCEEDED: "green",
    JobState.FAILED: "red",
    JobState.LOST: "red",
    JobState.HELD: "yellow",
    JobState.CANCELLING: "yellow",
    JobState.CANCELLED: "yellow",
}


def when(moment: datetime | None) -> str:
    """Return *moment* in local time, to the second; ``-`` for None."""
    return moment.astimezone().strftime("%Y-%m-%d %H:%M:%S") if moment else "-"


def percent(share: float | None) -> str:
    """Return a share from 0 to 1 in percent; ``-`` for None."""
    return "-" if share is None else f"{100 * share:.0f} %"


def hours(seconds: float) -> str:
    """Return *seconds* in hours, with fewer decimals for larger values; ``<0.01`` for a very small one."""
    number = seconds / 3600
    if not number:
        return "0"
    if number < 0.01:  # noqa: PLR2004 - half a minute
        return "<0.01"
    return f"{number:.0f}" if number >= 100 else f"{number:.1f}" if number >= 1 else f"{number:.2f}"  # noqa: PLR2004 - three digits


def table(head: Sequence[str], rows: Sequence[Sequence[str]], *, right: Sequence[int] = ()) -> str:
    """Return a table with aligned columns; *right* has the positions of the columns that are aligned right."""
    widths = [max(cells(click.unstyle(row[i])) for row in (head, *rows)) for i in range(len(head))]

    def line(row: Sequence[str]) -> str:
        padded = []
        for i, cell in enumerate(row):
            space = " " * (widths[i] - cells(click.unstyle(cell)))
            padded.append(space + cell if i in right else cell + space)
        return "  ".join(padded).rstrip()

    return "\n".join(line(row) for row in (head, *rows))


def priority_of(job: Job) -> str:
    """Return the priority of the job, and the one that aging has promoted it to: ``priority low, promoted to high``."""
    return f"priority {job.spec.priority}" + (f", promoted to {job.promoted}" if job.promoted is not None else "")


def state(job: Job) -> str:
    """Return the job's state, in its colour."""
    return click.style(str(job.state), fg=COLOURS.get(job.state))


def devices_of(run: Run | None) -> str:
    """Return the host and the device indexes of a run: ``nodeA:0,1``; ``-`` if it has no devices."""
    if run is None or not run.devices:
        return "-"
    return plain(f"{run.host}:{','.join(map(device_label, run.devices))}")


def place(where: str, width: int) -> str:
    """Return ``HOST:INDEXES`` in *width* columns: the host's name is cut, the indexes are not."""
    host, colon, indexes = where.rpartition(":")
    return f"{short(host, max(1, width - cells(indexes) - 1))}:{indexes}" if colon else short(where, width)


def device_label(device: Device | RunDevice) -> str:
    """Return the index of a device, ``cpu`` for the CPU, or the UUID if the index is unknown."""
    if device.kind is DeviceKind.CPU:
        return "cpu"
    return str(device.index) if device.index is not None else plain(device.uuid)


def asked_of(job: Job) -> str:
    """Return the memory that a job requests: ``6G``, or ``2x6G`` on two devices."""
    size = size_of(job.spec)
    return f"{job.spec.gpus}x{size}" if job.spec.gpus > 1 else size


def size_of(spec: JobSpec) -> str:
    """Return the memory that a job requests on each device: ``6G``, or ``all`` for the whole device."""
    return "all" if spec.placement.whole else format_bytes(spec.mem_bytes)


def wants_of(spec: JobSpec) -> str:
    """Return the requested devices in one or two words: their kind or model, ``named``, ``alone``."""
    if spec.placement.devices:
        words = ["named"]
    else:
        words = [short("|".join(spec.placement.models), 16)] if spec.placement.models else [str(spec.device or "")]
    return " ".join([*words, "alone"] if spec.placement.exclusive else words).strip()


def put_of(placement: Placement) -> str:
    """Return the device filter and placement of a job, to follow `places_of`: ``, alone there, of type A100``."""
    words = ["alone there"] if placement.exclusive else []
    if placement.models:
        words.append(f"of type {' or '.join(placement.models)}")
    if placement.devices:
        words.append(f"{'among' if len(placement.devices) > 1 else 'only'} {', '.join(placement.devices)}")
    if placement.preference is not None:
        words.append(f"placed by {placement.preference}")
    return plain("".join(f", {each}" for each in words))


def places_of(spec: JobSpec) -> str:
    """Return the requested number and kind of devices: ``2 GPUs``, ``the CPU``, ``1 device, GPU or CPU``."""
    if spec.device is DeviceFilter.CPU:
        return "the CPU"
    noun = "GPU" if spec.device is DeviceFilter.GPU else "device"
    either = spec.device is DeviceFilter.ANY and not spec.placement.devices  # a named device has one kind
    return f"{spec.gpus} {noun}{'s' if spec.gpus > 1 else ''}" + (", GPU or CPU" if either else "")


def peak_of(run: Run | None) -> str:
    """Return a run's peak memory, or ``-`` if it was not measured."""
    return format_bytes(run.peak_bytes if run else None)


def waits_for(job: Job, now: datetime) -> str:
    """Return why a job waits, in a few words: ``memory``, ``job 12 and 3 more``, ``retry in 40s``.

    A job whose run asked to be requeued is no retry: ``again in 4.0s``.
    """
    if job.reason is WaitReason.DEPENDENCY and job.awaits:
        more = len(job.awaits) - 1
        return f"job {job.awaits[0].job_id}" + (f" and {more} more" if more else "")
    words = str(job.reason).replace("_", " ") if job.reason else ""
    if job.reason is WaitReason.REQUEUE:
        words = "again"
    if job.begins_at is not None and job.reason in _OF_ITS_TIME:
        words += f" in {format_duration(float(max(0, round((job.begins_at - now).total_seconds()))))}"
    return words


def story(record: Record, live: Live | None = None, width: int | None = None) -> str:
    """Return the text of ``gpuqueue show``, wrapped to *width* columns; None: for a pipe, not wrapped.

    *live* is the current state of a running job. Commands and paths are not wrapped, so that they can be copied.
    """
    return "\n".join(each for line in _story(record, live, width) for each in _under_its_label(line, width))


def _under_its_label(line: str, width: int | None) -> list[str]:
    """Return a *line* of `story`, wrapped to *width* columns and indented under its label."""
    label, words = line[:_LABEL], line[_LABEL:]
    if width is None or cells(click.unstyle(line)) <= width or label.strip() in _COPIED:
        return [line]
    if not label.startswith(" "):
        return hanging(line, width)
    first, *more = wrapped(words, max(TINY, width - _LABEL))
    return [f"{label}{first}", *(" " * _LABEL + each for each in more)]


def _story(record: Record, live: Live | None, width: int | None) -> list[str]:
    job, spec = record.job, record.job.spec
    never_began = job.state is JobState.CANCELLED and not job.attempt and job.spec.array is None
    why = job.because or waits_for(job, datetime.now(timezone.utc)) or ("before it started" if never_began else "")
    known = {run.attempt for run in record.runs}
    lines = [
        f"job {job.label}  {plain(spec.name)}",
        f"  state      {state(job)}" + (f" ({why})" if why and why != str(job.state) else ""),
        f"  user       {plain(spec.account.name)} on {plain(spec.account.host)}",
        f"  command    {plain(spec.command)}",
        f"  directory  {plain(spec.cwd)}",
        *([f"  git        {checkout_of(spec.git)}"] if spec.git else []),
        f"  asked      {size_of(spec)} on {places_of(spec)}{put_of(spec.placement)}"
        + (f", at most {format_duration(spec.time_limit_s)}" if spec.time_limit_s else "")
        + (f", {spec.signal} before that" if spec.signal else "")
        + f", {priority_of(job)}",
        *_wait_lines(job),
        *array_story(job),
        *([f"  tags       {' '.join(job.tags)}"] if job.tags else []),
        *_note_lines(job.note),
        *_notification_lines(record),
        *([f"  retry of   job {spec.retry_of}"] if spec.retry_of is not None else []),
        f"  submitted  {when(job.submitted_at)}",
        *(f"  note       {when(note.at)} {plain(note.text)}" for note in record.notes if note.attempt not in known),
        f"  started    {when(job.started_at)}",
        f"  ended      {when(job.ended_at)}",
        *_live_lines(job, live),
    ]
    for run in record.runs:
        notes = [note for note in record.notes if note.attempt == run.attempt]
        lines += [
            "",
            *_run_lines(run, job, live, width),
            *(f"  note       {when(note.at)} {plain(note.text)}" for note in notes),
        ]
    verdict = _verdict(record)
    return [*lines, "", f"memory: {verdict}"] if verdict else lines


def _note_lines(note: str | None) -> list[str]:
    """Return the lines of the user's note."""
    lines = (note or "").splitlines()
    return [f"  {'' if number else 'note':10} {plain(line)}".rstrip() for number, line in enumerate(lines)]


def _verdict(record: Record) -> str | None:
    from gpuqueue.estimate.verdict import asked_and_used  # noqa: PLC0415 - lazy import: tables do not need it

    return asked_and_used(record)


def checkout_of(git: Checkout) -> str:
    """Return commit, branch and state of a git checkout: ``3442fefc16a1 on main, nothing changed``."""
    changes = {True: "with changes that are not committed", False: "nothing changed", None: "changes not known"}
    return f"{git.commit[:12]}" + (f" on {plain(git.branch)}" if git.branch else "") + f", {changes[git.dirty]}"


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
    return lines


def _notification_lines(record: Record) -> list[str]:
    """Return the notifications of a job and their outcomes. URLs are masked, since they may hold secrets."""
    reported = {each.number: each for each in record.reported}
    lines = []
    for number, each in enumerate(record.job.spec.notifications):
        lines.append(f"  {f'on {each.when}':10} {plain(each.shown)}{_outcome(reported.get(number))}")
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
    """Return the current memory and progress of a running job."""
    lines = []
    if live is not None and live.held_bytes is not None:
        lines.append(f"  memory     {format_bytes(live.held_bytes)}/{asked_of(job)} now")
    if live is not None and live.progress is not None:
        from gpuqueue.cli.output.progress import share_bar  # noqa: PLC0415 - only for a job with progress

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
        f"  log        {plain(run.log_path or '-')}",
    ]
    for device in run.devices:
        label = device_label(device) if device.name else "?"
        allocated = f"{label} {plain(device.name or device.uuid)}: lease {format_bytes(device.lease_bytes)}"
        peak = f"peak {format_bytes(device.peak.bytes)} ({_evidence(device.peak)})"
        lines.append(f"  device     {allocated}, {'its peak is reported at the end' if goes_on else peak}")
        seen = (_activity(device.activity), memory_line(device, run.duration_s, width and width - _LABEL))
        lines += [f"             {words}" for words in seen if words]
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


def _activity(activity: Activity) -> str:
    words = []
    if activity.first_memory_s is not None:
        words.append(f"first memory after {format_duration(activity.first_memory_s)}")
    if activity.utilisation_mean is not None and activity.utilisation_max is not None:
        words.append(
            f"busy {activity.utilisation_mean:.0%} (at most {activity.utilisation_max:.0%})".replace("%", " %")
        )
    if activity.temperature_max_c is not None:
        words.append(f"at most {activity.temperature_max_c:.0f} °C")
    return ", ".join(words)


#: Blocks of a memory line, from the lowest value to the highest.
BLOCKS = "▁▂▃▄▅▆▇█"
LINE_WIDTH = 48
#: Fewest blocks of a memory line.
LEAST_BLOCKS = 8
#: Longest time between two consecutive samples of a run, in seconds. A longer time is a gap.
POLL_S = 1.5


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
