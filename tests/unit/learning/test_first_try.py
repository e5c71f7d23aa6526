"""Tests of the smaller first request of a job that runs again after a lack of memory."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuqueue.learning.advice import FOR_MOST, reason, reason_for, suggestion
from gpuqueue.learning.past_run import PastRun, Proof
from gpuqueue.learning.rule import Need, first_request, rounded_up, tried, with_margin
from gpuqueue.learning.signature import Lesson, Wanted, lesson_for
from gpuqueue.model.device import DeviceKind
from gpuqueue.text.units import GIB

#: The peaks of a program with two sizes, in GiB.
TWO_SIZES = [5, 5, 10, 5, 5, 5, 5, 5, 10, 5, 5, 5, 5, 5]


def a_run(gib: float, words: str = "", **changes: Any) -> PastRun:
    """Return a run with this peak."""
    defaults: dict[str, Any] = {"proof": Proof.PEAK, "kind": DeviceKind.GPU}
    return PastRun(bytes=int(gib * GIB), words=tuple(words.split()), **{**defaults, **changes})


def lesson(*runs: PastRun, **changes: Any) -> Lesson:
    """Return the lesson for a job without arguments."""
    result = lesson_for(Wanted(**{"words": (), **changes}), runs)
    assert result is not None
    return result


def enough(gib: float) -> int:
    """Return what is asked for three runs with this peak."""
    return rounded_up(with_margin([int(gib * GIB)] * 3))


@pytest.mark.parametrize(
    ("need", "request_", "room", "lost", "taken"),
    [(5, 5, None, 0, 5), (9, 5, None, 1, 2.5 + 10), (9, 2, None, 3, 1 + 2 + 4 + 16), (9, 6, 10, 1, 3 + 10)],
)
def test_a_lost_run_has_half_of_its_time_and_the_next_one_twice_as_much(
    need: int, request_: int, room: int | None, lost: int, taken: float
) -> None:
    """Up to the device: that is what a lack of memory costs."""
    assert (lost, taken) == tried(need, request_, room)


def test_a_program_with_two_sizes_asks_for_the_usual_one() -> None:
    """Regression: it asked for the larger one each time, 88 % more than its peaks."""
    result = lesson(*map(a_run, TWO_SIZES)).learned

    assert enough(10) == result.mem_bytes
    assert enough(5) == result.first_within(None)


@pytest.mark.parametrize(
    "peaks",
    [[5, 5.2] * 10, [10, 5, 5, 5], [5 * 1.02**-number for number in range(20)], [10, 5, 10, 5, 10, 5, 10, 5]],
    ids=["steady", "few", "growing", "as often large"],
)
def test_other_programs_ask_for_the_largest(peaks: list[float]) -> None:
    """Where nothing varies, too little is known, or retries cost more, no run is lost."""
    result = lesson(*map(a_run, peaks)).learned

    assert result.first_bytes is None
    assert result.mem_bytes == result.first_within(None)


def test_only_runs_that_are_all_alike_are_weighed() -> None:
    """Two runs with exactly this code come before all others; one with other arguments says nothing about a share."""
    exact = [a_run(21.9, code="a"), a_run(21.9, code="a")]
    others = [a_run(gib, code="b") for gib in TWO_SIZES]

    assert lesson(*others, code="b").learned.first_bytes is not None
    assert lesson(*others, *exact, code="a").learned.first_bytes is None
    assert lesson(*[a_run(gib, "--batch 1") for gib in TWO_SIZES]).learned.first_bytes is None


def test_a_lack_of_memory_that_no_run_repaired_asks_for_more() -> None:
    """What was not enough for a job is no first request for the next one."""
    died = a_run(12, proof=Proof.DIED)

    assert 24 * GIB == lesson(died, *map(a_run, TWO_SIZES)).learned.first_within(None)


def test_a_filled_allocation_needs_no_margin() -> None:
    """Else each run would fill its larger cap again."""
    filled = [a_run(enough(5) / GIB, proof=Proof.CAPPED)] * 6

    assert enough(5) == lesson(*filled, *map(a_run, TWO_SIZES)).learned.first_within(None)


def test_advice_to_a_person_has_room_for_all() -> None:
    """Who types a number reads what is enough, and who asks for auto reads that some runs are run again."""
    result = lesson(*map(a_run, TWO_SIZES))

    assert suggestion(40 * GIB, result) == "the last 14 runs peaked at 5G to 10G: 11.3G would do; asking 40G"
    assert f"{reason(result)}; {FOR_MOST}" == reason_for(result.learned.first_within(None), result)
    assert reason(result) == reason_for(result.learned.mem_bytes, result)


@given(st.lists(st.integers(1, 2**40), max_size=40), st.none() | st.integers(1, 2**40))
def test_a_first_request_is_one_of_those_that_were_enough(sizes: list[int], room_bytes: int | None) -> None:
    """It is above no number that has room for all, and deterministic."""
    needs = [Need(size, with_margin([size] * 3)) for size in sizes]
    result = first_request(needs, room_bytes)

    assert result is None or result in {need.enough_bytes for need in needs}
    assert result == first_request(needs, room_bytes)
