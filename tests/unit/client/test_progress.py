"""Tests of the progress of running jobs: by their own pace and by earlier runs."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from types import SimpleNamespace
from typing import Any, cast

import pytest
from factories import make_spec

from gpuqueue.client.connection import Connection
from gpuqueue.client.progress import job_progress, usual_of
from gpuqueue.errors import HistoryUnreachable
from gpuqueue.learning.signature import program_of
from gpuqueue.model.job import Job, JobState
from gpuqueue.model.progress import Progress, Reading

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

    def durations(*, user: str, program: str, command: str, array_id: int | None) -> list[float]:
        assert (JOB.spec.account.name, JOB.spec.command, None) == (user, command, array_id)
        assert program_of(JOB.spec.argv, JOB.spec.script, JOB.spec.cwd) == program
        if durations_s is None:
            raise HistoryUnreachable("the history is away")
        return durations_s

    known: Any = SimpleNamespace(
        queue=SimpleNamespace(now_ms=lambda: round(NOW.timestamp() * 1000)),
        database=SimpleNamespace(durations_alike_s=durations),
    )
    return cast("Connection", known)


def shown(durations_s: list[float] | None, progress: Progress = YOUNG, *, is_sure: bool = True) -> Progress | None:
    """Return the progress of the job, which has run for 100 s, after earlier runs of *durations_s*."""
    reading = Reading(progress, is_sure=is_sure)
    return job_progress(connection(durations_s), [JOB], {7: reading}).get(7)


def left_s(durations_s: list[float] | None, progress: Progress = YOUNG) -> float | None:
    """Return the time left of the job."""
    found = shown(durations_s, progress)
    assert found is not None
    return found.left_s


def test_earlier_runs_show_how_long_a_young_run_takes() -> None:
    """The median of those that lasted as long as the run by now."""
    assert 900 == left_s([10, 500, 1000, 2000])
    assert left_s([10, 20]) is None
    assert left_s([]) is None
    assert left_s(None) is None


@pytest.mark.parametrize(
    ("share", "own_s", "durations_s", "expected_s"),
    [
        (0.3, 60, None, 60),
        (0.25, 800, [1000], 800),
        (0.125, 800, [1000], 850),
        (0.0125, 800, [1000], 895),
        (0.0125, 800, [], 800),
        (0.0125, 800, [50], 800),
        (0.0125, 80, [1000], 80),
        (0.0125, 9900, [1000], 9900),
    ],
)
def test_the_pace_of_the_run_counts_the_more_the_more_is_done(
    share: float, own_s: float, durations_s: list[float] | None, expected_s: float
) -> None:
    """From a quarter on it counts alone, and so it does if the earlier runs did something else."""
    assert expected_s == pytest.approx(left_s(durations_s, Progress(share=share, left_s=own_s)))


@pytest.mark.parametrize(
    ("own_s", "durations_s", "is_shown"),
    [
        (900, [1000], True),
        (650, [1000], True),
        (500, [1000], False),
        (5, [9000], False),
        (900, [60], True),
        (None, [1000], False),
        (900, [], False),
        (900, None, False),
    ],
)
def test_a_bar_alone_is_shown_if_it_lasts_as_long_as_earlier_runs(
    own_s: float | None, durations_s: list[float] | None, *, is_shown: bool
) -> None:
    """Regression: "98 %, 00:01 left" in the first of 90 epochs. A bar of one epoch ends long before the run."""
    found = shown(durations_s, Progress(share=0.98, counts="98/100", left_s=own_s), is_sure=False)
    assert is_shown is (found is not None)


def test_the_history_is_asked_only_where_it_counts() -> None:
    """Not for a job without progress, nor for one that has done a quarter."""
    away = cast("Connection", SimpleNamespace())
    assert {} == job_progress(away, [JOB], {})
    far = Progress(share=0.3, left_s=60)
    assert {7: far} == job_progress(away, [JOB], {7: Reading(far)})


def test_the_usual_time_left_is_that_of_runs_that_lasted_as_long() -> None:
    """A run that has outlasted all others has none."""
    found = usual_of([10, 500, 1000, 2000], elapsed_s=100)
    assert found is not None
    assert (1000, 2000, 3, 900) == (found.median_s, found.p90_s, found.runs, found.left_s)
    assert usual_of([10], elapsed_s=100) is None
