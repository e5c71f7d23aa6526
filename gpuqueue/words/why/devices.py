"""Part of ``why``: the devices that matter, those nearest to a start first, and what keeps the job from them. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from gpuqueue.client.why import Why
from gpuqueue.clock import SystemClock, from_epoch_ms, to_epoch_ms
from gpuqueue.model.calendar import CalendarReservation
from gpuqueue.model.job import JobState
from gpuqueue.model.job_spec import JobSpec
from gpuqueue.model.placement import Shape
from gpuqueue.queue.explanation import NEVER_THERE, Explanation, Obstacle, Verdict
from gpuqueue.queue.lease import ExternalProcess
from gpuqueue.text.sanitize import plain, short
from gpuqueue.text.units import format_apart, format_bytes, format_duration
from gpuqueue.words import values
from gpuqueue.words.values import clock

#: Most devices with a row of their own. A job on several devices has as many rows as devices.
MOST = 5
#: Obstacle -> how far its device is from fitting. The store tests obstacles in the order from far to near.
_FAR = {obstacle: far for far, obstacle in enumerate(reversed(Obstacle))}
#: Obstacle -> what a device with it is called when devices are counted.
WORDS = {
    Obstacle.POOL: "of another pool",
    Obstacle.KIND: "of another kind",
    Obstacle.NAMED: "not named by the job",
    Obstacle.MODEL: "of another type",
    Obstacle.EXCLUDED: "on a host that could not start the job",
    Obstacle.PART: "MIG",
    Obstacle.TOO_SMALL: "too small",
    Obstacle.TOO_LARGE: "too large",
    Obstacle.DRAINED: "drained",
    Obstacle.CALENDAR: "reserved for others until a set time",
    Obstacle.END: "with an end too soon",
    Obstacle.SILENT: "silent",
    Obstacle.EXCLUSIVE: "taken by one job alone",
    Obstacle.OCCUPIED: "in use",
    Obstacle.MEMORY: "with too little memory",
    Obstacle.SLOTS: "with all slots taken",
    Obstacle.RESERVED: "reserved",
    Obstacle.ALONE: "with too few others beside it",
    Obstacle.LIMIT: "with room",
    Obstacle.NOT_YET: "with room",
    Obstacle.FITS: "with room",
}


def nearest(found: Why, explanation: Explanation) -> list[Verdict]:
    """Return the devices that matter, in the order of the table.

    The devices of the expected start come first. Devices that can never run the job are left out if others can.
    """
    ordered = sorted(explanation.devices, key=lambda each: _distance(found, explanation, each))
    possible = [each for each in ordered if each.obstacle not in NEVER_THERE]
    return (possible or ordered)[: max(MOST, found.job.spec.device_count)]


def rest_line(explanation: Explanation, shown: Sequence[Verdict]) -> list[str]:
    """Return the line about the devices that are not *shown*, if any, and why hosts could not start the job."""
    named = {each.device for each in shown}
    others = [each for each in explanation.devices if each.device not in named]
    if not others:
        return []
    kinds = Counter(WORDS[each.obstacle] for each in others).most_common()
    counts = ", ".join(f"{number} {words}" for words, number in kinds)
    reasons = {each.host: each.cannot_start for each in others if each.obstacle is Obstacle.EXCLUDED}
    return [
        f"and {len(others)} other device{'s' if len(others) > 1 else ''}: {counts}",
        *(
            f"{plain(host)} could not start the job: {plain(reason or 'no reason is known')}"
            for host, reason in sorted(reasons.items())[:MOST]
        ),
    ]


def _distance(found: Why, explanation: Explanation, verdict: Verdict) -> tuple[bool, int, int, str, int]:
    start, status = explanation.start, found.devices.get(verdict.device)
    elsewhere = start is None or verdict.device not in start.devices
    index = status.device.index if status is not None else 0
    return elsewhere, _FAR[verdict.obstacle], -verdict.available_bytes, verdict.host, index


def why_not(found: Why, verdict: Verdict) -> str:
    """Return why the job does not run on a device, in words."""
    by_others = _in_use(found, verdict)
    if by_others is not None:
        return by_others
    trouble, status = trouble_on(found, verdict), found.devices.get(verdict.device)
    if verdict.obstacle is Obstacle.KIND and status is not None and (lacking := values.without_gpu(status)):
        return lacking
    if trouble is not None and verdict.obstacle is Obstacle.SLOTS:
        return f"closed: {trouble}"
    may_start = verdict.obstacle is not Obstacle.FITS or found.job.state is not JobState.HELD
    obstacle = verdict.obstacle if may_start else Obstacle.NOT_YET  # a held member of an array
    return plain(_obstacles(found, verdict)[obstacle])


def _in_use(found: Why, verdict: Verdict) -> str | None:
    """Return why the memory of a device is too small or in use, with its users; None for another obstacle."""
    spec = found.job.spec
    if verdict.obstacle is Obstacle.MEMORY:
        lacking = format_bytes(spec.mem_bytes - max(0, verdict.available_bytes))
        return f"{lacking} too little: {'; '.join(_users_of(found, verdict))}"
    if verdict.obstacle is Obstacle.TOO_SMALL:
        asked, most = format_apart(spec.mem_bytes, verdict.total_bytes)
        return f"too small: {asked} asked for, and it has {most} less its headroom"
    if verdict.obstacle is Obstacle.EXCLUSIVE:
        return f"{'; '.join(_users_of(found, verdict, external_processes=False))}: it has the device for itself"
    if verdict.obstacle is Obstacle.OCCUPIED:
        return (
            f"the job wants it for itself: {'; '.join(_users_of(found, verdict, external_processes=not verdict.runs))}"
        )
    return None


def _obstacles(found: Why, verdict: Verdict) -> dict[Obstacle, str]:
    """Return the words for each obstacle that has nothing to do with the memory in use."""
    spec, status = found.job.spec, found.devices.get(verdict.device)
    drained = status.drained if status is not None else None
    silent_s = found.silent_s(verdict.device)
    silence = f" for {silent_s:.0f}s" if silent_s is not None else ""
    return {
        Obstacle.POOL: f"not in pool {spec.pool}",
        Obstacle.KIND: f"not a {spec.device or 'gpu'}",
        Obstacle.NAMED: f"the job names {'another device' if len(spec.placement.devices) == 1 else 'other devices'}",
        Obstacle.MODEL: f"not of type {' or '.join(spec.placement.models)}",
        Obstacle.EXCLUDED: f"it could not start the job: {verdict.cannot_start or 'no reason is known'}",
        Obstacle.PART: "a MIG instance: a program can use only one",
        Obstacle.TOO_LARGE: "too large: all of its memory is more than max_mem allows, see gpuqueue limits",
        Obstacle.DRAINED: f"drained: {drained or 'see gpuqueue gpus'}",
        Obstacle.CALENDAR: (status is not None and values.reserved_in_words(status)) or "reserved for others",
        Obstacle.END: ends_too_soon(found, verdict),
        Obstacle.SILENT: f"its worker is silent{silence}: see gpuqueue status there",
        Obstacle.SLOTS: f"it runs its maximum number of jobs: {len(verdict.runs)}",
        Obstacle.RESERVED: _reserved(found, verdict),
        Obstacle.ALONE: f"it has room, but too few other devices of its host have: {spec.gpus} are needed",
        Obstacle.NOT_YET: "it has room, but the job may not start yet",
        Obstacle.LIMIT: "it has room, and a limit leaves none: see above",
        Obstacle.FITS: f"it fits, but its worker is silent{silence}: see gpuqueue status there"
        if silence
        else "it fits: it starts there when it is its turn",
    }


def ends_too_soon(found: Why, verdict: Verdict) -> str:
    """Return when a device ends, or is reserved for others, and how long the job may take."""
    if verdict.end_ms is None:
        return "it ends too soon"
    ends_at = from_epoch_ms(verdict.end_ms)
    left_s = (ends_at - SystemClock().now()).total_seconds()
    left = f", in {format_duration(left_s)}" if left_s >= 1 else ""
    others = next_reservation(found, verdict)
    what = f"it is reserved for {values.users_of(others)} from" if others else "it ends at"
    return f"{what} {values.short_time(ends_at)}{left}; {duration_in_words(found.job.spec)}"


def next_reservation(found: Why, verdict: Verdict) -> CalendarReservation | None:
    """Return the calendar reservation at whose start the device takes the job no more; None if it is its end."""
    status = found.devices.get(verdict.device)
    calendar = () if status is None else status.calendar
    return next((each for each in calendar if to_epoch_ms(each.begins_at) == verdict.end_ms), None)


def duration_in_words(spec: JobSpec) -> str:
    """Return how long a job may take, as a device with an end counts it: in the steps of its shape."""
    for words, exact_s in (("its time limit is", spec.time_limit_s), ("it probably takes", spec.expected_duration_s)):
        if exact_s is not None and (counted_s := Shape.step_of(exact_s)):
            counted = "" if counted_s == exact_s else f", counted as {format_duration(counted_s)}"
            return f"{words} {format_duration(exact_s)}{counted}"
    return "how long the job takes is unknown, and it must not run twice"


def _reserved(found: Why, verdict: Verdict) -> str:
    why = "for which others were preempted" if verdict.by_preemption else "which has waited too long"
    return f"reserved for {called(found, verdict.reserved_for or 0)}, {why}"


def _users_of(found: Why, verdict: Verdict, *, external_processes: bool = True) -> Iterator[str]:
    """Yield the jobs on a device, largest first, then headroom and, if asked for, external processes."""
    status, trouble = found.devices.get(verdict.device), trouble_on(found, verdict)
    if trouble is not None:
        yield trouble
        return
    for run in sorted(verdict.runs, key=lambda each: -each.held_bytes):
        until = f" until {clock(run.ends_ms)}" if run.ends_ms is not None else ""
        yield f"{named(found, run.job_id)} {format_bytes(run.held_bytes)}{until}"
    if status is None or not external_processes:
        return
    if status.external_bytes is None:
        yield "it gives no reading of its memory"
    elif status.external_bytes > 0:
        who = ", ".join(_who(found, each) for each in status.external_processes)
        freed_bytes = sum(each.freed_bytes for each in status.external_processes)
        freed = f", {format_bytes(freed_bytes)} of it freed a moment ago" if freed_bytes else ""
        yield f"external {format_bytes(status.external_bytes)}{freed}" + (f" ({who})" if who else "")
    if status.headroom_bytes > 0:
        yield f"headroom {format_bytes(status.headroom_bytes)}"


def _who(found: Why, external: ExternalProcess) -> str:
    """Return whose an external process is: it may belong to a job that was given another device."""
    if external.job_id is not None:
        return f"{named(found, external.job_id)}, which was given another device"
    return f"{plain(external.user or '?')} {short(external.command or '?')}"


def label(found: Why, uuid: str) -> str:
    """Return the label of a device: ``HOST:INDEX``, or its UUID if no worker has announced it."""
    status = found.devices.get(uuid)
    return plain(uuid) if status is None else values.place_of(status.host, [status.device])


def trouble_on(found: Why, verdict: Verdict) -> str | None:
    """Return why the worker of a device gives it no job now, None if it does or nobody knows."""
    status = found.devices.get(verdict.device)
    return None if status is None or status.trouble is None else plain(status.trouble)


def called(found: Why, job_id: int) -> str:
    """Return ``job`` and the label of a job, or its id if the label is unknown."""
    other = found.others.get(job_id)
    return f"job {other.label if other else job_id}"


def named(found: Why, job_id: int) -> str:
    """Return the same as :func:`called`, with the job's user if known."""
    other = found.others.get(job_id)
    return called(found, job_id) + (f" ({plain(other.spec.account.name)})" if other else "")


def count(number: int, noun: str) -> str:
    """Return *number* and *noun*, in the plural if needed."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
