"""Tests of the rule that computes a request from earlier peaks."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuqueue.learning.advice import FOR_MOST, reason, reason_for, suggestion
from gpuqueue.learning.past_run import OnDevice, PastRun, Proof, proof_of
from gpuqueue.learning.rule import (
    LAST,
    LEAST_BYTES,
    SEVERAL,
    Learned,
    Need,
    first_request,
    learned,
    rounded_down,
    rounded_up,
    tried,
    with_margin,
)
from gpuqueue.learning.signature import Lesson, Wanted, lesson_for
from gpuqueue.model.device import DeviceKind, PeakSource
from gpuqueue.model.run import NoteKind
from gpuqueue.text.units import GIB, MIB, format_bytes, parse_bytes

SIZES = st.integers(1, 80 * GIB)
PEAKS = st.lists(SIZES, min_size=1, max_size=40)


def a_run(size: int, proof: Proof = Proof.PEAK, room_bytes: int | None = None) -> PastRun:
    """Return a run with one figure."""
    return PastRun(proof=proof, bytes=size, kind=DeviceKind.GPU, room_bytes=room_bytes)


def need(*runs: PastRun) -> int:
    """Return the need of *runs*, newest first."""
    return must(learned(runs)).need_bytes


def must(found: Learned | None) -> Learned:
    """Return *found*."""
    assert found is not None
    return found


def of_peaks(sizes: list[int]) -> int:
    """Return the need after runs with these peaks, newest first."""
    return need(*map(a_run, sizes))


def test_three_runs_have_the_small_margin() -> None:
    """From three runs on it is the largest peak, a tenth and 256 MiB."""
    assert 1.1 * 10 * GIB + 256 * MIB == of_peaks([8 * GIB, 10 * GIB, 9 * GIB])


@pytest.mark.parametrize("sizes", [[10 * GIB], [10 * GIB, 9 * GIB]])
def test_one_or_two_runs_have_the_large_margin(sizes: list[int]) -> None:
    """One or two runs of a large program give three tenths more."""
    assert 1.3 * 10 * GIB == of_peaks(sizes)


@given(SIZES, st.integers(1, SEVERAL))
def test_fewer_runs_never_give_less(size: int, runs: int) -> None:
    """A script with a peak of 307M was advised 448M after two runs and 640M after three."""
    assert of_peaks([size] * runs) >= of_peaks([size] * SEVERAL)
    assert of_peaks([size]) == need(a_run(size, Proof.AT_LEAST))


@pytest.mark.parametrize("proof", [Proof.PEAK, Proof.AT_LEAST])
def test_a_run_that_held_nothing_leaves_a_size_to_ask_for(proof: Proof) -> None:
    """Regression: 0B was asked for and advised, which the queue refuses."""
    assert 256 * MIB == must(learned([a_run(0, proof)])).mem_bytes


#: The kinds of runs that teach something alone.
ALONE = sorted(set(Proof) - {Proof.PARTIAL})


@given(st.integers(-GIB, GIB), st.sampled_from(ALONE))
def test_no_size_is_too_small_to_ask_for(room: int, proof: Proof) -> None:
    """Neither a small peak nor a device that is nearly full gives less than the smallest size."""
    found = must(learned([a_run(1, proof, room_bytes=room)]))
    assert min(found.mem_bytes, found.within(room), rounded_up(0)) >= LEAST_BYTES


def test_no_run_teaches_nothing() -> None:
    """Without a run the answer is unknown, and not 0."""
    assert learned([]) is None


@given(PEAKS)
def test_it_is_never_below_a_peak_that_counts(sizes: list[int]) -> None:
    """The number is above the largest of the newest peaks."""
    assert of_peaks(sizes) >= max(sizes[:LAST])


@given(st.lists(st.builds(a_run, SIZES, st.sampled_from(Proof), st.none() | SIZES), min_size=1, max_size=LAST))
def test_it_is_never_below_what_was_seen(runs: list[PastRun]) -> None:
    """No kind of run gives a number that is below its figure, whatever the size of its device."""
    found = must(learned([*runs, a_run(1, Proof.AT_LEAST)]))
    assert min(found.need_bytes, found.mem_bytes) >= max(run.bytes for run in runs)


@given(PEAKS, st.data(), st.integers(0, 8 * GIB))
def test_a_larger_peak_never_gives_less(sizes: list[int], data: st.DataObject, more: int) -> None:
    """The number grows with each single peak."""
    at = data.draw(st.integers(0, len(sizes) - 1))
    assert of_peaks([*sizes[:at], sizes[at] + more, *sizes[at + 1 :]]) >= of_peaks(sizes)


@given(st.lists(SIZES, min_size=SEVERAL, max_size=LAST - 1), SIZES)
def test_one_more_run_never_gives_less(sizes: list[int], newest: int) -> None:
    """Within the window, a further run only raises the number."""
    assert of_peaks([newest, *sizes]) >= of_peaks(sizes)


@given(st.lists(st.integers(5 * GIB, 5 * GIB + 200 * MIB), min_size=LAST, max_size=LAST), st.integers(6, 40))
def test_an_outlier_counts_until_it_is_out_of_the_window(usual: list[int], times: int) -> None:
    """One large peak raises the number for the next 19 runs, and is forgotten then."""
    outlier = times * GIB
    assert of_peaks([outlier, *usual]) >= outlier
    assert of_peaks([*usual[1:], outlier]) >= outlier
    assert of_peaks([*usual, outlier]) == of_peaks(usual)


@given(st.lists(st.integers(5 * GIB, 5 * GIB + 200 * MIB), min_size=SEVERAL, max_size=LAST - 1), st.integers(1, 1024))
def test_a_small_outlier_changes_nothing(usual: list[int], small_mib: int) -> None:
    """A run that needed little, such as one on a subset of the data, does not lower the number."""
    assert of_peaks([small_mib * MIB, *usual]) == of_peaks(usual)


def fails(peaks: list[int]) -> int:
    """Return how often a program with these *peaks*, oldest first, dies when each run asks for what was learned."""
    runs: list[PastRun] = []
    died = 0
    for peak in peaks:
        while runs and (asked := must(learned(runs)).mem_bytes) < peak:
            runs.insert(0, a_run(asked, Proof.DIED))
            died += 1
        runs.insert(0, a_run(peak))
    return died


@given(st.permutations([10] * 12 + [5] * 68))
def test_a_two_size_program_does_not_thrash(sizes: list[int]) -> None:
    """A program with two sizes dies at most once in each 20 runs, for the larger size is remembered for 20 runs."""
    assert fails([size * GIB for size in sizes]) <= len(sizes) / LAST


def test_a_program_that_alternates_dies_once() -> None:
    """If every fifth run is large, only the first large one dies."""
    assert 1 == fails([(10 if number % 5 == 4 else 5) * GIB for number in range(100)])


def test_a_run_that_died_doubles_what_it_had() -> None:
    """What was not enough is doubled, until a larger peak was seen."""
    died, small = a_run(6 * GIB, Proof.DIED), [a_run(5 * GIB)] * SEVERAL
    assert 12 * GIB == need(died)
    assert 12 * GIB == need(died, *small)
    assert need(a_run(8 * GIB), *small) == need(a_run(8 * GIB), died, *small)


def test_capped_runs_never_grow() -> None:
    """A run that fills what it gets asks for the same again, and the number does not climb to the whole device."""
    runs = [a_run(6 * GIB, Proof.CAPPED)]
    for _ in range(10):
        runs.insert(0, a_run(must(learned(runs)).mem_bytes, Proof.CAPPED))
    assert 6 * GIB == need(*runs)


def test_a_lower_bound_has_the_large_margin() -> None:
    """A peak whose source misses a part counts with three tenths more, even among sure ones."""
    runs = [a_run(10 * GIB, Proof.AT_LEAST), *[a_run(5 * GIB)] * SEVERAL]
    assert 13 * GIB == need(*runs)


def test_it_never_exceeds_the_device_unless_a_run_did() -> None:
    """A program that nearly fills its device asks for what a job can get there."""
    runs = [a_run(22 * GIB, room_bytes=24 * GIB)] * SEVERAL
    assert 23 * GIB == must(learned(runs, headroom_bytes=GIB)).mem_bytes
    assert 22 * GIB == must(learned(runs, headroom_bytes=3 * GIB)).mem_bytes


def test_the_largest_device_of_the_runs_counts() -> None:
    """A run that died on a small card may ask for what the large card of another run gives."""
    runs = [a_run(5 * GIB, Proof.DIED, room_bytes=8 * GIB), a_run(2 * GIB, room_bytes=24 * GIB)]
    assert 10 * GIB == must(learned(runs)).mem_bytes
    assert 8 * GIB == must(learned(runs[:1])).mem_bytes
    assert 9 * GIB == must(learned(runs[:1])).within(9 * GIB)


def test_what_a_device_gives_is_not_rounded_up() -> None:
    """A card that gives 23.15 GiB is asked for 23.1 GiB: a job that asks for 23.2 would wait for ever."""
    found = must(learned([a_run(20 * GIB, room_bytes=int(23.15 * GIB))]))
    assert "23.1G" == format_bytes(found.mem_bytes)


def test_a_run_that_filled_its_card_asks_for_no_more_than_the_card() -> None:
    """A run that filled a whole card of 23.15 GiB and ended well asks for that: 23.2 GiB would wait for ever."""
    room = int(23.15 * GIB)
    assert room == must(learned([a_run(room, Proof.CAPPED, room_bytes=room)])).mem_bytes


@given(SIZES)
def test_a_request_is_what_its_text_says(size: int) -> None:
    """The number that a message shows is the number that ``--mem`` with it asks for."""
    mem = rounded_up(size)
    assert size <= mem <= max(1.1 * size, size + 64 * MIB)
    assert parse_bytes(format_bytes(mem)) == mem


@given(SIZES)
def test_a_request_that_is_rounded_down_is_what_its_text_says(size: int) -> None:
    """A size that is rounded down is at most a tenth of a GiB smaller, and its text means the same."""
    mem = rounded_down(size)
    assert size - GIB / 10 <= mem <= size
    assert mem == 0 or parse_bytes(format_bytes(mem)) == mem


# ---- what a run proves -----------------------------------------------------------------------------------------------

SURE = OnDevice(lease_bytes=8 * GIB, peak_bytes=5 * GIB, source=PeakSource.NVML_SAMPLED, samples=10)


def proof(
    *devices: OnDevice,
    ended_well: bool = True,
    out_of_memory: bool = False,
    is_cut: bool = False,
    note_kinds: tuple[str, ...] = (),
) -> tuple[Proof, int] | None:
    """Return what a run proves."""
    return proof_of(devices, ended_well=ended_well, out_of_memory=out_of_memory, is_cut=is_cut, note_kinds=note_kinds)


def test_the_fullest_device_counts() -> None:
    """The memory of a job is that of each device, so the largest of its peaks counts."""
    assert (Proof.PEAK, 6 * GIB) == proof(SURE, replace(SURE, peak_bytes=6 * GIB))


@pytest.mark.parametrize(
    ("source", "samples", "is_sure"),
    [
        (PeakSource.NVML_ACCOUNTING, 0, True),
        (PeakSource.NVML_SAMPLED, 10, True),
        (PeakSource.SIMULATED, 10, True),
        (PeakSource.HOST_RSS, 10, True),
        (PeakSource.NVML_SAMPLED, 9, False),
        (PeakSource.TORCH, 100, False),
        (PeakSource.DEVICE_DELTA, 100, False),
    ],
)
def test_only_some_sources_are_trusted(source: PeakSource, samples: int, is_sure: bool) -> None:  # noqa: FBT001 - a case
    """The other sources are lower bounds."""
    wanted = Proof.PEAK if is_sure else Proof.AT_LEAST
    assert (wanted, 5 * GIB) == proof(replace(SURE, source=source, samples=samples))


def test_a_look_before_the_first_use_of_a_device_proves_nothing() -> None:
    """Regression: after a probe that was cut while it loaded its data, --mem auto asked for 256M."""
    assert (Proof.PEAK, 0) == proof(replace(SURE, peak_bytes=0))
    assert proof(replace(SURE, peak_bytes=0, samples=9)) is None
    assert proof(replace(SURE, peak_bytes=0), is_cut=True) is None


def test_a_run_that_was_not_measured_for_a_time_is_a_lower_bound() -> None:
    """It shows no smaller need, also if it was cut. What it filled was enough; what was not enough was not."""
    notes = (NoteKind.PEAK_IN_PART.value,)
    assert (Proof.PARTIAL, 5 * GIB) == proof(SURE, note_kinds=notes)
    assert (Proof.PARTIAL, 5 * GIB) == proof(SURE, is_cut=True, note_kinds=notes)
    assert (Proof.CAPPED, 8 * GIB) == proof(replace(SURE, peak_bytes=8 * GIB), note_kinds=notes)
    assert (Proof.DIED, 8 * GIB) == proof(SURE, out_of_memory=True, note_kinds=notes)
    assert proof(replace(SURE, peak_bytes=0), note_kinds=notes) is None


def test_a_peak_with_a_gap_teaches_nothing_downward() -> None:
    """Alone it teaches nothing. Beside other runs it counts as at least that."""
    gap = PastRun(proof=Proof.PARTIAL, bytes=5 * GIB, kind=DeviceKind.GPU)
    assert learned([gap, gap]) is None
    small, large = replace(gap, proof=Proof.PEAK, bytes=GIB), replace(gap, proof=Proof.PEAK, bytes=9 * GIB)
    more, most = learned([gap, small]), learned([gap, large])
    assert more is not None
    assert more.need_bytes >= 5 * GIB
    assert most == replace(learned([large]), runs=2, least_bytes=5 * GIB)


def test_one_unsure_device_makes_the_run_a_lower_bound() -> None:
    """A run is as sure as its least sure device."""
    assert (Proof.AT_LEAST, 5 * GIB) == proof(SURE, replace(SURE, source=PeakSource.TORCH))


def test_a_run_that_filled_its_allocation_shows_the_cap() -> None:
    """From 95 % of the allocation on, the peak is that of the cap; what it had was enough."""
    assert (Proof.CAPPED, 8 * GIB) == proof(replace(SURE, peak_bytes=int(7.7 * GIB)))
    assert (Proof.CAPPED, 9 * GIB) == proof(replace(SURE, peak_bytes=9 * GIB))


def test_a_run_that_died_shows_what_was_not_enough() -> None:
    """It counts even if its peak is unknown."""
    unknown = replace(SURE, peak_bytes=None, source=PeakSource.NONE)
    assert (Proof.DIED, 8 * GIB) == proof(unknown, ended_well=False, out_of_memory=True)


def test_other_endings_prove_nothing() -> None:
    """A run that failed or was cancelled may have ended before its peak."""
    assert proof(SURE, ended_well=False) is None
    assert proof(SURE, replace(SURE, peak_bytes=None, source=PeakSource.NONE)) is None


# ---- Tests of the smaller first request of a job that runs again after a lack of memory ------------------------------

#: The peaks of a program with two sizes, in GiB.
TWO_SIZES = [5, 5, 10, 5, 5, 5, 5, 5, 10, 5, 5, 5, 5, 5]


def run_of(gib: float, words: str = "", **changes: Any) -> PastRun:
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
    result = lesson(*map(run_of, TWO_SIZES)).learned

    assert enough(10) == result.mem_bytes
    assert enough(5) == result.first_within(None)


@pytest.mark.parametrize(
    "peaks",
    [[5, 5.2] * 10, [10, 5, 5, 5], [5 * 1.02**-number for number in range(20)], [10, 5, 10, 5, 10, 5, 10, 5]],
    ids=["steady", "few", "growing", "as often large"],
)
def test_other_programs_ask_for_the_largest(peaks: list[float]) -> None:
    """Where nothing varies, too little is known, or retries cost more, no run is lost."""
    result = lesson(*map(run_of, peaks)).learned

    assert result.first_bytes is None
    assert result.mem_bytes == result.first_within(None)


def test_only_runs_that_are_all_alike_are_weighed() -> None:
    """Two runs with exactly this code come before all others; one with other arguments says nothing about a share."""
    exact = [run_of(21.9, code="a"), run_of(21.9, code="a")]
    others = [run_of(gib, code="b") for gib in TWO_SIZES]

    assert lesson(*others, code="b").learned.first_bytes is not None
    assert lesson(*others, *exact, code="a").learned.first_bytes is None
    assert lesson(*[run_of(gib, "--batch 1") for gib in TWO_SIZES]).learned.first_bytes is None


def test_a_lack_of_memory_that_no_run_repaired_asks_for_more() -> None:
    """What was not enough for a job is no first request for the next one."""
    died = run_of(12, proof=Proof.DIED)

    assert 24 * GIB == lesson(died, *map(run_of, TWO_SIZES)).learned.first_within(None)


def test_a_filled_allocation_needs_no_margin() -> None:
    """Else each run would fill its larger cap again."""
    filled = [run_of(enough(5) / GIB, proof=Proof.CAPPED)] * 6

    assert enough(5) == lesson(*filled, *map(run_of, TWO_SIZES)).learned.first_within(None)


def test_advice_to_a_person_has_room_for_all() -> None:
    """Who types a number reads what is enough, and who asks for auto reads that some runs are run again."""
    result = lesson(*map(run_of, TWO_SIZES))

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
