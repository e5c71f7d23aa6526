"""The story of a job, as the page words it, from the values that the API sends."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from factories import make_spec

from gpuqueue.codec.wire import to_plain
from gpuqueue.model import host_limits
from gpuqueue.model.device import Peak, PeakSource
from gpuqueue.model.event import Act, Event
from gpuqueue.model.job import Job, JobState, WaitReason
from gpuqueue.model.page import JobView, Rights
from gpuqueue.model.run import Ending, EndingKind, Note, Record, Run, RunDevice, StartKind
from gpuqueue.text.units import GIB

HERE = Path(__file__).parent
MODULES = HERE.parents[3] / "gpuqueue" / "web"
T0 = datetime(2026, 11, 26, 12, tzinfo=timezone.utc)


def at(seconds: float) -> datetime:
    """Return the time after so many seconds."""
    return T0 + timedelta(seconds=seconds)


def all_shown(*cases: dict[str, Any]) -> list[dict[str, Any]]:
    """Return what the page makes of the values of each case."""
    node = shutil.which("node")
    if node is None:
        pytest.skip("no Node.js to run the page's modules with")
    text = json.dumps(to_plain(cases))
    done = subprocess.run(
        [node, HERE / "story_of_the_page.mjs"], input=text, capture_output=True, text=True, check=True
    )
    found: list[dict[str, Any]] = json.loads(done.stdout)
    return found


def shown(**asked: Any) -> dict[str, Any]:
    """Return what the page makes of some values."""
    return all_shown(asked)[0]


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
VIEW = JobView(at=at(900), record=Record(job=JOB, runs=RUNS, notes=(NOTE,)), rights=Rights(arguments=True))


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
    story = shown(view=VIEW, events=events)["story"]
    assert [
        ["step", "submitted by ada", "on laptop"],
        ["wait", "waited 1m for other jobs", ""],
        ["step", "what it waited for is over", ""],
        ["wait", "waited 30s for a device", ""],
        ["step", "held", ""],
        ["wait", "waited 2m on hold", ""],
        ["step", "released", ""],
        ["wait", "waited 1m 30s for a device", ""],
        ["run", "run 1 claimed by nodeA", "it fitted where jobs ahead of it did not"],
        ["run", "run 1 started", "nodeA, GPU 0"],
        ["note", "tagged night, paper", ""],
        ["note", "a note was written", ""],
        ["bad", "run 1 ended: exit 1", "after 1m 40s, peak 3G"],
        ["note", "it gets 12G now", ""],
        ["step", "queued again", "it is retried after a pause"],
        ["wait", "waited 1m 40s for the pause before a retry", ""],
    ] == [each[:3] for each in story[:16]]
    assert ["note", "no use of its device for 1:00:00"] == story[18][:2]
    assert ["bad", "preempted", 9] == [story[19][each] for each in (0, 1, 3)]
    assert ["good", "run 2 ended: exit 0", "after 1m 40s, peak 3G", None] == story[-1]


def test_without_its_events_the_runs_are_the_story() -> None:
    """So it is for a colleague, who may not see the events."""
    hidden = replace(VIEW, record=replace(VIEW.record, notes=(NOTE, replace(NOTE, text="(hidden)"))))
    story = shown(view=hidden, events=None)["story"]
    assert [
        "submitted by ada",
        "waited 5m for a device",
        "run 1 claimed by nodeA",
        "run 1 started",
        "it gets 12G now",
        "run 1 ended: exit 1",
        "waited 1m 40s for a device",
        "run 2 claimed by nodeA",
        "run 2 started",
        "run 2 ended: exit 0",
    ] == [each[1] for each in story]


def test_a_job_of_the_page_says_so() -> None:
    """It has no directory, and was sent by the service itself."""
    spec = make_spec(cwd="/", snapshot=f"{'ab' * 32}:.")
    view = replace(VIEW, record=Record(job=replace(JOB, spec=spec), runs=()))
    story = shown(view=view, events=[event(0, Act.SUBMIT, JobState.QUEUED)])["story"]
    assert ["step", "submitted by ada", "from the web page on laptop"] == story[0][:3]


def test_a_command_can_be_copied_into_a_shell() -> None:
    """Its arguments are quoted."""
    argv = ["python", "a b.py", "it's", "", "--lr=1e-3", "$HOME"]
    assert argv == shlex.split(shown(argv=argv)["command"])


def test_limits_of_the_host_are_those_of_the_command_line() -> None:
    """The same words as gpuqueue show; nothing for a job without limits."""
    cases: list[dict[str, Any]] = [
        {"cpus": 4, "cpu_mem_bytes": 32 * GIB}, {"cpus": 1, "cpu_mem_bytes": None}, {"cpus": 0.5, "cpu_mem_bytes": GIB}
    ]  # fmt: skip
    nothing = {"cpus": None, "cpu_mem_bytes": None}
    assert [*(host_limits.words(**each) for each in cases), ""] == shown(limits=[*cases, nothing])["limits"]


def test_a_failure_is_explained() -> None:
    """By its code or its signal. A run that succeeded, or was ended on purpose, has not failed."""
    spec = make_spec(time_limit_s=7200.0)
    endings = [
        *map(Ending.from_status, (0, 1, 127, 137, -11)),
        Ending.stopped(EndingKind.TIMED_OUT, -15),
        Ending.stopped(EndingKind.PREEMPTED, -15),
        Ending.stopped(EndingKind.CANCELLED, -15),
    ]
    good, own, missing, killed, crashed, late, *others = shown(failures=endings, spec=spec)["failures"]
    assert [None, None, None] == [good, *others]
    assert own.startswith("The program stopped with an error. What it was is usually in the last lines of its output.")
    assert "A command that it calls is not there, or may not be run." == missing
    assert killed.startswith("The code means that a process of it was killed by SIGKILL. Mostly the kernel does that")
    assert "Its program crashed." == crashed
    assert late.startswith("It may run for 2h. Run it again with a longer time limit")


def test_each_ending_of_a_failed_run_is_explained() -> None:
    """A new one must not leave people alone with its name."""
    words = (MODULES / "failure-words.js").read_text(encoding="utf-8")
    on_purpose = {EndingKind.CANCELLED, EndingKind.PREEMPTED}
    assert {str(each) for each in {*EndingKind} - on_purpose} == set(re.findall(r"^  (\w+):", words, re.MULTILINE))


def test_each_reason_and_each_state_has_words() -> None:
    """A new one must not reach people as a word of the program."""
    words = (MODULES / "job-words.js").read_text(encoding="utf-8")
    named = set(re.findall(r"^  (\w+):", words, re.MULTILINE))
    assert {str(each) for each in WaitReason} <= named
    assert {str(each) for each in StartKind} <= named
    ended = re.search(r"const ENDED = \{(.*)\}", words)
    assert ended
    assert {str(each) for each in JobState if each.is_end} == set(re.findall(r"(\w+):", ended[1]))
