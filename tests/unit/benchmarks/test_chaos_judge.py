"""Tests of the chaos judge: it must find each kind of fault that the chaos run is about."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timezone
from typing import Any

import pytest
from factories import make_spec

from benchmarks.chaos.effects import Line, Trace
from benchmarks.chaos.evidence import SOON_S, goes_soon
from benchmarks.chaos.judge import Evidence, judge
from benchmarks.chaos.kills import Kill
from benchmarks.chaos.one_job import Fault
from benchmarks.chaos.plan import Breaks, JobPlan, plan_jobs, plan_kills
from benchmarks.chaos.report import Signs, story
from benchmarks.chaos.traffic import Ack
from gpuqueue.model.event import Act, Event
from gpuqueue.model.job import Job, JobState
from gpuqueue.model.run import Ending, Record, Run

PLAN = JobPlan(name="j1", duration_s=1.0, mem_gib=1)
#: The job's times in seconds: submitted at 100, claimed at 101, begun at 102, ended at 104.
ID, NAME, TOKEN = 7, "j1.0", "1.aa"


def at(second: float) -> datetime:
    return datetime.fromtimestamp(second, timezone.utc)


def event(second: float, act: Act, state: JobState, attempt: int = 1, **fields: str) -> Event:
    return Event(id=f"{second}-0", act=act, job_id=ID, state=state, at=at(second), attempt=attempt, fields=fields)


def run(attempt: int = 1, token: str = TOKEN, ending: Ending | None = None, ended: float = 104) -> Run:
    return Run(
        job_id=ID,
        attempt=attempt,
        token=token,
        host="h",
        worker="h/dev/1",
        devices=(),
        claimed_at=at(101),
        ended_at=at(ended),
        ending=ending or Ending.from_status(0),
    )


def trace(token: str = TOKEN, begin: float = 102, end: float = 103, code: str | None = "0", *more: Line) -> Trace:
    lines = [line(begin, "begin", token), line(end, "alive", token)]
    if code is not None:
        lines.append(line(end, "end", token, code))
    return Trace(token=token, lines=(*lines, *more))


def line(second: float, what: str, token: str = TOKEN, argument: str = "-", role: str = "first") -> Line:
    return Line(token=token, role=role, pid=1, what=what, at=second, argument=argument)


STORY = (
    event(100, Act.SUBMIT, JobState.QUEUED, 0),
    event(101, Act.CLAIM, JobState.STARTING, token=TOKEN, worker="h/dev/1"),
    event(101.5, Act.STARTED, JobState.RUNNING, token=TOKEN),
    event(104, Act.FINISH, JobState.SUCCEEDED, token=TOKEN),
)
#: The story of a job whose first run is lost and whose second run succeeds.
LOST_STORY = (
    *STORY[:3],
    event(104, Act.LOSE, JobState.QUEUED, token=TOKEN),
    event(105, Act.CLAIM, JobState.STARTING, 2, token="2.bb"),
    event(106, Act.STARTED, JobState.RUNNING, 2, token="2.bb"),
    event(109, Act.FINISH, JobState.SUCCEEDED, 2, token="2.bb"),
)
LOST_RUNS = (run(ending=Ending.lost("its shim vanished")), run(2, "2.bb", ended=109))
SHIM_KILLED = Kill(plan=plan_kills(1, 1, 1, grace_s=1)[0], at=103, until=103, what="", shims=frozenset({TOKEN}))


def evidence(**changes: Any) -> Evidence:
    """Return the complete evidence of one job that succeeded, with *changes* applied."""
    plan, state = changes.pop("plan", PLAN), changes.pop("state", JobState.SUCCEEDED)
    runs = changes.pop("runs", (run(),))
    spec = make_spec(name=NAME)
    job = Job(id=ID, spec=spec, state=state, submitted_at=at(100), attempt=changes.pop("attempt", len(runs)))
    whole: dict[str, Any] = {
        "acks": {ID: Ack(job_id=ID, plan=plan, name=NAME, at=100)},
        "unsure": {},
        "records": {ID: Record(job=job, runs=runs)},
        "stories": {ID: STORY},
        "traces": {NAME: [trace()]},
        "kills": [],
    }
    return Evidence(**{**whole, **changes})


def lost_once(**changes: Any) -> Evidence:
    """Return the complete evidence of a job whose first run lost its shim, with *changes* applied."""
    whole: dict[str, Any] = {
        "runs": LOST_RUNS,
        "stories": {ID: LOST_STORY},
        "traces": {NAME: [trace(code=None), trace("2.bb", 107, 108)]},
        "kills": [SHIM_KILLED],
    }
    return evidence(**{**whole, **changes})


def test_no_job_of_the_plan_asks_to_be_run_again() -> None:
    """No planned job exits with status 75, which asks for another run.

    Two of 950 jobs drew 75. They came back after each end for as long as somebody released them, and counted as lost.
    """
    drawn = {plan.exit_code for plan in plan_jobs(7, 4000, longest_s=5.0)}

    assert len(drawn) > 100  # of 1 to 120, and 0
    assert 75 not in drawn


def test_what_went_well_has_no_finding() -> None:
    """A clean run has no finding. A run that is lost because its shim was killed is counted, and is not a fault."""
    assert () == judge(evidence()).findings
    after_a_loss = judge(lost_once())

    assert () == after_a_loss.findings
    assert (2, 1, {"its shim vanished": 1}) == (after_a_loss.runs, after_a_loss.again, dict(after_a_loss.losses))


def ended(ending: Ending, state: JobState = JobState.FAILED, **changes: Any) -> Evidence:
    """Return the evidence of a job whose only run ended with *ending*."""
    asked = [event(103, Act.CANCEL, JobState.CANCELLING)] if state is JobState.CANCELLED else []
    last = event(104, Act.FINISH, state, token=TOKEN)
    return evidence(runs=(run(ending=ending),), state=state, stories={ID: (*STORY[:3], *asked, last)}, **changes)


def forgotten() -> Evidence:
    """Return the evidence of a job that a worker claimed and forgot, while it went on to claim the next job."""
    runs = (run(ending=Ending.lost("no worker renewed its lease in time")), replace(LOST_RUNS[1], claimed_at=at(105)))
    return lost_once(runs=runs, traces={NAME: [trace("2.bb", 107, 108)]}, kills=[])


@pytest.mark.parametrize(
    ("fault", "seen"),
    [
        (Fault.LOST, lambda: evidence(records={}, stories={})),
        (Fault.LOST, lambda: evidence(state=JobState.QUEUED, stories={ID: STORY[:1]}, runs=(), traces={})),
        (Fault.LOST, lambda: evidence(unknown=[ID])),
        (Fault.LOST, lambda: evidence(acks={ID: Ack(job_id=ID, plan=PLAN, name="other", at=1)}, unsure={NAME: PLAN})),
        (Fault.LOST, lambda: evidence(traces={NAME: [trace()], "j9.0": [trace()]})),
        (Fault.DOUBLED, lambda: lost_once(traces={NAME: [trace(code=None), trace("2.bb", 102.5, 108)]})),
        (Fault.DOUBLED, lambda: evidence(traces={NAME: [trace(TOKEN, 102, 103, "0", line(102, "doubled"))]})),
        (Fault.DOUBLED, lambda: evidence(traces={NAME: [trace(TOKEN, 102, 103, "0", line(102.1, "begin"))]})),
        (Fault.DOUBLED, lambda: lost_once(runs=(run(), LOST_RUNS[1]))),
        (Fault.ORPHANED, lambda: evidence(processes=["shim 1.aa"])),
        (Fault.ORPHANED, lambda: evidence(traces={NAME: [trace(TOKEN, 102, 103, "0", line(104.1, "alive"))]})),
        (Fault.WRONG, lambda: evidence(stories={ID: (*STORY[:2], STORY[3])})),
        (Fault.WRONG, lambda: evidence(stories={ID: (*STORY, event(105, Act.CLAIM, JobState.STARTING, 2))})),
        (Fault.WRONG, lambda: evidence(stories={ID: STORY[:3]})),
        (Fault.WRONG, lambda: evidence(attempt=2)),
        (Fault.WRONG, lambda: evidence(runs=(replace(run(), ending=None),))),
        (Fault.WRONG, lambda: evidence(traces={NAME: [trace("9.zz")]})),
        (Fault.WRONG, lambda: evidence(traces={})),
        (Fault.WRONG, lambda: evidence(traces={NAME: [trace(code="3")]})),
        (Fault.WRONG, lambda: evidence(traces={NAME: [trace(code=None)]})),
        (Fault.WRONG, lambda: evidence(plan=replace(PLAN, exit_code=3))),
        (Fault.WRONG, lambda: ended(Ending.from_status(-9))),
        (Fault.WRONG, lambda: ended(Ending.stopped(ending_kind("timed_out"), -15))),
        (Fault.WRONG, lambda: ended(Ending.stopped(ending_kind("cancelled"), -15), JobState.CANCELLED)),
        (Fault.WRONG, lambda: ended(Ending.stopped(ending_kind("out_of_memory"), 1))),
        (Fault.WRONG, lambda: ended(Ending.refused("no such program"))),
        (Fault.WRONG, lambda: ended(Ending.from_status(0))),
        (Fault.WRONG, lambda: ended(Ending.from_status(3), JobState.SUCCEEDED)),
        (Fault.WRONG, lambda: lost_once(kills=[])),
        (Fault.WRONG, forgotten),
        (Fault.LEFT, lambda: evidence(keys=["{gq}:j:7 (hash)"])),
        (Fault.LEFT, lambda: evidence(files=["7/1.aa/spec"])),
        (Fault.OTHER, lambda: evidence(surprises=["submit: KeyError"])),
        (Fault.OTHER, lambda: evidence(acks={})),
    ],
)
def test_each_discrepancy_is_found_and_reported(fault: Fault, seen: Callable[[], Evidence]) -> None:
    """The judge finds each discrepancy, and the report can print the story of the job."""
    whole = seen()

    findings = judge(whole).findings

    assert fault in {finding.fault for finding in findings}, findings
    assert all(list(story(finding, whole)) for finding in findings)


def ending_kind(word: str) -> Any:
    return type(Ending.lost("").kind)(word)


@pytest.mark.parametrize(
    "seen",
    [
        lambda: ended(Ending.from_status(-9), kills=[replace(SHIM_KILLED, jobs=frozenset({TOKEN}))]),
        lambda: ended(Ending.from_status(-10), plan=replace(PLAN, signal=10), traces={NAME: [trace(code="10")]}),
        lambda: ended(
            Ending.stopped(ending_kind("timed_out"), -15),
            plan=replace(PLAN, duration_s=600, time_limit_s=1),
            traces={NAME: [trace(code=None)]},
        ),
        lambda: ended(
            Ending.stopped(ending_kind("cancelled"), -15),
            JobState.CANCELLED,
            plan=replace(PLAN, cancel_after_s=1),
            traces={NAME: [trace(code=None)]},
        ),
        lambda: ended(Ending.refused("no"), plan=replace(PLAN, refused=True), traces={}),
        lambda: ended(Ending.from_status(3), plan=replace(PLAN, exit_code=3), traces={NAME: [trace(code="3")]}),
    ],
)
def test_an_ending_that_was_asked_for_is_right(seen: Callable[[], Evidence]) -> None:
    """An expected ending is no fault.

    The run is killed by the test, by itself, at its time limit or by a cancel, cannot be started, or fails on purpose.
    """
    assert () == judge(seen()).findings


@pytest.mark.parametrize(("ttl", "goes"), [(-2, True), (-1, False), (0, True), (SOON_S, True), (SOON_S + 1, False)])
def test_a_key_that_expires_during_the_check_is_not_left_over(ttl: int, *, goes: bool) -> None:
    """A key that expires soon does not count as left behind.

    The nonces of the first submits expire just as a run of ten minutes ends.
    """
    assert goes is goes_soon(ttl)


def test_the_same_seed_gives_the_same_plan() -> None:
    """The same seed gives the same plan, so that a run with a finding can be repeated."""
    assert plan_jobs(7, 50, longest_s=9) == plan_jobs(7, 50, longest_s=9) != plan_jobs(8, 50, longest_s=9)
    assert (
        plan_kills(7, 50, 500, grace_s=14) == plan_kills(7, 50, 500, grace_s=14) != plan_kills(8, 50, 500, grace_s=14)
    )


def test_nothing_is_held_away_for_longer_than_asked() -> None:
    """A limit on the hold time shortens the holds and leaves the order of the kills unchanged."""
    whole = plan_kills(7, 50, 500, grace_s=14)
    short = plan_kills(7, 50, 500, grace_s=14, longest_hold_s=4)

    assert max(plan.hold_s for plan in whole) > 4 == max(plan.hold_s for plan in short)
    assert [plan.breaks for plan in whole] == [plan.breaks for plan in short]


@pytest.mark.parametrize("seed", range(5))
def test_a_short_plan_breaks_everything_once(seed: int) -> None:
    """A short plan contains every kind of break except `AWAY`, which needs an absence longer than the grace period."""
    kinds = {plan.breaks for plan in plan_kills(seed, 12, 60, grace_s=14)}

    assert set(Breaks) - {Breaks.AWAY} <= kinds


@pytest.mark.parametrize(
    ("breaks", "device", "expected"),
    [
        (Breaks.WORKER_KILL, "dev", 4.0),  # a claim of the same device by a new worker
        (Breaks.WORKER_KILL, "other", None),
        (Breaks.GROUP_KILL, None, 4.0),
        (Breaks.STORE_KILL, None, 1.0),
        (Breaks.RECORDER_KILL, None, 2.5),
        (Breaks.SHIM_KILL, None, 3.0),
    ],
)
def test_the_sign_of_health_is_that_of_what_was_broken(
    breaks: Breaks, device: str | None, expected: float | None
) -> None:
    """The sign of recovery matches the part that was broken.

    A claim by the worker that was just killed does not count, and neither does a claim for another device.
    """
    signs = Signs(
        events=(
            event(99, Act.CLAIM, JobState.STARTING, worker="h/dev/old"),
            event(101, Act.CLAIM, JobState.STARTING, worker="h/dev/old"),
            event(103, Act.LOSE, JobState.QUEUED, token=TOKEN),
            event(104, Act.CLAIM, JobState.STARTING, worker="h/dev/new"),
        ),
        moves=(99.5, 102.5),
    )
    plan = replace(SHIM_KILLED.plan, breaks=breaks)
    kill = Kill(plan=plan, at=100, until=100, what="", device=device, shims=SHIM_KILLED.shims)

    assert expected == signs.after(kill)


def test_a_released_claim_ends_a_run_that_never_began() -> None:
    """A released claim is the sign that a shim was killed before its job began.

    Regression: such a kill was reported as one without a sign.
    """
    signs = Signs(events=(event(101.5, Act.RELEASE_CLAIM, JobState.QUEUED, token=TOKEN),), moves=())
    plan = replace(SHIM_KILLED.plan, breaks=Breaks.SHIM_KILL)

    assert 1.5 == signs.after(replace(SHIM_KILLED, plan=plan, at=100))
