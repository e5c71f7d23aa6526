"""Tests of the synthetic traces: the same seed gives the same jobs, and each has the properties that it is to have."""

from __future__ import annotations

import statistics
from collections import Counter
from itertools import groupby

import pytest

from gpuqueue.simulator import trace
from gpuqueue.simulator.shapes import DAY_S, LIMITS_S, LOAD, SHAPES, UTILISATION, shaped
from gpuqueue.simulator.site import Site
from gpuqueue.simulator.trace import Request

SITE = Site.parse("8x80G/8x80G", slots=16, headroom_bytes=2**30)


@pytest.fixture(scope="module", params=SHAPES)
def jobs(request: pytest.FixtureRequest) -> tuple[Request, ...]:
    """Return a trace of each shape."""
    return shaped(SHAPES[request.param], SITE, 3000, seed=1)


@pytest.mark.parametrize("name", SHAPES)
def test_the_same_seed_gives_the_same_jobs(name: str) -> None:
    """A trace depends on the seed and on nothing else, and is the same once it was written and read."""
    jobs = shaped(SHAPES[name], SITE, 300, seed=1)

    assert jobs == shaped(SHAPES[name], SITE, 300, seed=1)
    assert jobs != shaped(SHAPES[name], SITE, 300, seed=2)
    read = trace.read((f"{line}\n" for line in trace.write(jobs)), "t.csv").requests
    assert [(each.arrival_s, each.run_s, each.mem_bytes) for each in read] == [
        (each.arrival_s, each.run_s, each.mem_bytes) for each in jobs
    ]


def test_jobs_come_in_order_and_fit_the_site(jobs: tuple[Request, ...]) -> None:
    """Jobs are numbered by arrival from 0 on, and each fits a host of the site."""
    assert [each.number for each in jobs] == list(range(3000))
    assert jobs[0].arrival_s == 0
    assert [each.arrival_s for each in jobs] == sorted(each.arrival_s for each in jobs)
    assert all(map(SITE.could_run, jobs))


def test_the_work_loads_the_site(jobs: tuple[Request, ...]) -> None:
    """All work together is the load times what the site can do until the last arrival."""
    work = sum(each.mem_bytes * each.gpus * each.run_s for each in jobs)

    assert LOAD == pytest.approx(work / SITE.usable_bytes / jobs[-1].arrival_s, rel=0.03)


def test_two_thirds_have_a_limit_that_is_too_long(jobs: tuple[Request, ...]) -> None:
    """Two thirds of the submissions have a round limit. Hardly a run reaches it, and half use less than a half."""
    submissions = [next(each) for _, each in groupby(jobs, lambda job: (job.arrival_s, job.user, job.name))]
    used = [each.duration_s / each.time_limit_s for each in submissions if each.time_limit_s]

    assert 2 / 3 == pytest.approx(len(used) / len(submissions), abs=0.05)
    assert {each.time_limit_s for each in jobs} <= {None, *map(float, LIMITS_S)}
    assert statistics.median(used) < 0.5
    assert max(used) <= 1


def test_durations_have_a_heavy_tail(jobs: tuple[Request, ...]) -> None:
    """The mean duration is more than three times the median, and no run exceeds five days."""
    durations_s = [each.duration_s for each in jobs]

    assert statistics.mean(durations_s) > 3 * statistics.median(durations_s)
    assert min(durations_s) >= 10
    assert max(durations_s) <= 5 * DAY_S


def test_few_users_submit_most(jobs: tuple[Request, ...]) -> None:
    """The three busiest of twenty users submit at least two fifths of the jobs."""
    by_user = Counter(each.user for each in jobs)

    assert 10 < len(by_user) <= 20
    assert sum(count for _, count in by_user.most_common(3)) > 0.4 * 3000


def test_some_days_have_several_times_the_arrivals_of_others(jobs: tuple[Request, ...]) -> None:
    """The busiest tenth of the days has more than a fifth of the arrivals."""
    by_day = Counter(int(each.arrival_s // DAY_S) for each in jobs)
    days = int(jobs[-1].arrival_s // DAY_S) + 1

    assert sum(count for _, count in by_day.most_common(days // 10 + 1)) > 0.2 * 3000


def test_a_job_needs_no_more_devices_than_a_host_has() -> None:
    """On hosts of two cards the largest jobs of all shapes need two."""
    small = Site.parse("2x24G/24G", slots=8)

    assert {1, 2} == {each.gpus for shape in SHAPES.values() for each in shaped(shape, small, 400, seed=0)}


def test_which_shapes_need_eight_cards() -> None:
    """Jobs need up to four cards, and in the shapes `gangs` and `alike` up to eight."""
    most = {name: max(each.gpus for each in shaped(shape, SITE, 1000, seed=0)) for name, shape in SHAPES.items()}

    assert {"shares": 4, "gangs": 8, "alike": 8, "sweeps": 4} == most


def test_jobs_of_a_submission_use_a_card_alike(jobs: tuple[Request, ...]) -> None:
    """The utilisations are evenly distributed, with a mean of 52 %, and equal within a sweep."""
    submissions = [[*each] for _, each in groupby(jobs, lambda job: (job.arrival_s, job.user, job.name, job.mem_bytes))]
    uses = [each[0].utilisation or 0.0 for each in submissions]

    assert statistics.mean(uses) == pytest.approx(0.525, abs=0.03)
    assert (min(uses), max(uses)) == pytest.approx(UTILISATION, abs=0.02)
    sweeps = [{job.utilisation for job in each} for each in submissions if len(each) > 4]
    assert sweeps
    assert sum(len(each) == 1 for each in sweeps) > 0.9 * len(sweeps), "two submissions may come in the same second"


@pytest.mark.parametrize(("name", "is_alike"), [("gangs", False), ("alike", True)])
def test_jobs_of_a_sweep_run_alike_in_one_shape(name: str, *, is_alike: bool) -> None:
    """In `alike` the longest run of most sweeps takes less than four times the shortest; in `gangs` more than that."""
    jobs = shaped(SHAPES[name], SITE, 2000, seed=0)
    sweeps = [[*each] for _, each in groupby(jobs, lambda job: (job.arrival_s, job.user, job.name, job.mem_bytes))]
    ratios = [
        max(job.duration_s for job in each) / min(job.duration_s for job in each) for each in sweeps if len(each) > 4
    ]

    assert len(ratios) > 50
    assert (statistics.median(ratios) < 4) is is_alike
