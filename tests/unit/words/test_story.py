"""The story of a job and what its endings mean, in the words that the API sends to the page."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from factories import make_spec

from gpuqueue.model.array import Array, Indexes, Tally
from gpuqueue.model.device import Peak, PeakSource
from gpuqueue.model.event import Act, Event
from gpuqueue.model.job import Job, JobState, WaitReason
from gpuqueue.model.page import StoryStep
from gpuqueue.model.placement import Placement
from gpuqueue.model.run import Ending, EndingKind, Note, Record, Run, RunDevice, RunNote, StartKind
from gpuqueue.text.units import GIB
from gpuqueue.words.story import end_in_words, meaning_of, story_of

T0 = datetime(2026, 11, 26, 12, tzinfo=timezone.utc)


def at(seconds: float) -> datetime:
    """Return the time after so many seconds."""
    return T0 + timedelta(seconds=seconds)


def event(seconds: float, act: Act, state: JobState, attempt: int = 0, **more: Any) -> Event:
    """Return an event; arguments that are no column of it become its fields."""
    reason = more.pop("reason", None)
    return Event(
        id=f"{seconds}-0", act=act, job_id=7, state=state, at=at(seconds), attempt=attempt, reason=reason, fields=more
    )


def run(attempt: int, claimed: float, ended: float, ending: Ending) -> Run:
    """Return a run that has ended."""
    peak = Peak(bytes=3 * GIB, source=PeakSource.NVML_SAMPLED, samples=9)
    device = RunDevice(uuid="GPU-0", lease_bytes=GIB, index=0, name="A5000", peak=peak)
    return Run(
        job_id=7, attempt=attempt, token="", host="nodeA", worker="w", devices=(device,), claimed_at=at(claimed),
        started_at=at(claimed + 1), ended_at=at(ended), duration_s=ended - claimed, ending=ending,
        start_kind=StartKind.BACKFILL,
    )  # fmt: skip


JOB = Job(id=7, spec=make_spec(), state=JobState.SUCCEEDED, submitted_at=at(0), attempt=2)
RUNS = (run(1, 300, 400, Ending.from_status(1)), run(2, 500, 600, Ending.from_status(0)))
NOTE = Note(at=at(400), attempt=1, text="it gets 12G now")
RECORD = Record(job=JOB, runs=RUNS, notes=(NOTE,))


def shown(step: StoryStep) -> tuple[str, str, str, float | None]:
    """Return the parts of a step in order."""
    return str(step.kind), step.words, step.detail, step.duration_s


def test_a_story_has_each_step_and_each_wait() -> None:
    """A dependency, a hold, a run that fails, a retry after a pause, a run that succeeds."""
    queued, held, running = JobState.QUEUED, JobState.HELD, JobState.RUNNING
    events = [
        event(0, Act.SUBMIT, queued, reason=WaitReason.DEPENDENCY),
        event(60, Act.READY, queued),
        event(90, Act.HOLD, held, reason=WaitReason.HELD),
        event(210, Act.RELEASE, queued),
        event(300, Act.CLAIM, JobState.STARTING, 1, host="nodeA", start="backfill"),
        event(301, Act.STARTED, running, 1),
        event(310, Act.MARK, running, 1, add="night,paper", note="look"),
        event(400, Act.FINISH, queued, 1, reason=WaitReason.RETRY),
        event(500, Act.CLAIM, JobState.STARTING, 2, host="nodeA", start="immediate"),
        event(501, Act.STARTED, running, 2),
        event(520, Act.IDLE, running, 2, stage="1", detail="no use of its device for 1:00:00"),
        event(550, Act.PREEMPT, running, 2, by="9", deadline="1764158400000"),
        event(600, Act.FINISH, JobState.SUCCEEDED, 2),
    ]
    story = list(story_of(RECORD, events))
    assert [
        ("step", "submitted by ada", "on laptop", None),
        ("wait", "for other jobs to end", "", 60.0),
        ("step", "what it waited for is over", "", None),
        ("wait", "for its turn", "", 30.0),
        ("step", "held", "", None),
        ("wait", "for its release", "", 120.0),
        ("step", "released", "", None),
        ("wait", "for its turn", "", 90.0),
        ("run", "run 1 claimed by nodeA", "it fitted where jobs ahead of it did not", None),
        ("run", "run 1 started", "nodeA:0", None),
        ("note", "tagged night, paper", "", None),
        ("note", "a note was written", "", None),
        ("bad", "run 1 ended: exit 1", "peak 3G", 100.0),
        ("note", "it gets 12G now", "", None),
        ("step", "queued again", "it is retried after a pause", None),
        ("wait", "for its retry", "", 100.0),
        ("run", "run 2 claimed by nodeA", "nobody was ahead of it", None),
        ("run", "run 2 started", "nodeA:0", None),
        ("note", "no use of its device for 1:00:00", "", None),
        ("bad", "preempted", "it must end by", None),
        ("good", "run 2 ended: exit 0", "peak 3G", 100.0),
    ] == [shown(each) for each in story]
    preempted = story[-2]
    assert (9, datetime(2025, 11, 26, 12, tzinfo=timezone.utc)) == (preempted.for_job, preempted.until)


def test_without_its_events_the_runs_are_the_story() -> None:
    """So it is for a colleague, who may not see the events. The wait that goes on is its end."""
    waiting = replace(RECORD, job=replace(JOB, state=JobState.QUEUED, reason=WaitReason.RETRY), notes=())
    assert [
        "submitted by ada",
        "for its turn",
        "run 1 claimed by nodeA",
        "run 1 started",
        "run 1 ended: exit 1",
        "queued again",
        "for its turn",
        "run 2 claimed by nodeA",
        "run 2 started",
        "run 2 ended: exit 0",
        "queued again",
        "for its retry",
    ] == [each.words for each in story_of(waiting, ())]
    assert [300.0, 100.0, None] == [each.duration_s for each in story_of(waiting, ()) if str(each.kind) == "wait"]
    assert "run 2 ended: exit 0" == list(story_of(RECORD, ()))[-1].words


def test_a_job_that_never_ran_has_an_end() -> None:
    """The queue cancelled it, or all members of an array have ended."""
    job = replace(JOB, state=JobState.CANCELLED, ended_at=at(60), because="dependency 3")
    *_, end = story_of(Record(job=job), ())
    assert ("bad", "cancelled", "dependency 3", None) == shown(end)


def test_each_act_has_words() -> None:
    """A new act must not be left out of the story."""
    said = {each for each in Act if list(story_of(RECORD, [event(0, each, JobState.CANCELLED, note="", detail="x")]))}
    assert {*Act} - {Act.OTHER} == said


def test_a_job_of_the_page_says_so() -> None:
    """It has no directory, and was sent by the service itself."""
    spec = make_spec(cwd="/", snapshot=f"{'ab' * 32}:.")
    first, *_ = story_of(Record(job=replace(JOB, spec=spec)), [event(0, Act.SUBMIT, JobState.QUEUED)])
    assert ("step", "submitted by ada", "from the web page on laptop", None) == shown(first)


def test_a_failure_is_explained() -> None:
    """By its code or its signal. A run that succeeded, or was ended on purpose, has not failed."""
    assert meaning_of(Ending.from_status(0), make_spec()) is None
    words = [meaning_of(Ending.from_status(each), make_spec()) or "" for each in (1, 127, 137, -11)]
    own, missing, killed, crashed = words
    assert own.startswith("The program stopped with an error. What it was is usually in the last lines of its output.")
    assert "A command that it calls is not there, or may not be run." == missing
    assert killed.startswith("The code means that a process of it was killed by SIGKILL. Mostly the kernel does that")
    assert "Its program crashed." == crashed
    on_purpose = {EndingKind.CANCELLED, EndingKind.PREEMPTED}
    endings = [Ending(kind=each, exit_code=1, signal=9) for each in EndingKind]
    unexplained = {each.kind for each in endings if meaning_of(each, make_spec()) is None}
    assert on_purpose == unexplained


@pytest.mark.parametrize(
    ("terms", "words"),
    [
        ({}, "It needed more memory than was allocated to it. Run it again with more"),
        ({"cap": False}, "The memory of the device ran out. Run it again with more memory"),
        ({"placement": Placement(exclusive=True)}, "The memory of the device ran out. Run it again on a larger one"),
    ],
)
def test_the_memory_of_the_device_ran_out_only_if_the_job_could_use_it(terms: dict[str, Any], words: str) -> None:
    ending = Ending.stopped(EndingKind.OUT_OF_MEMORY, 1, "CUDA out of memory")
    assert (meaning_of(ending, make_spec(**terms)) or "").startswith(words)


def test_an_ended_job_says_how() -> None:
    """Regression: a job whose run was not recorded yet "succeeded before it started", and so did an array."""
    bare = replace(JOB, state=JobState.SUCCEEDED, attempt=1)
    assert "" == end_in_words(Record(job=bare))
    assert "exit 0" == end_in_words(replace(RECORD, job=bare))
    stopped = replace(bare, state=JobState.CANCELLED, attempt=0)
    assert "before it started" == end_in_words(Record(job=stopped))
    assert "dependency 3 failed" == end_in_words(Record(job=replace(stopped, because="dependency 3 failed")))
    tally = Tally(left=Indexes(), held=Indexes(), ended={"succeeded": 3, "failed": 1, "lost": 0})
    array = replace(bare, spec=make_spec(array=Array.parse("0-3")), attempt=0, tally=tally)
    assert "3 succeeded, 1 failed" == end_in_words(Record(job=array))


def test_the_notes_of_a_run_follow_its_end() -> None:
    """What the ending of a run does not say is a step of its own, also for a reader who sees no events."""
    noted = replace(RUNS[1], notes=(RunNote(kind="hidden_failure", items=("ValueError: bad",)),))
    steps = [*story_of(replace(RECORD, runs=(RUNS[0], noted), notes=()), ())]

    assert ("note", noted.notes[0].words, "", None) == shown(steps[-1])
    assert "run 2 ended: exit 0" == steps[-2].words


def test_an_array_waits_until_its_first_member_begins_and_while_it_is_held() -> None:
    """Regression: an array of which members ran for an hour "waited 1:00:00 for a device"."""
    queued, failed = JobState.QUEUED, JobState.FAILED
    events = [
        event(0, Act.SUBMIT, queued, reason=WaitReason.DEVICE),
        event(60, Act.ARRAY, queued, began="60000"),
        event(100, Act.HOLD, JobState.HELD, reason=WaitReason.HELD),
        event(160, Act.RELEASE, queued),
        event(3600, Act.ARRAY, failed),
    ]
    job = replace(JOB, spec=make_spec(array=Array.parse("0-3")), state=failed, attempt=0, started_at=at(60))
    ended = Record(job=replace(job, ended_at=at(3600)))

    waits = [
        [(step.words, step.duration_s) for step in story_of(ended, each) if step.kind == "wait"]
        for each in (events, [])
    ]

    device, held = ("for a device that serves it", 60.0), ("for its release", 60.0)
    assert [[device, held], [("for its turn", 60.0)]] == waits
