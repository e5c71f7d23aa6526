"""Tests of each rival policy and each figure, with cases that were computed by hand."""

from __future__ import annotations

import pytest

from gpuqueue.errors import GpuQueueError
from gpuqueue.model.job_spec import Priority
from gpuqueue.simulator.comparison import Outcome, Served, bounded_slowdown, course, jain, percentile
from gpuqueue.simulator.replay import Placement, Policy, replay
from gpuqueue.simulator.rivals import ENDLESS_S, Backfill, ExclusiveFifo
from gpuqueue.simulator.site import Site
from gpuqueue.simulator.trace import Request
from gpuqueue.text.units import GIB

#: Arrival in seconds, memory in GiB, GPUs, duration in seconds, time limit in seconds.
Asked = tuple[float, int, int, float, float | None]


def requests(*asked: Asked, users: str = "aaaaaaaaaa") -> list[Request]:
    """Return the jobs, numbered in the order of *asked*."""
    return [
        Request(
            number=number,
            arrival_s=arrival_s,
            user=users[number],
            mem_bytes=mem * GIB,
            gpus=gpus,
            duration_s=duration_s,
            time_limit_s=limit_s,
        )
        for number, (arrival_s, mem, gpus, duration_s, limit_s) in enumerate(asked)
    ]


def a_site(text: str = "2x24G", slots: int = 8) -> Site:
    """Return a site without headroom."""
    return Site.parse(text, slots=slots)


def starts(policy: Policy, jobs: list[Request]) -> list[tuple[float, tuple[int, ...]]]:
    """Return the start time and the cards of each job."""
    placed = sorted(replay(jobs, policy), key=lambda each: each.request.number)
    return [(each.start_s, each.cards) for each in placed]


def test_exclusive_fifo_gives_a_whole_card_and_lets_nobody_pass() -> None:
    """Exclusive FIFO grants whole cards in order.

    The third job wants both cards. The fourth would fit beside the second, and waits.
    """
    jobs = requests((0, 1, 1, 100, None), (0, 1, 1, 50, None), (10, 1, 2, 10, None), (10, 1, 1, 10, None))

    assert starts(ExclusiveFifo(a_site()), jobs) == [(0, (0,)), (0, (1,)), (100, (0, 1)), (110, (0,))]


def test_exclusive_fifo_takes_the_smallest_card_that_is_large_enough() -> None:
    """Exclusive FIFO takes the smallest sufficient card, on the host that wastes the least."""
    jobs = requests((0, 10, 1, 10, None), (0, 30, 1, 10, None), (0, 10, 2, 10, None))

    assert starts(ExclusiveFifo(a_site("80G,24G/24G,12G")), jobs) == [(0, (3,)), (0, (0,)), (10, (3, 2))]


def test_backfill_lets_pass_who_is_gone_in_time() -> None:
    """Backfill starts a later job that ends in time.

    The first waiting job needs both cards at 100 s. From 10 s on, a limit of 90 s ends in time, a limit of 91 s does
    not, and a job without a limit never does.
    """
    head = [(0, 1, 1, 80, 100), (0, 1, 1, 5, 5), (5, 1, 2, 10, 10)]

    in_time = requests(*head, (10, 1, 1, 90, 90))
    too_long = requests(*head, (10, 1, 1, 10, 91))
    endless = requests(*head, (10, 1, 1, 10, None))

    assert starts(Backfill(a_site()), in_time)[2:] == [(100, (0, 1)), (10, (1,))]
    assert starts(Backfill(a_site()), too_long)[2:] == [(80, (0, 1)), (90, (0,))]
    assert starts(Backfill(a_site()), endless)[2:] == [(80, (0, 1)), (90, (0,))]


def test_backfill_lets_pass_who_takes_what_the_first_will_not_need() -> None:
    """Backfill starts a later job on cards that the first waiting job does not need, for any duration.

    Here the first job waits for the large card.
    """
    site = a_site("80G,24G,24G")
    jobs = requests((0, 40, 1, 100, 100), (1, 40, 1, 100, 100), (2, 10, 1, 900, None), (2, 10, 1, 900, None))

    assert starts(Backfill(site), jobs) == [(0, (0,)), (100, (0,)), (2, (1,)), (2, (2,))]


def test_backfill_keeps_counting_what_it_let_pass() -> None:
    """Backfill counts the jobs that it started early.

    Each of two jobs alone leaves the first waiting job enough, and both together do not.
    """
    site = a_site("3x24G")
    jobs = requests((0, 1, 2, 100, 100), (1, 1, 2, 50, 50), (2, 1, 1, 500, 500), (3, 1, 1, 500, 500))

    assert starts(Backfill(site), jobs) == [(0, (0, 1)), (100, (0, 1)), (2, (2,)), (150, (0,))]


def test_without_a_limit_a_job_counts_as_a_year() -> None:
    """A job without a limit counts as one year.

    The start of the first waiting job is therefore known, and a job of a year does not end before it.
    """
    jobs = requests((0, 1, 2, 20, None), (1, 1, 2, 10, None), (1, 1, 1, 5, ENDLESS_S))

    assert starts(Backfill(a_site()), jobs)[2][0] == 30


@pytest.mark.parametrize("policy", [ExclusiveFifo, Backfill])
def test_a_higher_priority_goes_first(policy: type[ExclusiveFifo | Backfill]) -> None:
    """A job of a higher priority starts first, also if it arrived later."""
    first, second, high = requests((0, 20, 1, 10, 10), (1, 20, 1, 10, 10), (2, 20, 1, 10, 10))
    urgent = Request(number=2, arrival_s=2, user="b", mem_bytes=high.mem_bytes, duration_s=10, priority=Priority.URGENT)

    assert [0, 20, 10] == [start for start, _ in starts(policy(a_site("1x24G")), [first, second, urgent])]


class Never:
    """A policy that starts nothing."""

    def arrive(self, request: Request, now_s: float) -> None:
        """Ignore the job."""

    def leave(self, placement: Placement, now_s: float) -> None:
        """Do nothing, since no job starts."""

    def start(self, now_s: float) -> list[Placement]:
        """Start no job."""
        del now_s
        return []

    def alarm_s(self) -> float | None:
        """Return None: there is no alarm."""
        return None


def test_a_policy_that_forgets_a_job_is_found_out() -> None:
    """A policy that never starts a job raises an error. Otherwise it would look fast."""
    with pytest.raises(GpuQueueError, match="1 jobs never started"):
        replay(requests((0, 1, 1, 1, None)), Never())


# ---- figures -----------------------------------------------------------------------------------------------------


def placed(*runs: tuple[float, float, int, float, str]) -> list[Placement]:
    """Return placements from (arrival, start, GiB, duration, user), each on one card."""
    return [
        Placement(
            request=Request(number=n, arrival_s=arrival_s, user=user, mem_bytes=mem * GIB, duration_s=duration_s),
            cards=(0,),
            start_s=start_s,
        )
        for n, (arrival_s, start_s, mem, duration_s, user) in enumerate(runs)
    ]


def test_the_figures_of_a_small_replay() -> None:
    """The waits are 0, 30 and 90 s.

    The slowdowns are 1, (30+30)/30 = 2 and (90+2)/10 = 9.2, because 2 s count as 10 s.
    """
    runs = placed((0, 0, 12, 100, "a"), (10, 40, 6, 30, "a"), (10, 100, 24, 2, "b"))

    reported = Outcome.of("x", runs, Site.parse("24G", slots=8), {})

    assert [1.0, 2.0, 9.2] == pytest.approx([bounded_slowdown(run) for run in runs])
    assert reported.all == Served(
        jobs=3,
        gpu_s=132.0,
        wait_mean_s=40.0,
        wait_median_s=30.0,
        wait_p90_s=90.0,
        wait_max_s=90.0,
        slowdown=pytest.approx(12.2 / 3),  # type: ignore[arg-type]
        turnaround_s=84.0,
        stretch=1.0,
    )
    assert (1.5, 9.2) == pytest.approx((reported.users["a"].slowdown, reported.users["b"].slowdown))
    assert reported.makespan_s == 102.0
    assert reported.memory == pytest.approx((12 * 100 + 6 * 30 + 24 * 2) / (24 * 102))
    assert reported.fairness == pytest.approx((1.5 + 9.2) ** 2 / (2 * (1.5**2 + 9.2**2)))


def test_a_bounded_slowdown_is_never_below_one() -> None:
    """A bounded slowdown is at least 1. A job of 2 s that waits for 3 s gives 0.5 without this bound."""
    (run,) = placed((0, 3, 1, 2, "a"))

    assert bounded_slowdown(run) == 1.0


def test_percentiles_are_by_the_nearest_rank() -> None:
    """Percentiles use the nearest rank: of ten values the fifth and the ninth, of one value that value."""
    values = [float(number) for number in range(1, 11)]

    assert (5.0, 9.0, 10.0) == (percentile(values, 0.5), percentile(values, 0.9), percentile(values, 1.0))
    assert percentile([7.0], 0.5) == 7.0


def test_jains_index_goes_from_one_for_all_to_one_in_n() -> None:
    """Jain's index is 1 for equal values, and 1/n if one of n users has everything."""
    assert jain([3.0, 3.0, 3.0, 3.0]) == 1.0
    assert jain([4.0, 0.0, 0.0, 0.0]) == 0.25
    assert jain([]) == 1.0


def test_the_course_of_the_memory_is_what_runs_at_each_moment() -> None:
    """The course is the used share of memory at each start and end: half, three quarters, a quarter, none."""
    runs = placed((0, 0, 12, 100, "a"), (0, 50, 6, 100, "a"))

    moments, shares = course(runs, Site.parse("24G", slots=8))

    assert moments == [0, 50, 100, 150]
    assert shares == pytest.approx([0.5, 0.75, 0.25, 0.0])
