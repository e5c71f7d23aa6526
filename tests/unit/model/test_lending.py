"""Which jobs a pilot can run, and what ``why`` and ``submit`` say of it."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from factories import make_spec

from gpuqueue.client.why import Why
from gpuqueue.model.access_token import AccessToken
from gpuqueue.model.burst import PilotSettings
from gpuqueue.model.caller import CallerKind
from gpuqueue.model.device import DeviceFilter
from gpuqueue.model.job import Job, JobState, WaitReason
from gpuqueue.model.lending import lenders_of
from gpuqueue.text.units import GIB
from gpuqueue.words.why.start import lent_words

NOW = datetime(2026, 11, 30, 12, tzinfo=timezone.utc)
BY_HAND = PilotSettings(mem_bytes=80 * GIB)
RULE = replace(BY_HAND, when_waiting_s=1800.0, gpus=2)


def said_of(rule: PilotSettings, *tokens: AccessToken) -> str:
    """Return what is said at a site that borrows from Slurm by *rule*, and has these *tokens*."""
    return said({"slurm": rule}, tokens)


def said(settings: dict[str, PilotSettings], tokens: tuple[AccessToken, ...] = (), **changes: Any) -> str:
    """Return what is said of a job that has waited for five minutes."""
    spec = make_spec(**{"mem_bytes": 6 * GIB, **changes})
    since = NOW - timedelta(minutes=5)
    job = Job(id=7, spec=spec, state=JobState.QUEUED, submitted_at=since, reason=WaitReason.DEVICE)
    return lent_words(Why(job=job, lenders=tuple(lenders_of(settings, job, NOW, tokens))))


@pytest.mark.parametrize(
    ("settings", "changes", "words"),
    [
        (RULE, {}, "and the rule asks for one in 25:00: see gpuqueue burst why slurm"),
        (
            replace(RULE, when_waiting_s=60.0),
            {},
            "and the rule asks for one with its next turn: see gpuqueue burst",
        ),
        (BY_HAND, {"gpus": 8, "pool": "big"}, "once an admin asks for one with gpuqueue burst slurm"),
        (RULE, {"gpus": 8}, "never: no pilot of Slurm is for it: it needs 8 GPUs of one host, and gpus = 2"),
        (RULE, {"mem_bytes": 90 * GIB}, "never: no pilot of Slurm is for it: it needs 90G of a card, and mem = 80G"),
        (RULE, {"time_limit_s": 9e5}, "never: no pilot of Slurm is for it: it may take 10d 10:00:00, and hours = 8"),
        (replace(RULE, users=("zoe",)), {}, "is not in users"),
        (BY_HAND, {"device": DeviceFilter.CPU}, "never: no pilot of Slurm is for it: it is for a CPU"),
        (RULE, {"device": DeviceFilter.SLURM}, "not before a host hands jobs to slurm: gpuqueue up --devices slurm"),
    ],
)
def test_what_a_pilot_can_run_and_when_is_said(settings: PilotSettings, changes: dict[str, Any], words: str) -> None:
    """The rule bounds what its pilots have. A person chooses the GPUs, the hours and the pool."""
    assert words in said({"slurm": settings}, **changes)


def test_a_bound_of_the_rule_that_is_met_is_said() -> None:
    """A pilot counts while its token is valid, and only for its own engine; its hours count for a day."""
    token = AccessToken(
        id="abc",
        kind=CallerKind.HOST,
        account="slurm-k3v9m2xqab",
        uid=None,
        scopes=frozenset(),
        name="pilot: 2 GPUs, 8h: job 3 waits",
        made_by="ann",
        made_at=NOW - timedelta(hours=1),
    )
    single = replace(RULE, max_pilots=1)

    assert "asks for none now, because there is 1 pilot, and max = 1: see" in said_of(single, token)
    assert "the rule asks for one in 25:00" in said_of(single, replace(token, revoked_at=NOW))
    assert "the rule asks for one in 25:00" in said_of(RULE, replace(token, account="kubernetes-k3v9m2xqab"), token)
    used = "16.0 of hours_a_day = 20 GPU-hours were used in the last day, and a pilot needs 8"
    assert f"asks for none now, because {used}" in said_of(replace(RULE, hours_a_day=20), token)


def test_each_engine_that_can_is_named() -> None:
    """One that cannot is left out. A site that borrows nothing says nothing."""
    both = said({"slurm": replace(RULE, gpus=1), "kubernetes": BY_HAND}, gpus=2)
    assert "not before a pilot runs: a pilot of Kubernetes can run it once an admin asks for one" in both
    assert "Slurm" not in both
    assert "" == said({})
