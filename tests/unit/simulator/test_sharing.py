"""Tests of the rivals that share devices by memory, with cases that were computed by hand."""

from __future__ import annotations

import pytest

from gpuqueue.model.job_spec import Priority
from gpuqueue.simulator.replay import Policy, replay
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
