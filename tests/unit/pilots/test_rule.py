"""The rule by which pilots are asked for."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta, timezone
from types import SimpleNamespace
from typing import Any

import pytest
from factories import make_spec

from gpuqueue.clock import SystemClock
from gpuqueue.errors import BadRequest
from gpuqueue.model.access_token import AccessToken
from gpuqueue.model.burst import PilotSettings, parse_burst
from gpuqueue.model.caller import CallerKind
from gpuqueue.model.device import DeviceFilter
from gpuqueue.model.job import Job, JobState, WaitReason
from gpuqueue.model.lending import Spent, spent_by, why_not_counted
from gpuqueue.model.placement import Placement
from gpuqueue.pilots.fleet import PilotRequest
from gpuqueue.pilots.rule import Decision, decide, decision_of, gpus_for

GIB = 2**30
NOW = datetime(2026, 11, 30, 12, tzinfo=timezone.utc)
RULE = PilotSettings(
    when_waiting_s=1800, max_pilots=2, gpus=4, hours=8, mem_bytes=80 * GIB, model="NVIDIA A100-SXM4-80GB"
)


def waiting(minutes: float = 60, reason: WaitReason = WaitReason.MEMORY, **changes: Any) -> Job:
    """Return a job that has waited for so long."""
    since = NOW - timedelta(minutes=minutes)
    spec = make_spec(**{"mem_bytes": 6 * GIB, **changes})
    return Job(id=7, spec=spec, state=JobState.QUEUED, submitted_at=since, reason=reason)


def decided(*jobs: Job, rule: PilotSettings = RULE, pilots: tuple[bool, ...] = (), spent: Any = ()) -> Decision:
    """Return what the rule decides at NOW."""
    return decide(rule, jobs, pilots, spent, now=NOW)


def test_a_job_that_waits_for_long_gets_a_pilot() -> None:
    """The pilot has as many GPUs as the jobs need, and the sentence says how many jobs count."""
    found = decided(waiting(), waiting(gpus=2, mem_bytes=40 * GIB), waiting(5))

    assert PilotRequest(gpus=2, hours=8) == found.request
    assert "2 jobs would start on a pilot of 2 GPUs" == found.why
    assert [None, None, "it has waited for 5:00"] == [each.why_not for each in found.counted]


def test_without_a_rule_nothing_is_asked_for() -> None:
    """Pilots that a person asks for need no rule."""
    found = decided(waiting(), rule=replace(RULE, when_waiting_s=None))
    assert (None, "no rule: when_waiting is not set") == (found.request, found.why)


@pytest.mark.parametrize(
    ("job", "why"),
    [
        (waiting(reason=WaitReason.LIMIT), "it does not wait for a device"),
        (waiting(reason=WaitReason.DEPENDENCY), "it does not wait for a device"),
        (waiting(device=DeviceFilter.CPU), "it is for a CPU"),
        (waiting(device=DeviceFilter.SLURM), "an engine runs it as a whole"),
        (waiting(pool="big"), "it is for the pool big"),
        (waiting(gpus=8), "it needs 8 GPUs of one host, and gpus = 4"),
        (waiting(mem_bytes=81 * GIB), "it needs 81G of a card, and mem = 80G"),
        (waiting(placement=Placement(devices=("GPU-1",))), "it is for a device of this site"),
        (waiting(placement=Placement(models=("H100",))), "it is for H100, and model = 'NVIDIA A100-SXM4-80GB'"),
        (waiting(time_limit_s=9 * 3600), "it may take 9:00:00, and hours = 8"),
        (waiting(time_limit_s=8 * 3600), "it may take 8:00:00, and hours = 8"),
        (waiting(expected_duration_s=9 * 3600), "it may take 9:00:00, and hours = 8"),
        (waiting(requeue=False), "nobody knows how long it takes, and it must not run twice"),
    ],
)
def test_a_job_that_a_pilot_does_not_help_does_not_count(job: Job, why: str) -> None:
    """Nothing is asked for that would stand idle, and the reason is said."""
    assert why == why_not_counted(RULE, job, NOW)
    assert (None, "no job that waits would start on a pilot") == (decided(job).request, decided(job).why)


@pytest.mark.parametrize(
    "job",
    [
        waiting(),
        waiting(placement=Placement(models=("H100", "A100"))),
        waiting(time_limit_s=7 * 3600, requeue=False),
        waiting(time_limit_s=7 * 3600, expected_duration_s=9 * 3600),
        waiting(reason=WaitReason.END),
    ],
)
def test_a_job_that_fits_counts(job: Job) -> None:
    """A limit of the job goes before what earlier runs took."""
    assert why_not_counted(RULE, job, NOW) is None


def test_only_the_jobs_of_some_users_count() -> None:
    """``users`` says whose."""
    rule = replace(RULE, users=("eve",))
    assert f"{waiting().spec.account.name} is not in users" == why_not_counted(rule, waiting(), NOW)


def test_one_request_at_a_time_and_no_more_than_the_maximum() -> None:
    """A pilot that has no job yet holds back the next one, and so does one that is idle: another would be too."""
    assert "1 pilot asked for before runs no job yet" == decided(waiting(), pilots=(False,)).why
    both = "2 pilots asked for before run no job yet; there are 2 pilots, and max = 2"
    assert both == decided(waiting(), pilots=(False, False)).why
    assert decided(waiting(), pilots=(True,)).request is not None
    assert "there are 2 pilots, and max = 2" == decided(waiting(), pilots=(True, True)).why


def test_a_pilot_that_claims_the_job_meanwhile_brings_no_other() -> None:
    """Between the two questions of a turn, the pilot claims the last waiting job: a third pilot was asked for."""
    questions: list[str] = []

    def devices() -> list[SimpleNamespace]:
        questions.append("devices")
        return [SimpleNamespace(host="pilot-1", jobs=(7,) if len(questions) > 1 else ())]

    def jobs(**_: Any) -> list[Job]:
        questions.append("jobs")
        return [] if len(questions) > 1 else [waiting()]

    client: Any = SimpleNamespace(devices=SimpleNamespace(list=devices), jobs=SimpleNamespace(list=jobs))
    pilot: Any = SimpleNamespace(host="pilot-1")

    assert decision_of(client, RULE, [pilot], [], SystemClock()).request is None


def test_too_few_jobs_for_the_smallest_pilot() -> None:
    """``min_gpus`` is for clusters that give whole nodes."""
    rule = replace(RULE, min_gpus=4)
    assert "the jobs would use 1 GPU, and min_gpus = 4" == decided(waiting(), rule=rule).why
    assert decided(*[waiting(mem_bytes=80 * GIB)] * 4, rule=rule).request is not None


def test_the_hours_of_a_day_are_bounded() -> None:
    """Pilots of the last day count with what they used; one that is not over counts with all that it asked for."""
    rule = replace(RULE, hours_a_day=10)
    day_before = Spent(gpus=4, hours=8, made_at=NOW - timedelta(hours=25), ended_at=None)
    given_back = Spent(gpus=2, hours=8, made_at=NOW - timedelta(hours=9), ended_at=NOW - timedelta(hours=8))
    live = Spent(gpus=1, hours=6, made_at=NOW - timedelta(hours=1), ended_at=None)

    assert decided(waiting(), rule=replace(rule, hours_a_day=16), spent=[day_before, given_back, live]).request
    found = decided(waiting(), rule=rule, spent=[day_before, given_back, live])
    used = "8.0 of hours_a_day = 10 GPU-hours were used in the last day, and a pilot needs 8"
    assert (None, used) == (found.request, found.why)


def test_memory_says_how_many_gpus_are_needed() -> None:
    """Jobs share cards by memory; an exclusive job has its cards alone, and so has each where memory is unknown."""
    small = [waiting(mem_bytes=20 * GIB)] * 5
    assert 2 == gpus_for(RULE, small)
    assert 3 == gpus_for(RULE, [*small, waiting(placement=Placement(exclusive=True))])
    assert 5 == gpus_for(replace(RULE, mem_bytes=None), small)
    assert 0 == gpus_for(RULE, [])


def test_the_record_of_a_pilot_says_what_was_spent() -> None:
    """Other tokens of hosts are no pilots."""
    token = AccessToken(
        id="abc",
        kind=CallerKind.HOST,
        account="slurm-k3v9m2xqab",
        uid=None,
        scopes=frozenset(),
        name="",
        made_by="ann",
        made_at=NOW,
    )
    request = PilotRequest(gpus=2, hours=1.5)
    spent = spent_by(replace(token, name=f"pilot: {request.size}: job 17 waits"))
    assert Spent(gpus=2, hours=1.5, made_at=NOW, ended_at=None) == spent
    assert spent_by(replace(token, name="the new server")) is None


def test_the_rule_is_part_of_the_settings() -> None:
    """The keys of a table, and a value that is none."""
    keys = (
        '"when_waiting": "30m", "max": 2, "gpus": 4, "min_gpus": 2, "hours": 6, "hours_a_day": 48, "users": "ann, bob"'
    )
    found = parse_burst(f'{{"slurm": {{{keys}, "mem": "80G", "model": "A100"}}}}')["slurm"]
    assert (1800, 2, 4, 2) == (found.when_waiting_s, found.max_pilots, found.gpus, found.min_gpus)
    assert (6, 48, ("ann", "bob"), 80 * GIB) == (found.hours, found.hours_a_day, found.users, found.mem_bytes)
    for wrong in ('"max": 0', '"hours": "many"', '"when_waiting": 30', '"hours_a_day": -1'):
        with pytest.raises(BadRequest, match=r"slurm\.[a-z_]+: "):
            parse_burst(f'{{"slurm": {{{wrong}}}}}')
