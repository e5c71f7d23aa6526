"""Tests of runs that slow each other on a shared device, with cases that were computed by hand."""

from __future__ import annotations

from itertools import pairwise

import pytest

from gpuqueue.simulator.comparison import Served
from gpuqueue.simulator.replay import Placement, replay, speed
from gpuqueue.simulator.rivals import FirstFit
from gpuqueue.simulator.site import Site
from gpuqueue.simulator.trace import Request
from gpuqueue.text.units import GIB


def job(number: int, arrival_s: float, duration_s: float, use: float | None, **changes: object) -> Request:
    """Return a job that needs half of a card."""
    fields = {"user": "ann", "mem_bytes": 12 * GIB, **changes}
    return Request(number=number, arrival_s=arrival_s, duration_s=duration_s, utilisation=use, **fields)  # type: ignore[arg-type]


def placed(site: str, *jobs: Request, slows: bool = True) -> list[Placement]:
    """Return the runs of *jobs* under first fit, by number."""
    runs = replay(jobs, FirstFit(Site.parse(site, slots=8)), slows=slows)
    return sorted(runs, key=lambda each: each.request.number)


@pytest.mark.parametrize(("total", "expected"), [(0, 1), (0.7, 0.99), (0.9, 0.96), (1.1, 0.93), (1.75, 0.74)])
def test_the_speed_is_that_of_the_measured_pairs(total: float, expected: float) -> None:
    """The curve passes through the measured means, in the middle of their ranges, and is straight between them."""
    assert expected == pytest.approx(speed(total))


def test_more_use_is_never_quicker_and_a_full_device_does_no_more() -> None:
    """The speed only falls. Beyond the measured range the device does as much work as at its end."""
    speeds = [speed(step / 100) for step in range(500)]

    assert all(before >= after for before, after in pairwise(speeds))
    assert [1.75 * 0.74] * 2 == pytest.approx([3 * speed(3), 8 * speed(8)])


def test_two_runs_slow_each_other_while_both_run() -> None:
    """Together they have 110 %, so each runs at 0.93. The second ends at 100 s; the first then has 837 s left."""
    jobs = job(0, 0, 930, 0.6), job(1, 0, 93, 0.5)

    assert [937, 100] == [each.end_s for each in placed("24G", *jobs)]
    assert [930, 93] == [each.end_s for each in placed("24G", *jobs, slows=False)]
    assert [930, 93] == [each.end_s for each in placed("2x20G", *jobs)], "alone on a card each is as quick as ever"


def test_a_run_that_joins_slows_from_then_on() -> None:
    """The first run is alone for 500 s, then both run at 0.93 until the second ends."""
    first, second = placed("24G", job(0, 0, 930, 0.6), job(1, 500, 93, 0.5))

    assert (500, 600) == (second.start_s, second.end_s)
    assert 600 + (930 - 500 - 93) == pytest.approx(first.end_s)
    assert (937, 100) == (first.run_s, second.run_s)


def test_a_run_on_two_cards_is_as_slow_as_on_the_slower() -> None:
    """A run on two cards shares only the first of them."""
    both, single = placed("2x24G", job(0, 0, 930, 0.6, gpus=2), job(1, 0, 93, 0.5))

    assert (0,) == single.cards
    assert (937, 100) == (both.end_s, single.end_s)


def test_an_unknown_utilisation_is_that_of_the_mean_job() -> None:
    """A job without a figure counts as 50 %."""
    known, unknown = (placed("24G", job(0, 0, 930, 0.6), job(1, 0, 93, use)) for use in (0.5, None))

    assert [each.end_s for each in known] == [each.end_s for each in unknown]


def test_a_time_limit_stretches_with_the_run() -> None:
    """A run of 93 s until its limit takes 100 s beside another one. Otherwise slow runs would seem to be short."""
    jobs = job(0, 0, 930, 0.6), job(1, 0, 500, 0.5, time_limit_s=93.0)

    assert 100 == placed("24G", *jobs)[1].end_s


def test_slowed_jobs_keep_others_waiting() -> None:
    """A third job waits for the second, which ends later than it would alone. The figures show the longer runs."""
    runs = placed("24G", job(0, 0, 930, 0.6), job(1, 0, 93, 0.5), job(2, 1, 10, 0.0))

    assert 100 == runs[2].start_s
    found = Served.of(runs)
    assert sum(each.run_s / each.request.run_s for each in runs) / 3 == pytest.approx(found.stretch)
    assert found.stretch > 1.02
    assert sum(each.end_s - each.request.arrival_s for each in runs) / 3 == pytest.approx(found.turnaround_s)
    assert 1 == Served.of(placed("24G", job(0, 0, 930, 0.6), slows=False)).stretch
