"""Who always has enough waiting gets their share of the time, whatever their jobs are like.

The scripts are the real ones, under the simulator's clock: a quarter of an hour of a busy card takes a second.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from long_search import search

from gpuqueue.embedded.scratch import scratch_store
from gpuqueue.queue.connect import connect
from gpuqueue.simulator.ours import Knobs, Ours
from gpuqueue.simulator.replay import replay
from gpuqueue.simulator.site import Site
from gpuqueue.simulator.trace import Request
from gpuqueue.text.units import GIB

#: How long the longest job of an example takes at most, and after how many of its lengths usage must be shared.
LONGEST_S, SETTLED, ROUNDS = 60, 3, 10
#: A time limit is so many times the length of the job that gives it; None: it gives none.
LIMITS = (1.0, 2.0, None)


@dataclass(frozen=True)
class Habit:
    """What a user's jobs are like: their lengths, in turn, and by how much their limits are longer."""

    lengths_s: tuple[int, ...]
    limit: float | None
    share: int = 1


habits = st.builds(
    Habit,
    lengths_s=st.lists(st.sampled_from([10, 30, LONGEST_S]), min_size=1, max_size=2).map(tuple),
    limit=st.sampled_from(LIMITS),
    share=st.sampled_from([1, 1, 2]),
)


@pytest.fixture(scope="module")
def scratch() -> Iterator[str]:
    """Return the address of a store as simulations have it."""
    with scratch_store() as url:
        yield url


def _requests(users: dict[str, Habit], slots: int) -> list[Request]:
    """Return more than each user could have run alone, all there from the beginning; the users take turns."""
    asked: list[tuple[str, int, float | None]] = []
    for name, habit in users.items():
        left_s = slots * LONGEST_S * (SETTLED + ROUNDS + 1)
        for length_s in itertools.cycle(habit.lengths_s):
            if left_s <= 0:
                break
            left_s -= length_s
            asked.append((name, length_s, None if habit.limit is None else length_s * habit.limit))
    return [
        Request(number=number, arrival_s=0, user=user, mem_bytes=GIB, duration_s=length_s, time_limit_s=limit_s)
        for number, (user, length_s, limit_s) in enumerate(asked)
    ]


class _Enough(Exception):
    """The time that is looked at is over."""


class _ForAWhile(Ours):
    """Our policy, until everybody has had enough time; ``runs`` are who ran from when to when."""

    def __init__(self, url: str, slots: int, shares: dict[str, float]) -> None:
        knobs = Knobs(shares=shares, reserve_after_s=None, age_after_s=None)
        super().__init__(url, Site.parse("24G", slots=slots), knobs)
        self.runs: list[tuple[str, float, float]] = []

    def start(self, now_s: float) -> list:  # type: ignore[type-arg]
        """Let them start, as long as anybody looks."""
        if now_s > LONGEST_S * (SETTLED + ROUNDS):
            raise _Enough
        started = super().start(now_s)
        self.runs += [(each.request.user, each.start_s, each.end_s) for each in started]
        return started


def _served_s(url: str, users: dict[str, Habit], slots: int) -> dict[str, float]:
    """Return for how long each user's jobs ran, once what nobody could know at the beginning was known."""
    client = connect(url)
    client.flushall()
    client.close()
    policy = _ForAWhile(url, slots, {name: float(habit.share) for name, habit in users.items()})
    try:
        with pytest.raises(_Enough):
            replay(_requests(users, slots), policy)
    finally:
        policy.close()
    begin_s, end_s = LONGEST_S * SETTLED, LONGEST_S * (SETTLED + ROUNDS)
    served = dict.fromkeys(users, 0.0)
    for user, start_s, stop_s in policy.runs:
        served[user] += max(0.0, min(stop_s, end_s) - max(start_s, begin_s))
    assert sum(served.values()) == pytest.approx(slots * (end_s - begin_s)), "the card is never empty"
    return served


@pytest.mark.full
def test_shares_converge(scratch: str) -> None:
    """Within one length of a job for each slot: so much is on its way at any moment, and not yet settled.

    Ten minutes were charged in advance for a job without a time limit: on eight slots, beside two users who said a
    minute, somebody whose jobs took half of one was served two thirds of what they were.
    """

    @search(6)
    @given(rows=st.lists(habits, min_size=2, max_size=3), slots=st.sampled_from([2, 4, 8]))
    @example(rows=[Habit((30,), None), Habit((30,), 2.0), Habit((30,), 2.0)], slots=8)
    def converge(rows: list[Habit], slots: int) -> None:
        users = dict(zip("abc", rows, strict=False))
        served = _served_s(scratch, users, slots)
        shares = sum(habit.share for habit in rows)
        longest_s = max(length_s for habit in rows for length_s in habit.lengths_s)
        for name, habit in users.items():
            wanted_s = sum(served.values()) * habit.share / shares
            assert abs(served[name] - wanted_s) <= (slots + 1) * longest_s, (name, served, users)

    converge()
