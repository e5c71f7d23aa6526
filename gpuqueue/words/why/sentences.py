"""Why a job waits, in sentences: all of them, and a short form."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta

from gpuqueue.client.why import Why
from gpuqueue.clock import SystemClock, from_epoch_ms
from gpuqueue.model.dependencies import Condition
from gpuqueue.model.job import Job, JobState, WaitReason
from gpuqueue.model.measures import Measure
from gpuqueue.model.placement import EXTERNAL_SHARE
from gpuqueue.model.preemption import MOST
from gpuqueue.model.why_sentences import DeviceSentence, WhySentences
from gpuqueue.queue.explanation import NEVER_THERE, Explanation, LimitReached, Obstacle, Occupant, Start, Verdict
from gpuqueue.text.sanitize import plain
from gpuqueue.text.units import format_duration
from gpuqueue.words import values
from gpuqueue.words.values import clock, short_time, when
from gpuqueue.words.waiting import GOALS, SENTENCES, TURN
from gpuqueue.words.why.devices import called, count, label, named, nearest, rest_line, why_not
from gpuqueue.words.why.start import about_in_brief, have, limits_of, start_lines

#: Measure of a limit -> its noun in a message.
_NOUNS = {Measure.RUNNING_JOBS: "jobs running", Measure.RUNNING_GPUS: "GPUs in use", Measure.RUNNING_MEM: "in use"}
#: Most runs that are named. The store chooses among all of them, by the least work lost.
MOST_RUNS = 4
#: Obstacles of a device on which no run is preempted for the job.
_SHUT = NEVER_THERE | {Obstacle.DRAINED, Obstacle.CALENDAR, Obstacle.END, Obstacle.SILENT}
#: Most hosts with a line of their own.
MOST_HOSTS = 3
#: Reasons of a job that waits only for room on a device.
_FOR_ROOM = {None, WaitReason.MEMORY, WaitReason.SLOTS, WaitReason.RESERVATION}

#: Job with a reservation on a host -> time of the reservation.
Holders = Mapping[int, "datetime | None"]


def sentences(found: Why) -> WhySentences:
    """Return why a job waits, in sentences."""
    job, explanation = found.job, found.explanation
    if explanation is None:
        return WhySentences(asked=_asked(job), obstacles=(_no_wait(job), *_preemption(found)))
    devices = nearest(found, explanation)
    return WhySentences(
        asked=_asked(job),
        start=tuple(_not_yet(found)) or (*start_lines(found, explanation), *place_lines(found)),
        obstacles=tuple(_obstacles(found, explanation)),
        devices=tuple(_device(found, each) for each in devices),
        rest=tuple(rest_line(explanation, devices)),
        order=_order(found, explanation, devices),
    )


def _device(found: Why, verdict: Verdict) -> DeviceSentence:
    return DeviceSentence(
        uuid=verdict.device,
        label=label(found, verdict.device),
        available_bytes=max(0, verdict.available_bytes),
        total_bytes=verdict.total_bytes,
        why_not=why_not(found, verdict),
    )


def _asked(job: Job) -> str:
    spec = job.spec
    return f"job {job.label}  {plain(spec.name)} ({plain(spec.account.name)}), {values.asked_in_words(spec)}"


def _obstacles(found: Why, explanation: Explanation) -> Iterator[str]:
    """Yield what holds the job back on all devices."""
    job = found.job
    if job.state is JobState.HELD:
        yield _held(job)
    if job.reason is WaitReason.ARRAY_LIMIT:
        yield f"array limit: {SENTENCES[job.reason]}; the next member starts when one ends"
    awaiting = 0 if job.tally is None else len(job.tally.awaiting)
    if awaiting and job.reason is not WaitReason.DEPENDENCY:
        yield f"{count(awaiting, 'member')} of it cannot start before their member of job {job.spec.waits.followed}"
    for limit in explanation.limits:
        yield f"limit  {_limit(found, limit)}"
    yield from reserved_lines(found, SystemClock().now())


def waits_in_brief(job: Job, found: Why | None, so_far: str = "") -> str:
    """Return in one line what *job* waits for, when there is room, and how many jobs go before it.

    *found* may be older than *job*, or missing. *so_far* is how long it has waited, in words.
    """
    explanation = None if found is None else found.explanation
    goal = TURN if job.reason is None else GOALS[job.reason]
    if explanation is not None and job.reason is WaitReason.MEMORY and explanation.has_room:
        goal = TURN  # the store has one reason for both
    waits = f"job {job.label} waits {goal}{so_far and f', {so_far} so far'}"
    return waits if found is None or explanation is None else f"{waits}; {_in_brief(found, explanation)}"


def _in_brief(found: Why, explanation: Explanation) -> str:
    start = explanation.start
    if start is None:
        return place_in_brief(explanation)
    where = ", ".join(label(found, device) for device in start.devices)
    if explanation.has_room:
        return place_in_brief(explanation, f" on {where}")
    return f"{_room_in_brief(found, explanation, start, where)}; {place_in_brief(explanation)}"


def place_in_brief(explanation: Explanation, where: str = "") -> str:
    """Return how many jobs go before a job that waits, and whether there is room now, in a few words.

    *where* is on which devices, if the reader should know.
    """
    before = explanation.before
    if not explanation.has_room:
        return f"{count(before, 'job')} before it" if before else "nobody before it"
    order = f"but {count(before, 'job')} {'is' if before == 1 else 'are'}" if before else "and nobody is"
    return f"there is room{where}, {order} before it"


def _room_in_brief(found: Why, explanation: Explanation, start: Start, where: str) -> str:
    if start.at_ms is not None:
        return f"by {short_time(from_epoch_ms(start.at_ms))} on {where}{_sooner(found, explanation)}"
    if start.limited and explanation.room is not None and explanation.room.reserved_for is not None:
        return f"the room under {limits_of(explanation)} is reserved for {called(found, explanation.room.reserved_for)}"
    if start.room_ms is not None:
        sooner = _sooner(found, explanation)
        return f"room by {short_time(from_epoch_ms(start.room_ms))} on {where} for the first{sooner}"
    if start.free_ms is None and start.behind is not None:
        return f"{where} is reserved for {called(found, start.behind)}"
    runs = explanation.runs_in_the_way
    ended = f"{', '.join(called(found, each) for each in runs)} {have(len(runs))} ended"
    about = about_in_brief(found, explanation)
    about = about and f", {about}"
    return f"as soon as {ended} on {where}{about}" + (f" and under {limits_of(explanation)}" if start.limited else "")


def _sooner(found: Why, explanation: Explanation) -> str:
    """Return when the runs in the way have probably ended, beside the time at which they must have."""
    about = about_in_brief(found, explanation)
    return about and f", probably {about}"


def _held(job: Job) -> str:
    if job.because is not None:
        return f"held: {plain(job.because)}. Repair that, then: gpuqueue release {job.label}"
    return f"{str(job.reason or 'held').replace('_', ' ')}: it waits until it is released: gpuqueue release {job.label}"


def _no_wait(job: Job) -> str:
    """Return the state of a job without an explanation, or that the members of an array wait."""
    if job.state.is_end:
        return f"it has ended: {job.state}. How: gpuqueue show {job.label}"
    if job.state is JobState.HELD:
        return _held(job)
    if job.state is JobState.QUEUED and job.tally is not None:
        return f"its members wait to be run again: gpuqueue why {job.label}_N shows each"
    since = f" since {when(job.started_at)}" if job.started_at else ""
    return f"it does not wait: {job.state}{since}"


def _preemption(found: Why) -> Iterator[str]:
    """Yield the lines about the preemption of a run: by which job, the deadline, and whether it was the last time."""
    preemption = found.preemption
    if preemption is None or not found.job.state.is_active:
        return
    if preemption.deadline_ms is not None:
        cause = (
            "at the end of its time on the device," if preemption.by is None else f"for {called(found, preemption.by)}"
        )
        yield f"it is being preempted {cause} by {clock(preemption.deadline_ms)}"
    if preemption.times >= MOST:
        yield f"it was preempted {count(preemption.times, 'time')}: it is not preempted again"


def _limit(found: Why, limit: LimitReached) -> str:
    used, most, asked = map(limit.measure.shown, (limit.used, limit.most, limit.asked))
    runs = ", ".join(named(found, each) for each in limit.runs)
    noun = _NOUNS.get(limit.measure, "")
    words = f"{plain(limit.whose)} has {used} of {most} {noun} ({limit.measure}), and this job asks for {asked}"
    if limit.reserved_for is not None:
        first = named(found, limit.reserved_for)
        words = f"the room under it is reserved for {first}, which has waited too long: {words}"
    return words + (f": {runs}" if runs else "")


def _order(found: Why, explanation: Explanation, devices: Sequence[Verdict]) -> str:
    """Return the priority of the job, the jobs before it, and the rule that decides; *devices* are the nearest."""
    job, user = found.job, plain(found.job.spec.account.name)
    before = [
        (explanation.higher, f"{count(explanation.higher, 'job')} of higher priorities"),
        (
            explanation.theirs,
            f"{count(explanation.theirs, 'job')} of {count(explanation.users_before, 'user')} with less usage",
        ),
        (explanation.own_before, f"{count(explanation.own_before, 'job')} of {user}'s own"),
    ]
    words = ", ".join(text for count, text in before if count)
    return "; ".join(
        filter(
            None,
            [
                f"priority {explanation.priority}",
                "" if job.promoted is None else f"promoted from {job.spec.priority} by aging",
                "" if job.front is None else f"moved to the front of {user}'s own",
                f"before it: {words}" if words else "nobody is before it",
                _rule(found, explanation, devices),
            ],
        )
    )


def _rule(found: Why, explanation: Explanation, devices: Sequence[Verdict]) -> str:
    """Return the rule by which others go first or the room is held; empty if the job lacks nothing but room."""
    nearest_one = devices[0] if devices else None
    if explanation.limits:
        return "the limit decides"
    if nearest_one is not None and nearest_one.reserved_for is not None and nearest_one.obstacle is Obstacle.RESERVED:
        return f"the reservation for {called(found, nearest_one.reserved_for)} decides"
    if nearest_one is not None and nearest_one.obstacle is Obstacle.CALENDAR:
        return "the calendar decides"
    rules = ((explanation.higher, "priority"), (explanation.theirs, "fair share"), (explanation.own_before, "arrival"))
    return next((f"{rule} decides" for jobs, rule in rules if jobs), "")


def _not_yet(found: Why) -> Iterator[str]:
    """Yield what the job waits for besides a device; nothing if it may start."""
    job = found.job
    if job.state is JobState.HELD:
        yield f"not before somebody releases it: gpuqueue release {job.label}"
    if job.reason is WaitReason.ARRAY_LIMIT:
        yield "not before a member of it has ended"
    if job.reason is WaitReason.PAUSE:
        yield "not before the pause after a rebuild of the store is over: gpuqueue doctor says when that is"
    for each in job.awaits:
        if each.condition is Condition.CORR:
            yield from _not_yet_followed(job, each.job_id)
            continue
        other = found.others.get(each.job_id)
        state = f"it is {other.state}" if other is not None else "it has ended, which the queue is about to report"
        yield f"not before job {each.job_id} has {each.condition.ended}: {state}"
    if job.begins_at is not None and (job.state is JobState.QUEUED or job.begins_at > SystemClock().now()):
        # The time of a held job may have passed, and its reason does not show it.
        yield f"not before {when(job.begins_at)}{_by_its_last_run(job)}"


def _not_yet_followed(job: Job, array_id: int) -> Iterator[str]:
    """Yield what a member, or all waiting members of an array, wait for in the array that theirs follows."""
    if job.member is not None:
        other = f"{array_id}_{job.member.index}"
        yield f"not before its member of job {array_id} has succeeded: gpuqueue why {other}"
    elif job.reason is WaitReason.DEPENDENCY:
        yield f"not before members of job {array_id} have succeeded, each before its own: gpuqueue show {array_id}"


def _by_its_last_run(job: Job) -> str:
    """Return a phrase if the begin time of a job comes from a retry or a requeue, else an empty text."""
    if job.reason is WaitReason.RETRY:
        return " (a retry)"
    if job.reason is WaitReason.REQUEUE:
        return " (its last run asked to be run again, with exit code 75)"
    has_run_again = job.retries > 0 or job.requeues > 0 or job.mem_retries > 0
    return " (before it is run again)" if job.state is JobState.HELD and has_run_again else ""


def place_lines(found: Why) -> Iterator[str]:
    """Yield the line about the runs that the job may preempt, and from when on; nothing if there are none."""
    runs = runs_below(found)
    if not runs:
        return
    names = [named(found, job.id) + _from(at) for job, at in runs[:MOST_RUNS]]
    more = f" or {len(runs) - MOST_RUNS} more" if len(runs) > MOST_RUNS else ""
    left = format_duration(found.preempt_grace_s)
    yield f"it may preempt {' or '.join(names)}{more}; a preempted job has {left} to end"


def _from(at: datetime) -> str:
    return f" from {values.when(at)} on" if at > SystemClock().now() else ""


def runs_below(found: Why) -> list[tuple[Job, datetime]]:
    """Return the jobs whose runs this job may preempt, and from when on, the earliest first.

    The list is empty if there is room, if the job waits for something else, or if preempting all of them does not make
    enough room. The store chooses among them at its next tick.
    """
    explanation = found.explanation
    if explanation is None or found.job.state is not JobState.QUEUED or explanation.limits:
        return []
    if found.job.promoted is not None or (explanation.start is not None and not explanation.start.blockers):
        return []
    after = timedelta(seconds=found.preempt_after_s)
    ids = {run.job_id for each in _could_have(found, explanation) for run in each.runs if _may_go(found, run)}
    runs = [found.others[each] for each in sorted(ids)]
    may = [(job, job.started_at + after) for job in runs if job.started_at is not None]
    return sorted(may, key=lambda each: (each[1], each[0].id))


def _could_have(found: Why, explanation: Explanation) -> list[Verdict]:
    """Return the devices that have room for the job only after preemption, on hosts with enough of them."""
    possible = [
        each
        for each in explanation.devices
        if each.device in found.devices
        and _may_take(found, each)
        and each.obstacle not in _SHUT
        and _fits(found, each, _stay(found, each.runs))
    ]
    enough = found.with_enough(possible)
    return [each for each in enough if not _fits(found, each, [run for run in each.runs if not run.going])]


def _may_take(found: Why, device: Verdict) -> bool:
    """Return whether *device* is reserved for no other job, or for a job of a priority that may be preempted."""
    if device.reserved_for in {None, found.job.id}:
        return True
    holder = found.others.get(device.reserved_for)
    if holder is None:
        return False
    return (holder.spec.priority if holder.promoted is None else holder.promoted) in found.preempts


def _stay(found: Why, runs: Sequence[Occupant]) -> list[Occupant]:
    return [run for run in runs if not run.going and not _may_go(found, run)]


def _fits(found: Why, device: Verdict, stay: Sequence[Occupant]) -> bool:
    """Return whether the job fits on *device* if only the runs *stay* remain, by the rules of ``preempt.lua``."""
    spec, status = found.job.spec, found.devices[device.device]
    if spec.placement.exclusive and stay:
        return False
    if spec.placement.whole and (status.external_bytes or 0) * EXTERNAL_SHARE > device.total_bytes:
        return False  # external processes cannot be preempted
    free_bytes = device.capacity_bytes - sum(run.held_bytes for run in stay)
    return free_bytes >= spec.mem_bytes and len(stay) < status.slots


def _may_go(found: Why, run: Occupant) -> bool:
    job = found.others.get(run.job_id)
    if job is None or job.state is not JobState.RUNNING or job.started_at is None or run.going:
        return False
    priority = job.spec.priority if run.priority is None else run.priority
    return job.spec.requeue and priority in found.preempts and run.preemptions < MOST


def reserved_lines(found: Why, now: datetime) -> Iterator[str]:
    """Yield a line for each device that is reserved for this job, and for each host of :func:`reserved_for_others`.

    If there is neither, yield why nothing is reserved for a job that has waited long enough.
    """
    own = _ids(found)
    for uuid, status in found.devices.items():
        if status.reservation is not None and status.reservation.job_id in own:
            where = f"{label(found, uuid)}{_since(status.reservation.since)}"
            yield f"reserved for this job: {where}; others start there only if that does not delay it"
    hosts = reserved_for_others(found, now)
    rule = f"a host reserves devices for {count(found.reservations, 'job')} at a time (setting reservations)"
    for host, holders in list(hosts.items())[:MOST_HOSTS]:
        jobs = " and ".join(named(found, each) + _since(at) for each, at in holders.items())
        yield f"reserved on {plain(host)} for {jobs}; nothing is reserved for this job yet: {rule}"
    if len(hosts) > MOST_HOSTS:
        yield f"reserved on {len(hosts) - MOST_HOSTS} more hosts: see gpuqueue gpus"
    if not hosts:
        yield from _not_reserved(found, now)


def _not_reserved(found: Why, now: datetime) -> Iterator[str]:
    """Yield why no device is reserved for a job that has waited long enough. The rules: docs/explanation/order.md."""
    explanation = found.explanation
    start = explanation.start if explanation is not None else None
    if explanation is None or start is None or start.in_vain or not _may_have_reservation(found, now):
        return
    if explanation.reserve_from_ms is not None:
        until = clock(explanation.reserve_from_ms)
        yield f"nothing is reserved for any job before {until}: devices were idle for others (setting reserve_budget)"
    else:
        is_alone = all(each.reservation is None for each in found.devices.values())
        others = "" if is_alone else "devices are reserved for other jobs, or "
        yield f"nothing is reserved for this job yet: {others}the runs in its way are not likely to end soon enough"


def _since(at: datetime | None) -> str:
    return f" since {values.when(at)}" if at is not None else ""


def reserved_for_others(found: Why, now: datetime) -> dict[str, Holders]:
    """Return the hosts that have their maximum of reservations, so that this job gets none there.

    The result is empty if the job has not waited long enough, could start now, or has a reservation.
    """
    explanation = found.explanation
    if explanation is None or not _may_have_reservation(found, now):
        return {}
    possible = {device.host for device in explanation.devices if device.obstacle not in NEVER_THERE}
    hosts: dict[str, dict[int, datetime | None]] = {host: {} for host in sorted(possible)}
    for status in found.devices.values():
        if status.reservation is not None and status.host in hosts:
            hosts[status.host][status.reservation.job_id] = status.reservation.since
    return {host: holders for host, holders in hosts.items() if len(holders) >= found.reservations}


def _may_have_reservation(found: Why, now: datetime) -> bool:
    """Return whether the job has waited long enough for a reservation, and has none."""
    if found.reserve_after_s is None or not found.reservations or not _wants_room(found, now):
        return False
    own = _ids(found)
    return not any(each.reservation and each.reservation.job_id in own for each in found.devices.values())


def _ids(found: Why) -> set[int | None]:
    """Return the id of the job, and that of its array: a reservation of an array is for its next member."""
    return {found.job.id, found.job.member.array_id if found.job.member is not None else None}


def _wants_room(found: Why, now: datetime) -> bool:
    """Return whether the job waits only for room, and has waited long enough for a reservation."""
    job, explanation = found.job, found.explanation
    if explanation is None or explanation.limits or job.state is not JobState.QUEUED:
        return False
    could_start = explanation.start is not None and not explanation.start.blockers
    if explanation.waits_since_ms is None or could_start:
        return False
    waited_s = (now - from_epoch_ms(explanation.waits_since_ms)).total_seconds()
    return job.reason in _FOR_ROOM and waited_s >= (found.reserve_after_s or 0.0)
