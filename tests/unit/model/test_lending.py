"""Which jobs a pilot can run, and what ``why`` and ``submit`` say of it."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from factories import make_spec

from gpuqueue.client.why import Why
from gpuqueue.model.burst import PilotSettings
from gpuqueue.model.device import DeviceFilter
from gpuqueue.model.job import Job, JobState, WaitReason
from gpuqueue.model.lending import lenders_of
from gpuqueue.text.units import GIB
from gpuqueue.words.why.start import lent_words

NOW = datetime(2026, 11, 30, 12, tzinfo=timezone.utc)
BY_HAND = PilotSettings(mem_bytes=80 * GIB)
RULE = replace(BY_HAND, when_waiting_s=1800.0, gpus=2)


def said(settings: dict[str, PilotSettings], **changes: Any) -> str:
    """Return what is said of a job that has waited for five minutes."""
    spec = make_spec(**{"mem_bytes": 6 * GIB, **changes})
    since = NOW - timedelta(minutes=5)
    job = Job(id=7, spec=spec, state=JobState.QUEUED, submitted_at=since, reason=WaitReason.DEVICE)
    return lent_words(Why(job=job, lenders=tuple(lenders_of(settings, job, NOW))))


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


def test_each_engine_that_can_is_named() -> None:
    """One that cannot is left out. A site that borrows nothing says nothing."""
    both = said({"slurm": replace(RULE, gpus=1), "kubernetes": BY_HAND}, gpus=2)
    assert "not before a pilot runs: a pilot of Kubernetes can run it once an admin asks for one" in both
    assert "Slurm" not in both
    assert "" == said({})
