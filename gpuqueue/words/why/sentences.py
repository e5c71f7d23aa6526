"""Why a job waits, in sentences: all of them, and a short form."""

from __future__ import annotations

from collections.abc import Iterator

from gpuqueue.client.why import Why
from gpuqueue.clock import SystemClock, from_epoch_ms
from gpuqueue.model.job import Job, JobState, WaitReason
from gpuqueue.model.measures import Measure
from gpuqueue.model.preemption import MOST
from gpuqueue.model.why_sentences import DeviceSentence, WhySentences
from gpuqueue.queue.explanation import Explanation, LimitReached, Start, Verdict
from gpuqueue.text.sanitize import plain
from gpuqueue.words import values
from gpuqueue.words.times import clock, local, when
from gpuqueue.words.waiting import SENTENCES
from gpuqueue.words.why.devices import nearest, rest_line, why_not
from gpuqueue.words.why.names import called, count, label, named
from gpuqueue.words.why.preempts import place_lines
from gpuqueue.words.why.reserved import reserved_lines
from gpuqueue.words.why.start import have, limits_of, start_lines

#: Measure of a limit -> its noun in a message.
_NOUNS = {Measure.RUNNING_JOBS: "jobs running", Measure.RUNNING_GPUS: "GPUs in use", Measure.RUNNING_MEM: "in use"}


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
        order=_order(explanation, job.spec.account.name, front=job.front is not None),
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
    for limit in explanation.limits:
        yield f"limit  {_limit(found, limit)}"
    yield from reserved_lines(found, SystemClock().now())


def in_brief(found: Why) -> str:
    """Return in a few words when there is room for a job and how many jobs go before it; empty if it does not wait."""
    explanation = found.explanation
    if explanation is None:
        return ""
    order = place_in_brief(explanation)
    start = explanation.start
    if start is None:
        return order
    return f"{_room_in_brief(found, explanation, start)}; {order}"


def place_in_brief(explanation: Explanation) -> str:
    """Return how many jobs go before a job that waits, in a few words."""
    return f"{count(explanation.before, 'job')} before it" if explanation.before else "nobody before it"


def _room_in_brief(found: Why, explanation: Explanation, start: Start) -> str:
    where = ", ".join(label(found, device) for device in start.devices)
    if not start.blockers and not start.limited:
        return f"room on {where}"
    if start.at_ms is not None:
        return f"by {_soon(start.at_ms)} on {where}"
    if start.limited and explanation.room is not None and explanation.room.reserved_for is not None:
        return f"the room under {limits_of(explanation)} is reserved for {called(found, explanation.room.reserved_for)}"
    if start.room_ms is not None:
        return f"room by {_soon(start.room_ms)} on {where} for the first"
    if start.free_ms is None and start.behind is not None:
        return f"{where} is reserved for {called(found, start.behind)}"
    runs = explanation.runs_in_the_way
    ended = f"{', '.join(called(found, each) for each in runs)} {have(len(runs))} ended"
    return f"as soon as {ended} on {where}" + (f" and under {limits_of(explanation)}" if start.limited else "")


def _soon(at_ms: int) -> str:
    """Return a time without the date if it is today, since the wait line is short."""
    at = local(from_epoch_ms(at_ms))
    return f"{at:%H:%M}" if at.date() == local(SystemClock().now()).date() else f"{at:%Y-%m-%d %H:%M}"


def _held(job: Job) -> str:
    if job.reason is WaitReason.CANNOT_START and job.because is not None:
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
    if preemption.by is not None and preemption.deadline_ms is not None:
        yield f"it is being preempted for {called(found, preemption.by)} by {clock(preemption.deadline_ms)}"
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


def _order(found: Explanation, user: str, *, front: bool) -> str:
    before = [
        (found.higher, f"{count(found.higher, 'job')} of higher priorities"),
        (found.theirs, f"{count(found.theirs, 'job')} of {count(found.users_before, 'user')} with less usage"),
        (found.own_before, f"{count(found.own_before, 'job')} of {plain(user)}'s own"),
    ]
    words = ", ".join(text for count, text in before if count)
    moved = f"moved to the front of {plain(user)}'s own; " if front else ""
    return f"priority {found.priority}; {moved}" + (f"before it: {words}" if words else "nobody is before it")


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
        other = found.others.get(each.job_id)
        state = f"it is {other.state}" if other is not None else "it has ended, which the queue is about to report"
        yield f"not before job {each.job_id} has {each.condition.ended}: {state}"
    if job.begins_at is not None and (job.state is JobState.QUEUED or job.begins_at > SystemClock().now()):
        # The time of a held job may have passed, and its reason does not show it.
        yield f"not before {when(job.begins_at)}{_by_its_last_run(job)}"


def _by_its_last_run(job: Job) -> str:
    """Return a phrase if the begin time of a job comes from a retry or a requeue, else an empty text."""
    if job.reason is WaitReason.RETRY:
        return " (a retry)"
    if job.reason is WaitReason.REQUEUE:
        return " (its last run asked to be run again, with exit code 75)"
    has_run_again = job.retries > 0 or job.requeues > 0 or job.mem_retries > 0
    return " (before it is run again)" if job.state is JobState.HELD and has_run_again else ""
