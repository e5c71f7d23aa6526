"""The story of a job for the page: each step, and each wait between two steps."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import datetime

from gpuqueue.clock import from_epoch_ms
from gpuqueue.model.event import Act, Event
from gpuqueue.model.job import JobState, WaitReason
from gpuqueue.model.job_spec import JobSpec, signal_name
from gpuqueue.model.page import StepKind, StoryStep
from gpuqueue.model.run import BY_SIGNAL, EARLY_SIGNAL, Ending, EndingKind, Record, Run, StartKind, state_after
from gpuqueue.text.units import format_bytes, format_duration
from gpuqueue.words.values import place_of
from gpuqueue.words.waiting import GOALS, TURN

#: Waits that are shorter are no part of the story, in seconds.
SHORT_S = 1.0
#: Kind, words and detail of the step for each act that is one step. What stands in braces is from :func:`_values`.
_STEPS = {
    Act.SUBMIT: (StepKind.STEP, "submitted by {user}", "{page}on {from}"),
    Act.CLAIM: (StepKind.RUN, "run {attempt} claimed by {host}", "{why}"),
    Act.STARTED: (StepKind.RUN, "run {attempt} started", "{devices}"),
    Act.NOTE: (StepKind.NOTE, "{detail}", ""),
    Act.RUN_MARK: (StepKind.NOTE, "{detail}", ""),
    Act.IDLE: (StepKind.NOTE, "{detail}", ""),
    Act.RELEASE_CLAIM: (StepKind.BAD, "the worker released the claim", "{detail}"),
    Act.LOSE: (StepKind.BAD, "run {attempt} was lost", "{detail}"),
    Act.PROMOTE: (StepKind.NOTE, "{noted}", ""),
    Act.PREEMPT: (StepKind.BAD, "preempted", ""),
    Act.CANCEL: (StepKind.BAD, "{end}", "{because}"),
    Act.HOLD: (StepKind.STEP, "held", ""),
    Act.RELEASE: (StepKind.STEP, "released", ""),
    Act.RESTORE: (StepKind.STEP, "restored, because the store or the history had lost it", ""),
    Act.ADOPT: (StepKind.STEP, "another worker took over the run", ""),
    Act.PARK: (StepKind.STEP, "the worker went down, and the run goes on without it", ""),
    Act.READY: (StepKind.STEP, "what it waited for is over", ""),
    Act.EDIT: (StepKind.STEP, "the request was changed", ""),
    Act.MOVE: (StepKind.STEP, "moved {place}", ""),
}
#: The same for the edit that extends a run.
_EXTENDED = (StepKind.STEP, "its time limit was raised to {longer}", "{who}")
#: Acts after which a waiting job waits for something else.
_WAITS_ANEW = {Act.HOLD, Act.RELEASE, Act.READY, Act.EDIT, Act.RESTORE}
_WAITING = {JobState.QUEUED, JobState.HELD}
_STARTS = {
    StartKind.IMMEDIATE: "nobody was ahead of it",
    StartKind.BACKFILL: "it fitted where jobs ahead of it did not",
    StartKind.RESERVED: "the devices had been reserved for it",
}
#: Why a job is queued or held after a run.
_AGAIN = {
    WaitReason.RETRY: "it is retried after a pause",
    WaitReason.REQUEUE: "it asked to be run again",
    WaitReason.LOST_TOO_OFTEN: "its runs were lost too often",
    WaitReason.REQUEUED_TOO_OFTEN: "it asked for that too often",
}
#: What a lack of memory means for a job that may use no more than it asked for, and for one with a device for itself.
_TOO_LITTLE = "It needed more memory than was allocated to it. Run it again with more, or make its batches smaller."
_DEVICE_FULL = "The memory of the device ran out. Run it again on a larger one, or make its batches smaller."
_NOT_FOUND = {126, 127}
_KILL = 9
_CRASHES = {4, 6, 7, 8, 11}
_KILLED = "Mostly the kernel does that, when the memory of the host is full."
_UNCAUGHT = (
    "Shortly before its time limit it got the signal of --signal, which its first process does not catch. "
    "In a shell script put exec before the last command, or set a trap."
)
#: Endings on purpose are no failures.
_MEANINGS = {
    EndingKind.OUT_OF_MEMORY: "The memory of the device ran out. Run it again with more memory, or make its batches "
    "smaller.",
    EndingKind.TIMED_OUT: "It reached its time limit. Run it again with a longer one, or let it go on from a "
    "checkpoint.",
    EndingKind.REFUSED: "It could not be started on any host.",
    EndingKind.LOST: "Its host or its worker did not answer any more. Nothing is known of its end.",
    EndingKind.IDLE: "It held memory and did not use its devices. This site ends such jobs.",
    EndingKind.WRONG_DEVICE: "It used a device that it was not given. This site ends such jobs. Inside a job devices "
    "count from 0: remove what sets CUDA_VISIBLE_DEVICES.",
    EndingKind.NAN: "A metric that it reported was no number, and --stop-on-nan was given. Another run would end like "
    "it: lower the learning rate, or look at its data and its loss.",
    EndingKind.STALLED: "It wrote no output and did not use its devices for as long as --stop-when-stalled says. Its "
    "processes probably waited for each other, for data, or for a disk.",
    EndingKind.CANCELLED: None,
    EndingKind.PREEMPTED: None,
}


def story_of(record: Record, events: Sequence[Event]) -> Iterator[StoryStep]:
    """Yield the story of a job by its *events*, the oldest step first; by its runs alone if there are none."""
    runs = {run.attempt: run for run in record.runs}
    since: datetime | None = None
    reason: WaitReason | None = None
    members_run = False  # of an array, which stays queued while members wait
    for event in events or _events_of(record):
        is_anew = event.act in _WAITS_ANEW
        members_run = members_run or "began" in event.fields
        has_begun = event.act is Act.CLAIM or (members_run and event.state is not JobState.HELD)
        if since is not None and (is_anew or has_begun or event.state.is_end):
            waited_s = (event.at - since).total_seconds()
            if waited_s >= SHORT_S:
                yield _wait(since, reason, waited_s)
            since = None
        yield from _steps(event, runs.get(event.attempt), record)
        if event.state in _WAITING and not has_begun and (since is None or is_anew):
            since, reason = event.at, event.reason or (WaitReason.HELD if event.state is JobState.HELD else None)
    if since is not None and record.job.state in _WAITING:
        yield _wait(since, record.job.reason, None)


def _wait(since: datetime, reason: WaitReason | None, duration_s: float | None) -> StoryStep:
    goal = TURN if reason is None else GOALS[reason]
    return StoryStep(at=since, kind=StepKind.WAIT, words=goal, duration_s=duration_s)


def _events_of(record: Record) -> Iterator[Event]:
    """Yield the events that a job must have had by its runs, for a reader who may not see the real ones."""
    job = record.job

    def event(at: datetime, act: Act, state: JobState, attempt: int = 0, **fields: str) -> Event:
        return Event(id="", job_id=job.id, act=act, state=state, at=at, attempt=attempt, fields=fields)

    yield event(job.submitted_at, Act.SUBMIT, JobState.QUEUED)
    for run in record.runs:
        start = {"start": str(run.start_kind)} if run.start_kind is not None else {}
        yield event(run.claimed_at, Act.CLAIM, JobState.STARTING, run.attempt, host=run.host, **start)
        if run.started_at is not None:
            yield event(run.started_at, Act.STARTED, JobState.RUNNING, run.attempt)
        if run.ended_at is not None:
            state = job.state if run is record.last_run and job.state.is_end else JobState.QUEUED
            yield event(run.ended_at, Act.FINISH, state, run.attempt)
    if job.spec.array is not None and job.started_at is not None:
        yield event(job.started_at, Act.ARRAY, JobState.QUEUED, began="")
    if job.ended_at is not None and all(run.ended_at != job.ended_at for run in record.runs):
        act = Act.CANCEL if job.spec.array is None else Act.ARRAY
        yield event(job.ended_at, act, job.state, because=job.because or "")


def _steps(event: Event, run: Run | None, record: Record) -> Iterator[StoryStep]:
    if event.act is Act.FINISH:
        yield from _finished(event, run, record)
    elif event.act is Act.MARK:
        yield from _marked(event)
    elif event.act is Act.ARRAY:
        yield from _members(event)
    elif event.act in _STEPS:
        kind, words, detail = _EXTENDED if "limit" in event.fields and event.act is Act.EDIT else _STEPS[event.act]
        values = _values(event, run, record)
        step = StoryStep(at=event.at, kind=kind, words=words.format_map(values), detail=detail.format_map(values))
        yield _preempted(step, event) if event.act is Act.PREEMPT else step


def _values(event: Event, run: Run | None, record: Record) -> defaultdict[str, object]:
    spec, start = record.job.spec, StartKind.known(event.fields.get("start"))
    is_end = event.state.is_end or event.state is JobState.CANCELLING
    of_event = {
        "user": spec.account.name,
        "from": spec.account.host,
        "page": "from the web page " if spec.is_from_page else "",
        "host": "a worker",
        "why": "" if start is None else _STARTS[start],
        "devices": place_of(run.host, run.devices) if run is not None and run.devices else "",
        "end": str(event.state) if is_end else "cancelled",  # a part of an array
        "noted": _note_at(event, record) or "promoted to a higher priority, because it has waited long",
        "longer": format_duration(int(event.fields["limit"]) / 1000) if "limit" in event.fields else "",
        "who": f"by {event.fields['by']}" if event.fields.get("by") else "",
        "place": "to the front of its user's jobs" if event.fields.get("front") else "back to its place",
    }
    return defaultdict(str, {**of_event, **event.fields, "attempt": event.attempt})


def _preempted(step: StoryStep, event: Event) -> StoryStep:
    by, deadline = event.fields.get("by"), event.fields.get("deadline")
    return replace(
        step,
        detail=("it must end by" if by != "0" else "its time on the device is over: it must end by")
        if deadline
        else "",
        until=from_epoch_ms(int(deadline)) if deadline else None,
        for_job=(int(by) or None) if by else None,
    )


def _finished(event: Event, run: Run | None, record: Record) -> Iterator[StoryStep]:
    """Yield the end of a run, what the history notes of it, and why the job waits again if it does."""
    ending = run.ending if run is not None else None
    is_good = (event.state if ending is None else state_after(ending)) is JobState.SUCCEEDED
    yield StoryStep(
        at=event.at,
        kind=StepKind.GOOD if is_good else StepKind.BAD,
        words=f"run {event.attempt} ended" + (f": {ending}" if ending is not None else ""),
        detail=_peak(run) if run is not None else "",
        duration_s=run.duration_s if run is not None else None,
    )
    for run_note in run.notes if run is not None else ():
        yield StoryStep(at=event.at, kind=StepKind.NOTE, words=run_note.words)
    note = _note_at(event, record)
    if note is not None:
        yield StoryStep(at=event.at, kind=StepKind.NOTE, words=note)
    if not event.state.is_end:
        words = "held" if event.state is JobState.HELD else "queued again"
        why = _AGAIN.get(event.reason, "") if event.reason is not None else ""
        yield StoryStep(at=event.at, kind=StepKind.STEP, words=words, detail=why)


def _note_at(event: Event, record: Record) -> str | None:
    """Return what the history notes at the time of an event."""
    notes = (each.text for each in record.notes if (each.at, each.attempt) == (event.at, event.attempt))
    return next(notes, None)


def _peak(run: Run) -> str:
    peaks = [device.peak.bytes for device in run.devices if device.peak.bytes is not None]
    if not peaks or len(peaks) < len(run.devices):
        return ""
    return f"peak {format_bytes(max(peaks))}" + (" on one device" if len(peaks) > 1 else "")


def _marked(event: Event) -> Iterator[StoryStep]:
    words = [
        f"{verb} {event.fields[name].replace(',', ', ')}"
        for name, verb in (("add", "tagged"), ("remove", "no longer tagged"))
        if event.fields.get(name)
    ]
    if "note" in event.fields:
        words.append("a note was written" if event.fields["note"] else "the note was removed")
    yield from (StoryStep(at=event.at, kind=StepKind.NOTE, words=each) for each in words)


def _members(event: Event) -> Iterator[StoryStep]:
    if "began" in event.fields:
        yield StoryStep(at=event.at, kind=StepKind.RUN, words="the first member began")
    elif event.state.is_end:
        kind = StepKind.GOOD if event.state is JobState.SUCCEEDED else StepKind.BAD
        yield StoryStep(at=event.at, kind=kind, words=f"all members have ended: {event.state}")


def end_in_words(record: Record) -> str:
    """Return how an ended job ended: the members of an array by state, the last run, or why it did not start.

    The text is empty if the state of the job says it all.
    """
    job, run = record.job, record.last_run
    if job.spec.array is not None:
        counts = job.tally.ended if job.tally is not None else {}
        members = ", ".join(f"{number} {state}" for state, number in counts.items() if number)
        return "; ".join(filter(None, (job.because, members)))
    if run is not None and run.ending is not None:
        return str(run.ending)
    return job.because or ("" if job.attempt or job.state is JobState.SUCCEEDED else "before it started")


def meaning_of(ending: Ending, spec: JobSpec) -> str | None:
    """Return what *ending* of a job means and what helps, None if the run did not fail."""
    if ending.kind is EndingKind.OUT_OF_MEMORY and spec.placement.exclusive:
        return _DEVICE_FULL
    if ending.kind is EndingKind.OUT_OF_MEMORY and spec.cap:
        return _TOO_LITTLE
    if ending.kind is EndingKind.EXITED:
        return _of_code(ending.exit_code or 0)
    if ending.kind is EndingKind.SIGNALLED:
        return _of_signal(ending.signal)
    if ending.is_of_probe:
        return None
    return _UNCAUGHT if EARLY_SIGNAL in ending.detail else _MEANINGS[ending.kind]


def _of_code(code: int) -> str | None:
    if not code:
        return None
    if code in _NOT_FOUND:
        return "A command that it calls is not there, or may not be run."
    name = signal_name(code - BY_SIGNAL)
    if name is not None:
        killed = f" {_KILLED}" if code - BY_SIGNAL == _KILL else ""
        return f"The code means that a process of it was killed by {name}.{killed}"
    return (
        "The program stopped with an error. What it was is usually in the last lines of its output. Correct it, then "
        "run the job again."
    )


def _of_signal(number: int | None) -> str:
    if number == _KILL:
        return f"Something outside of the queue killed it. {_KILLED}"
    return "Its program crashed." if number in _CRASHES else "Something outside of the queue sent it this signal."
