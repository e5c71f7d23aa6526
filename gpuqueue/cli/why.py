"""``why``."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import datetime

import click

from gpuqueue.cli import render
from gpuqueue.cli.arrays import JobNameType
from gpuqueue.cli.completing import live_ids
from gpuqueue.cli.json_option import json_option
from gpuqueue.cli.why_json import why_to_plain
from gpuqueue.client.looking import Looking
from gpuqueue.clock import SystemClock, from_epoch_ms
from gpuqueue.job import JobState, WaitReason
from gpuqueue.limits import Measure
from gpuqueue.queue.explanation import Explanation, LimitReached, Obstacle, Occupant, Verdict
from gpuqueue.units import format_apart, format_bytes, format_duration
from gpuqueue.waits import Condition
from gpuqueue.why import Why
from gpuqueue.words import plain, short


@click.command()
@click.argument("job_id", metavar="ID", type=JobNameType(), shell_complete=live_ids("queued", "held"))
@json_option
def why(job_id: str, *, as_json: bool) -> None:
    """Tell why a job waits: which device lacks how much, because of whom, and when it may start.

    \b
    Examples:
      gpuqueue why 12
      gpuqueue why 12 --json | jq .start
    """  # noqa: D301 - \b is click's mark for lines to keep
    with Looking() as client:
        found = client.why(job_id)
    click.echo(json.dumps(why_to_plain(found), indent=2) if as_json else story(found))


def story(found: Why) -> str:
    """Return in words why a job waits."""
    job, explanation = found.job, found.explanation
    asked = (
        f"{render.size_of(job.spec)} on {'each of ' if job.spec.gpus > 1 else ''}{render.places_of(job.spec)}"
        f"{render.put_of(job.spec.placement)}"
    )
    lines = [f"job {job.label}  {plain(job.spec.name)} ({plain(job.spec.account.name)}), {asked}"]
    if explanation is None:
        return "\n".join([*lines, _no_wait(job.state, job.label, job.started_at)])
    if job.state is JobState.HELD:
        lines.append(
            f"{str(job.reason or 'held').replace('_', ' ')}: it waits for a person: gpuqueue release {job.label}"
        )
    if job.reason is WaitReason.ARRAY_LIMIT:
        lines.append(
            "array limit: as many of its members are at it as were asked to be at once; the next begins when one ends"
        )
    if explanation.limit is not None:
        lines.append(f"limit  {_limit(found, explanation.limit)}")
    lines += [
        f"order  {_order(explanation, job.spec.account.name, front=job.front is not None)}",
        "",
        _devices(found, explanation),
        "",
    ]
    begins = [f"start  {words}" for words in _not_yet(found)]
    lines += begins or [f"start  {words}" for words in _start(found, explanation)]
    return "\n".join(lines)


def in_brief(found: Why) -> str:
    """Return in a few words when there is room for a job and who goes before it; empty for one that does not wait."""
    explanation = found.explanation
    if explanation is None:
        return ""
    before = explanation.higher + explanation.theirs + explanation.own_before
    order = f"{_count(before, 'job')} before it" if before else "nobody before it"
    start = explanation.start
    if start is None:
        return order
    where = ", ".join(_label(found, device) for device in start.devices)
    if not start.blockers:
        return f"room on {where}; {order}"
    if start.at_ms is not None:
        return f"by {_soon(start.at_ms)} on {where}; {order}"
    return f"as soon as {', '.join(f'job {each}' for each in start.blockers)} ended on {where}; {order}"


def _soon(at_ms: int) -> str:
    """Return a moment of today without its day: a line that is waited at has little room."""
    at = from_epoch_ms(at_ms).astimezone()
    return f"{at:%H:%M}" if at.date() == datetime.now().astimezone().date() else f"{at:%Y-%m-%d %H:%M}"


def _no_wait(state: JobState, job_id: str, started_at: datetime | None) -> str:
    if state.is_end:
        return f"it has ended: {state}. How: gpuqueue show {job_id}"
    return f"it does not wait: {state}" + (f" since {render.when(started_at)}" if started_at else "")


#: What is counted, as people say it.
_NOUNS = {Measure.RUNNING_JOBS: "jobs running", Measure.RUNNING_GPUS: "GPUs in use", Measure.RUNNING_MEM: "in use"}


def _limit(found: Why, limit: LimitReached) -> str:
    used, most, asked = map(limit.measure.shown, (limit.used, limit.most, limit.asked))
    runs = ", ".join(_named(found, each) for each in limit.runs)
    noun = _NOUNS.get(limit.measure, "")
    words = f"{plain(limit.whose)} has {used} of {most} {noun} ({limit.measure}), and this job asks for {asked}"
    return words + (f": {runs}" if runs else "")


def _order(found: Explanation, user: str, *, front: bool) -> str:
    before = [
        (found.higher, f"{_count(found.higher, 'job')} of higher levels"),
        (found.theirs, f"{found.theirs} of {_count(found.users_before, 'user')} with less usage"),
        (found.own_before, f"{found.own_before} of {plain(user)}'s own"),
    ]
    words = ", ".join(text for count, text in before if count)
    moved = f"moved to the front of {plain(user)}'s own; " if front else ""
    return f"level {found.level}; {moved}" + (f"before it: {words}" if words else "nobody is before it")


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _devices(found: Why, explanation: Explanation) -> str:
    if not explanation.devices:
        return "no device is served: start the workers with gpuqueue up"
    rows = []
    for verdict in sorted(explanation.devices, key=lambda each: _place(found, each)):
        promises = format_bytes(max(0, verdict.available_bytes))
        rows.append(
            (_label(found, verdict.device), promises, format_bytes(verdict.total_bytes), _why_not(found, verdict))
        )
    return render.table(("DEVICE", "CAN GIVE", "OF", "WHY NOT THERE"), rows, right=(1, 2))


def _place(found: Why, verdict: Verdict) -> tuple[str, int]:
    status = found.devices.get(verdict.device)
    return verdict.host, status.device.index if status is not None else 0


def _label(found: Why, uuid: str) -> str:
    status = found.devices.get(uuid)
    return plain(uuid) if status is None else plain(f"{status.host}:{render.device_label(status.device)}")


def _why_not(found: Why, verdict: Verdict) -> str:
    spec = found.job.spec
    if verdict.obstacle is Obstacle.MEMORY:
        lacking = format_bytes(spec.mem_bytes - max(0, verdict.available_bytes))
        return f"{lacking} too little: {'; '.join(_takers(found, verdict))}"
    if verdict.obstacle is Obstacle.TOO_SMALL:
        asked, most = format_apart(spec.mem_bytes, verdict.total_bytes)
        return f"too small: {asked} asked for, and it has {most} less its headroom"
    if verdict.obstacle is Obstacle.EXCLUSIVE:
        return f"{'; '.join(_takers(found, verdict, strangers=False))}: it has the device for itself"
    if verdict.obstacle is Obstacle.OCCUPIED:
        return f"the job wants it for itself: {'; '.join(_takers(found, verdict, strangers=not verdict.runs))}"
    status = found.devices.get(verdict.device)
    drained = status.drained if status is not None else None
    words = {
        Obstacle.POOL: f"not in pool {spec.pool}",
        Obstacle.KIND: f"not a {spec.device or 'gpu'}",
        Obstacle.NAMED: "the job names another device" if len(spec.placement.devices) == 1 else "the job names others",
        Obstacle.MODEL: f"not of type {' or '.join(spec.placement.models)}",
        Obstacle.PART: "a MIG instance: a program can use only one",
        Obstacle.DRAINED: f"drained: {drained or 'see gpuqueue gpus'}",
        Obstacle.SILENT: "its worker is silent: see gpuqueue status there",
        Obstacle.SLOTS: f"it runs as many jobs as it may: {len(verdict.runs)}",
        Obstacle.KEPT: f"kept for job {verdict.kept_for}, which has waited too long",
        Obstacle.ALONE: f"it has room, but too few others of its host have: {spec.gpus} are needed",
        Obstacle.NOT_YET: "it has room, but the job may not start yet",
        Obstacle.LIMIT: "it has room, and a limit leaves none: see above",
        Obstacle.FITS: "it fits: it starts there when it is its turn",
    }
    may_start = verdict.obstacle is not Obstacle.FITS or found.job.state is not JobState.HELD
    return plain(words[verdict.obstacle if may_start else Obstacle.NOT_YET])  # a member is held, its array is not


def _takers(found: Why, verdict: Verdict, *, strangers: bool = True) -> Iterator[str]:
    """Yield who has the memory of a device, the largest first; without *strangers* our jobs only."""
    status = found.devices.get(verdict.device)
    if status is not None and status.trouble is not None:
        yield plain(status.trouble)
        return
    for run in sorted(verdict.runs, key=lambda each: -each.held_bytes):
        until = f" until {_clock(run.ends_ms)}" if run.ends_ms is not None else ""
        yield f"{_job(found, run)} {format_bytes(run.held_bytes)}{until}"
    if status is None or not strangers:
        return
    if status.foreign_bytes is None:
        yield "it gives no reading of its memory"
    elif status.foreign_bytes > 0:
        who = ", ".join(f"{short(each.user or '?', 12)} {short(each.command or '?')}" for each in status.strangers)
        yield f"strangers {format_bytes(status.foreign_bytes)}" + (f" ({who})" if who else "")
    if status.headroom_bytes > 0:
        yield f"headroom {format_bytes(status.headroom_bytes)}"


def _job(found: Why, run: Occupant) -> str:
    return _named(found, run.job_id)


def _named(found: Why, job_id: int) -> str:
    other = found.others.get(job_id)
    return f"job {other.label if other else job_id}" + (f" ({short(other.spec.account.name, 12)})" if other else "")


def _clock(at_ms: int) -> str:
    return render.when(from_epoch_ms(at_ms))


def _not_yet(found: Why) -> Iterator[str]:
    """Yield for what else than a device the job waits; nothing where it may start."""
    job = found.job
    if job.state is JobState.HELD:
        yield f"not before somebody releases it: gpuqueue release {job.label}"
    if job.reason is WaitReason.ARRAY_LIMIT:
        yield "not before a member of it has ended"
    if job.reason is WaitReason.PAUSE:
        yield "not before the pause after a rebuild of the store is over: gpuqueue doctor says when that is"
    for each in job.awaits:
        other = found.others.get(each.job_id)
        stands = f"it is {other.state}" if other is not None else "it has ended, which the queue is about to tell"
        ended = {Condition.OK: "has succeeded", Condition.ANY: "has ended", Condition.FAIL: "has failed"}
        yield f"not before job {each.job_id} {ended[each.condition]}: {stands}"
    if job.begins_at is not None and (job.state is JobState.QUEUED or job.begins_at > SystemClock().now()):
        # One that is held may have seen its time go by; and its reason tells of that no more.
        is_retry = job.reason is WaitReason.RETRY or (job.reason is not WaitReason.BEGIN and job.retries > 0)
        why = " (a retry)" if is_retry else ""
        yield f"not before {render.when(job.begins_at)}{why}"


def _no_start(found: Why, explanation: Explanation) -> str:
    """Return why nobody can say when the job starts: behind those that devices are kept for there may well be room."""
    kept_for = {each.kept_for for each in explanation.devices if each.kept_for is not None} - {found.job.id}
    if kept_for:
        first = ", ".join(_named(found, each) for each in sorted(kept_for))
        return f"cannot say: there is room once {first}, for which devices are kept, has started or gone"
    return "cannot say: as things stand, no device that serves now will ever have the room"


def _start(found: Why, explanation: Explanation) -> Iterator[str]:
    start = explanation.start
    if start is None:
        yield _no_start(found, explanation)
        return
    where = ", ".join(_label(found, device) for device in start.devices)
    if not start.blockers and explanation.limit is not None:
        yield f"there is room on {where}: it starts when its limit leaves room, and it is its turn"
        return
    if not start.blockers:
        yield f"there is room on {where}: it starts when it is its turn"
        return
    waits_for = ", ".join(f"job {each}" for each in start.blockers)
    if start.at_ms is not None:
        yield f"by {_clock(start.at_ms)} on {where}, when {waits_for} must have ended, unless others go before it"
        return
    yield f"cannot say: {where} has room when {waits_for} ended, and not all of them have a time limit"
    for each in start.blockers:
        usual = found.usual.get(each)
        if usual is not None:
            yield (
                f"job {each}: runs of its name took {format_duration(usual.median_s)} (half of them), "
                f"{format_duration(usual.p90_s)} (nine of ten), by {_count(usual.runs, 'run')} that lasted as long"
            )
