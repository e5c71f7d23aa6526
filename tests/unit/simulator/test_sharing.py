"""Tests of the rivals that share devices by memory, with cases that were computed by hand."""

from __future__ import annotations

from itertools import pairwise

import pytest

from gpuqueue.model.job_spec import Priority
from gpuqueue.simulator.comparison import Served
from gpuqueue.simulator.ours import Chances, Moments
from gpuqueue.simulator.replay import Placement, Policy, replay, speed
from gpuqueue.simulator.rivals import Easy, FirstFit, Shortest
from gpuqueue.simulator.site import Site
from gpuqueue.simulator.trace import Request
from gpuqueue.text.units import GIB

#: Arrival in seconds, memory in GiB, GPUs, duration in seconds, time limit in seconds.
Asked = tuple[float, int, int, float, float | None]


def requests(*asked: Asked) -> list[Request]:
    """Return the jobs, numbered in the order of *asked*."""
    return [
        Request(
            number=number,
            arrival_s=arrival_s,
            user="ann",
            mem_bytes=mem * GIB,
            gpus=gpus,
            duration_s=duration_s,
            time_limit_s=limit_s,
        )
        for number, (arrival_s, mem, gpus, duration_s, limit_s) in enumerate(asked)
    ]


def a_site(text: str, slots: int = 8) -> Site:
    """Return a site without headroom."""
    return Site.parse(text, slots=slots)


def starts(policy: Policy, jobs: list[Request]) -> list[tuple[float, tuple[int, ...]]]:
    """Return the start time and the cards of each job."""
    placed = sorted(replay(jobs, policy), key=lambda each: each.request.number)
    return [(each.start_s, each.cards) for each in placed]


def test_first_fit_shares_cards_by_memory() -> None:
    """First fit shares a card by memory.

    A large job waits for an empty card, and smaller jobs pass it as long as they arrive.
    """
    jobs = requests((0, 12, 1, 100, None), (0, 12, 1, 50, None), (0, 24, 1, 10, None), (40, 12, 1, 100, None))

    assert starts(FirstFit(a_site("1x24G")), jobs) == [(0, (0,)), (0, (0,)), (150, (0,)), (50, (0,))]


def test_first_fit_counts_places_and_keeps_a_job_on_one_host() -> None:
    """First fit counts slots, here two on each card, and does not spread a job over two hosts."""
    jobs = requests((0, 1, 1, 10, None), (0, 1, 1, 10, None), (0, 1, 1, 20, None), (0, 1, 2, 5, None))

    assert starts(FirstFit(a_site("24G/24G", slots=2)), jobs[:3]) == [(0, (0,)), (0, (0,)), (0, (1,))]
    assert starts(FirstFit(a_site("24G/2x24G", slots=2)), jobs)[3] == (0, (1, 2))


def test_the_shortest_run_goes_first_whatever_its_limit() -> None:
    """Of three waiting jobs the shortest run starts first, although its limit is the longest."""
    jobs = requests((0, 24, 1, 50, None), (1, 24, 1, 30, 30), (2, 24, 1, 10, 900), (3, 24, 1, 20, None))

    assert [0, 80, 50, 60] == [start for start, _ in starts(Shortest(a_site("24G")), jobs)]


def test_easy_starts_what_ends_before_the_first_job_can_start() -> None:
    """The first waiting job needs the whole card at 100 s: from 10 s on, a limit of 90 s ends in time, 91 s do not."""
    head: tuple[Asked, ...] = ((0, 12, 1, 80, 100), (5, 24, 1, 10, 10))

    in_time = requests(*head, (10, 12, 1, 90, 90))
    too_long = requests(*head, (10, 12, 1, 10, 91))
    endless = requests(*head, (10, 12, 1, 10, None))

    assert [0, 100, 10] == [start for start, _ in starts(Easy(a_site("24G")), in_time)]
    assert [0, 80, 90] == [start for start, _ in starts(Easy(a_site("24G")), too_long)]
    assert [0, 80, 90] == [start for start, _ in starts(Easy(a_site("24G")), endless)]


def test_easy_starts_what_leaves_room_beside_the_first_job() -> None:
    """The first waiting job needs 20 of 24 GiB. Of two small jobs without a limit one fits beside it."""
    jobs = requests((0, 12, 1, 80, 100), (5, 20, 1, 10, 10), (6, 4, 1, 500, None), (7, 4, 1, 500, None))

    assert [0, 80, 6, 90] == [start for start, _ in starts(Easy(a_site("24G")), jobs)]


def test_easy_gives_a_job_on_two_cards_its_turn() -> None:
    """A job on two cards starts once the runs of its turn have ended, although small jobs keep coming.

    First fit lets all of them pass.
    """
    stream: list[Asked] = [(number * 50, 24, 1, 100, 100) for number in range(20)]
    jobs = requests(*stream[:2], (60, 24, 2, 10, 10), *stream[2:])

    assert starts(Easy(a_site("2x24G")), jobs)[2][0] == 150
    assert starts(FirstFit(a_site("2x24G")), jobs)[2][0] > 900


@pytest.mark.parametrize("policy", [FirstFit, Easy, Shortest])
def test_a_higher_priority_goes_first(policy: type[FirstFit | Easy]) -> None:
    """A job of a higher priority starts first, also if it arrived later and runs longer."""
    first, second = requests((0, 20, 1, 10, 10), (1, 20, 1, 10, 10))
    urgent = Request(number=2, arrival_s=2, user="b", mem_bytes=20 * GIB, duration_s=30, priority=Priority.URGENT)

    assert [0, 40, 10] == [start for start, _ in starts(policy(a_site("24G")), [first, second, urgent])]


# ---- Tests of runs that slow each other on a shared device, with cases that were computed by hand --------------------


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


# ---- Tests of what a device might get in a replay --------------------------------------------------------------------


def waiting_job(number: int, mem: int, *, gpus: int = 1) -> Request:
    """Return a request for *mem* GiB on each device."""
    return Request(number=number, arrival_s=0, user="ann", mem_bytes=mem * GIB, gpus=gpus, duration_s=60)


def asking(chances: Chances) -> list[int]:
    """Return the devices that might get something, and let each get nothing."""
    found = [place for place in range(3) if chances.might_start_any(place)]
    for place in found:
        chances.started_none(place)
    return found


def test_a_device_claims_again_only_if_something_changed() -> None:
    """After a claim that found nothing, a device claims again when a job arrives that fits, or when its run ends."""
    chances = Chances(Site.parse("2x24G,12G", slots=8), has_limits=False)
    large, small = waiting_job(0, 20), waiting_job(1, 10)
    chances.arrive(large)
    assert [0, 1] == asking(chances)
    assert [] == asking(chances)

    chances.arrive(small)
    assert [0, 1, 2] == asking(chances)
    run = Placement(request=large, cards=(0,), start_s=0)
    chances.start(run, 1)
    chances.leave(run)
    assert [0] == asking(chances)


def test_a_job_on_two_devices_concerns_both() -> None:
    """When one device has room for a job on two, the other one might get it too, unless it is reserved for a job."""
    chances = Chances(Site.parse("2x24G/24G", slots=8), has_limits=False)
    run, pair = Placement(request=waiting_job(0, 20), cards=(0,), start_s=0), waiting_job(1, 20, gpus=2)
    for request in (run.request, pair):
        chances.arrive(request)
    chances.start(run, 1)
    asking(chances)

    chances.leave(run)
    assert [0, 1] == asking(chances)
    chances.reserve({"sim-host0-1": "9:1:0:"}, {9: waiting_job(8, 24)})
    asking(chances)
    chances.leave(Placement(request=waiting_job(2, 0), cards=(0,), start_s=0))
    assert [0] == asking(chances)


def test_the_times_of_a_started_job_do_not_matter() -> None:
    """A time matters while its job waits, or if it is of no job."""
    waiting = {1, 2}
    moments = Moments(waiting)
    for moment_s, job_id in ((5.0, 1), (9.0, 2), (11.0, 0)):
        moments.add(moment_s, job_id)
    waiting.remove(1)

    assert not moments.pass_until(8.0)
    assert 9.0 == moments.first_s()
    assert moments.pass_until(9.0)
    assert moments.pass_until(11.0)


def test_with_limits_every_device_with_room_claims_each_time() -> None:
    """With limits a claim can drop a reservation, so none is left out except those of full devices."""
    chances = Chances(Site.parse("2x24G,4G", slots=8), has_limits=True)
    chances.arrive(waiting_job(0, 10))

    assert [0, 1] == asking(chances)
    assert [0, 1] == asking(chances)
