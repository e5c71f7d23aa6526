"""Tests of the time that is left of running jobs without a pace of their own."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta, timezone
from types import SimpleNamespace
from typing import Any, cast

from factories import make_spec

from gpuqueue.client.connection import Connection
from gpuqueue.client.progress import with_usual
from gpuqueue.errors import HistoryUnreachable
from gpuqueue.model.job import Job, JobState
from gpuqueue.model.progress import Progress

NOW = datetime(2026, 11, 21, 12, tzinfo=timezone.utc)
JOB = Job(
    id=7,
    spec=make_spec(name="train"),
    state=JobState.RUNNING,
    submitted_at=NOW,
    started_at=NOW - timedelta(seconds=100),
)
YOUNG = Progress(share=0.001, counts="epoch 1/90")


def connection(durations_s: list[float] | None) -> Connection:
    """Return a connection to a history with these durations of earlier runs, or to none."""

    def durations(*, user: str, name: str) -> list[float]:
        assert (JOB.spec.account.name, "train") == (user, name)
        if durations_s is None:
            raise HistoryUnreachable("the history is away")
        return durations_s

    known: Any = SimpleNamespace(
        queue=SimpleNamespace(now_ms=lambda: round(NOW.timestamp() * 1000)),
        database=SimpleNamespace(durations_s=durations),
    )
    return cast("Connection", known)


def left_s(durations_s: list[float] | None, progress: Progress = YOUNG) -> float | None:
    """Return the time left of the job."""
    return with_usual(connection(durations_s), [JOB], {7: progress})[7].left_s


def test_earlier_runs_show_how_long_a_young_run_takes() -> None:
    """The median of those that lasted as long as the run by now."""
    assert 900 == left_s([10, 500, 1000, 2000])
    assert left_s([10, 20]) is None
    assert left_s([]) is None
    assert left_s(None) is None


def test_the_pace_of_the_run_comes_first() -> None:
    """The history is not asked then, nor for a job without progress."""
    assert 60 == left_s(None, replace(YOUNG, left_s=60))
    assert {} == with_usual(connection(None), [JOB], {})
