"""Tests of the replay of past jobs under several rules."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta, timezone

import pytest

from gpuqueue.cli.output.learning_table import counted, learning_table
from gpuqueue.codec.wire import to_plain
from gpuqueue.learning.past_run import MOST_JOBS, PastRun, Proof
from gpuqueue.learning.replay import PLAIN_RULES, PastJob, replay
from gpuqueue.model.device import DeviceKind
from gpuqueue.model.learning_report import LearningReport, MemRule, ReplayFigures
from gpuqueue.text.units import GIB

T0 = datetime(2026, 11, 1, tzinfo=timezone.utc)
HOUR = timedelta(hours=1)


def jobs(*peaks: float, room: float | None = None, kind: DeviceKind = DeviceKind.GPU) -> list[PastJob]:
    """Return jobs of one program with these peaks in GiB, of an hour each, one after the other. Each asked 20 GiB."""
    return [
        PastJob(
            id=number,
            program=("ada", "/train.py"),
            runs=(
                PastRun(
                    proof=Proof.PEAK,
                    bytes=int(peak * GIB),
                    kind=kind,
                    room_bytes=None if room is None else int(room * GIB),
                ),
            ),
            is_known=True,
            asked_bytes=20 * GIB,
            used_bytes=int(peak * GIB),
            devices=1,
            duration_s=3600.0,
            submitted_at=T0 + number * HOUR,
            ended_at=T0 + (number + 1) * HOUR,
        )
        for number, peak in enumerate(peaks)
    ]


def replayed(made: Sequence[PastJob]) -> LearningReport:
    """Return the replay of *made*."""
    return replay(made, since=T0, until=T0 + 1000 * HOUR)


def figures(made: Sequence[PastJob], rule: MemRule) -> ReplayFigures:
    """Return the figures of *rule*."""
    return next(group.figures for group in replayed(made).rules if group.key == rule.value)


@pytest.mark.parametrize(
    ("rule", "peaks", "bytes_"),
    [
        (MemRule.LARGEST, (4, 9, 5), 9),
        (MemRule.MEAN_2SD, (4, 6), 7),
        (MemRule.LAST, (9, 5), 6),
        (MemRule.P90, (10, 20), 23),
        (MemRule.P90, (*[10] * 9, 20), 11.5),
        (MemRule.P90, (10,), 11.5),
    ],
)
def test_simple_rules(rule: MemRule, peaks: tuple[int, ...], bytes_: float) -> None:
    """Each simple rule is what its name says."""
    assert pytest.approx(bytes_) == PLAIN_RULES[rule](peaks)


def test_a_lost_run_costs_half_of_its_time_and_is_followed_by_twice_as_much() -> None:
    """After a peak of 1 GiB, the largest so far is lost twice for 3 GiB: 1, then 2, then 4 GiB."""
    found = figures(jobs(1, 3), MemRule.LARGEST)

    assert (1, 0, 2) == (found.jobs, found.fitted, found.lost_tries)
    assert (0.5 * 1 + 0.5 * 2 + 4) * 3600 * GIB == found.reserved_byte_s
    assert 3 * 3600 * GIB == found.used_byte_s


def test_the_next_run_gets_at_most_the_device() -> None:
    """On a device of 3.5 GiB the last run gets 3.5 GiB in place of 4."""
    found = figures(jobs(1, 3, room=3.5), MemRule.LARGEST)

    assert (0.5 * 1 + 0.5 * 2 + 3.5) * 3600 * GIB == found.reserved_byte_s


def test_a_peak_of_nothing_ends() -> None:
    """A program that used nothing so far gets a little, and no run is lost for ever."""
    found = figures(jobs(0, 1), MemRule.LAST)

    assert 4 == found.lost_tries  # 64, 128, 256 and 512 MiB


def test_another_kind_of_device_teaches_nothing() -> None:
    """A run on a CPU is no earlier run of one on a GPU."""
    cpu, gpu = jobs(1, kind=DeviceKind.CPU), jobs(1, 2)

    report = replayed([*cpu, *(replace(each, id=each.id + 10) for each in gpu[1:])])

    assert (2, 0) == (report.first, report.repeats)


def test_old_jobs_are_forgotten_as_at_a_submit() -> None:
    """A submit reads the newest 50 jobs of its program, and so does the replay."""
    remembered, forgotten = jobs(9, *[5] * (MOST_JOBS - 1), 8), jobs(9, *[5] * MOST_JOBS, 8)

    assert 0 == figures(remembered, MemRule.LARGEST).lost_tries
    assert 1 == figures(forgotten, MemRule.LARGEST).lost_tries


def test_the_table_says_what_was_not_replayed() -> None:
    """The notes name the first jobs, those of an unknown need, and jobs that were not read."""
    made = [*jobs(5, 5), replace(jobs(5, 5, 5)[2], is_known=False)]
    report = replace(replayed(made), is_cut=True)

    assert (
        "1 of 3 jobs were replayed; 1 were the first of their program; of 1 the need is not known (no trusted peak, or"
        " they filled their allocation); older jobs were not read: choose an earlier --until for them."
    ) == counted(report)
    table = learning_table(report, None)
    assert ["what", "learned", "learned,", "largest"] == [line.split()[0] for line in table.splitlines()[1:5]]
    assert max(map(len, learning_table(report, 60).splitlines())) <= 60


def test_json_has_the_derived_figures() -> None:
    """JSON has the shares that the table shows."""
    plain = to_plain(replayed(jobs(5, 5)))

    assert [rule.value for rule in MemRule] == [each["key"] for each in plain["rules"]]
    assert {"fit_rate": 1.0, "above_peak": 3.0}.items() <= plain["rules"][0]["figures"].items()
