"""Tests of the line of a numeric argument that moves the peak."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gpuqueue.learning.advice import reason, reason_for, suggestion
from gpuqueue.learning.line import MAX_BYTES, number_of
from gpuqueue.learning.past_run import PastRun, Proof
from gpuqueue.learning.rule import rounded_up, with_margin
from gpuqueue.learning.signature import Lesson, Wanted, expected_utilisation, lesson_for
from gpuqueue.model.device import DeviceKind
from gpuqueue.model.mem_source import MemKind, MemSource, Signature
from gpuqueue.text.units import GIB, MIB, format_bytes


def a_run(words: str, size_bytes: float, **changes: Any) -> PastRun:
    """Return a run with these arguments and this peak."""
    defaults: dict[str, Any] = {"proof": Proof.PEAK, "kind": DeviceKind.GPU}
    return PastRun(bytes=int(size_bytes), words=tuple(words.split()), **{**defaults, **changes})


def batch_peak(batch: float) -> float:
    """Return the peak of a program that needs 1.2 GiB and 40 MiB for each sample of its batch."""
    return 1229 * MIB + 40 * MIB * batch


def of_batches(*batches: float, more: str = "") -> list[PastRun]:
    """Return three runs of that program with each batch size."""
    return [a_run(f"--batch-size {batch:g} {more}", batch_peak(batch)) for batch in batches for _ in range(3)]


def lesson(words: str, *runs: PastRun, **changes: Any) -> Lesson:
    """Return the lesson for a job with these arguments."""
    result = lesson_for(Wanted(words=tuple(words.split()), **changes), runs)
    assert result is not None
    return result


def test_a_larger_batch_asks_for_its_peak_on_the_line_and_the_usual_margin() -> None:
    """Regression: after batches of 16, 32 and 64, one of 128 asked 4.6G and died at 6.2G; one of 4 asked 4.6G."""
    runs = of_batches(64, 32, 16)
    large, small = (lesson(f"--batch-size {batch}", *runs) for batch in (128, 4))

    assert (Signature.LINE, 9) == (large.signature, large.learned.peaks)
    assert rounded_up(with_margin([int(batch_peak(128))] * 3)) == large.learned.mem_bytes
    assert rounded_up(with_margin([int(batch_peak(4))] * 3)) == small.learned.mem_bytes


def test_the_reason_has_the_line() -> None:
    """Whoever reads it can compute the number, and learns what the line knows."""
    words = "runs with batch-size 16 to 64 peaked at 1.2G + 40M x batch-size"
    runs = of_batches(64, 32, 16)

    assert f"9 {words}, 6.2G for 128" == reason(lesson("--batch-size 128", *runs))
    assert f"asking 4G, but 9 {words}, 6.2G for 128: the job may die, 7.1G would do" == suggestion(
        4 * GIB, lesson("--batch-size 128", *runs)
    )
    assert f"9 {words}, 6.2G for 128: 7.1G would do; asking 40G" == suggestion(
        40 * GIB, lesson("--batch-size 128", *runs)
    )
    assert reason(lesson("128", *[a_run(str(batch), batch_peak(batch)) for batch in (16, 32, 64)])).startswith(
        "3 runs with argument 1 16 to 64 peaked at 1.2G + 40M x argument 1"
    )


@pytest.mark.parametrize(("batch", "is_far"), [(128, False), (129, True)])
def test_beyond_twice_the_largest_value_the_line_says_so(batch: int, is_far: bool) -> None:  # noqa: FBT001 - a parameter
    """Nothing shows that a line goes on for ever."""
    far = lesson(f"--batch-size {batch}", *of_batches(16, 32, 64))

    assert far.line is not None
    assert is_far == far.line.is_far == reason(far).endswith(", which is more than twice 64")


def test_a_line_asks_for_no_more_than_the_device_can_give() -> None:
    """A prediction is no peak: the job may need less, so it may try all of a device."""
    runs = [a_run(f"--batch {batch}", batch * GIB, room_bytes=24 * GIB) for batch in (1, 2, 4)]

    assert 24 * GIB == lesson("--batch 64", *runs).learned.mem_bytes


def test_runs_with_the_same_argument_come_first() -> None:
    """One run with exactly these arguments is worth more than a line."""
    exact = a_run("--batch-size 128", 9 * GIB)
    result = lesson("--batch-size 128", *of_batches(16, 32, 64), exact)

    assert (Signature.ARGUMENTS, 9 * GIB, None) == (result.signature, result.learned.high_bytes, result.line)


def test_arguments_that_never_moved_the_peak_may_differ() -> None:
    """A seed is on no line and keeps no run from one."""
    runs = [
        a_run(f"--batch-size {batch} --seed {seed}", batch_peak(batch)) for batch in (16, 32, 64) for seed in range(3)
    ]
    result = lesson("--batch-size 128 --seed 1000", *runs)

    assert result.line is not None
    assert ("batch-size", 3, 16, 64) == (result.line.argument, result.line.values, result.line.low, result.line.high)


def test_other_arguments_that_move_the_peak_must_agree() -> None:
    """Two resolutions have two lines, and each job has that of its own."""
    wide = [a_run(f"--batch-size {batch} --width 512", 3 * batch_peak(batch)) for batch in (16, 32, 64)]
    narrow = of_batches(16, 32, 64, more="--width 128")

    assert "6.2G" == format_bytes(lesson("--batch-size 128 --width 128", *wide, *narrow).learned.high_bytes)
    assert "18.6G" == format_bytes(lesson("--batch-size 128 --width 512", *wide, *narrow).learned.high_bytes)


@pytest.mark.parametrize(
    "peaks",
    [
        {16: 2, 32: 3},
        {16: 1, 32: 4, 64: 16},
        {16: 2, 32: 8, 64: 3},
        {16: 8, 32: 6, 64: 4},
        {40: 5, 42: 5.3, 46: 5.6},
    ],
    ids=["two values", "quadratic", "up and down", "falling", "close values"],
)
def test_other_peaks_are_on_no_line(peaks: dict[int, float]) -> None:
    """The number is that of all runs of the script, as without a line."""
    result = lesson("--batch 48", *[a_run(f"--batch {batch}", size * GIB) for batch, size in peaks.items()])

    assert (Signature.SCRIPT, None) == (result.signature, result.line)


def test_noise_of_a_few_percent_stays_on_the_line_and_the_number_is_above_the_highest_run() -> None:
    """A run 4 % above the line would be as much above it with another value."""
    runs = [a_run(f"--batch {batch}", batch * GIB * times) for batch in (2, 4, 8) for times in (0.96, 1, 1.04)]
    result = lesson("--batch 6", *runs)

    assert result.line is not None
    assert 6.2 * GIB < (result.learned.high_bytes or 0) < 6.3 * GIB


def test_a_lack_of_memory_with_a_smaller_value_counts() -> None:
    """A run with a batch of 96 died with 12 GiB, so 128 needs more than that."""
    died = a_run("--batch-size 96", 12 * GIB, proof=Proof.DIED)
    larger = a_run("--batch-size 256", 12 * GIB, proof=Proof.DIED)

    assert 24 * GIB == lesson("--batch-size 128", *of_batches(16, 32, 64), died).learned.mem_bytes
    assert "7.1G" == format_bytes(lesson("--batch-size 128", *of_batches(16, 32, 64), larger).learned.mem_bytes)


def test_a_lack_of_memory_that_the_line_foretells_says_no_more_than_the_line() -> None:
    """A batch of 64 needs 3.7G, so that it died with 3G is no news. That it died with 5G is, though 128 needs 6.2G."""
    foretold, new = (a_run("--batch-size 64", had * GIB, proof=Proof.DIED) for had in (3, 5))
    own = a_run("--batch-size 128", 4 * GIB, proof=Proof.DIED)

    for died, size in ((foretold, "7.1G"), (own, "7.1G"), (new, "10G")):
        assert size == format_bytes(lesson("--batch-size 128", died, *of_batches(16, 32, 64)).learned.mem_bytes)


def test_a_lower_bound_with_a_smaller_value_counts() -> None:
    """A peak with a gap holds for a larger value too."""
    for proof in (Proof.AT_LEAST, Proof.PARTIAL):
        bound = a_run("--batch-size 96", 12 * GIB, proof=proof)
        assert 12 * GIB == lesson("--batch-size 128", bound, *of_batches(16, 32, 64)).learned.least_bytes


def test_runs_whose_peaks_other_arguments_moved_advise_no_smaller_request() -> None:
    """Regression: peaks of lengths 128 to 512 rise by the square, and the advice for 1024 was 4.3G."""
    runs = [a_run(f"--seq {length}", (length / 256) ** 2 * GIB) for length in (128, 256, 512)]
    still = [a_run(f"--seq {length} --to {length}", 5 * GIB) for length in (1, 2, 4)]

    assert suggestion(12 * GIB, lesson("--seq 1024", *runs)) is None
    assert "would do" in (suggestion(12 * GIB, lesson("--seq 8 --to 9 --x", *still)) or "")


def test_a_line_that_no_device_has_room_for_says_so() -> None:
    """Regression: it said that two thirds of the runs fit. And no line begins with 0 bytes."""
    known = lesson("--batch 64", *[a_run(f"--batch {batch}", batch * GIB, room_bytes=24 * GIB) for batch in (1, 2, 4)])

    assert reason_for(known.learned.mem_bytes, known) == (
        "3 runs with batch 1 to 4 peaked at 1G x batch, 64G for 64, which is more than twice 4; "
        "no device that the job may use gives enough"
    )


def test_a_line_is_not_sure_enough_for_a_default() -> None:
    """`learn_memory = default` takes only what runs with the same arguments have needed."""
    assert not lesson("--batch-size 128", *of_batches(16, 32, 64)).is_sure


def test_the_number_of_devices_is_on_no_line() -> None:
    """It is known as an argument, and a person sees no argument of that name."""
    runs = [a_run("", gpus * GIB, gpus=gpus) for gpus in (1, 2, 4)]

    assert Signature.SCRIPT is lesson("", *runs, gpus=8).signature


def test_the_utilisation_of_other_values_is_a_last_resort() -> None:
    """A line of peaks says nothing about the utilisation that the runs with the job's own value do not say better."""
    runs = [a_run(f"--batch {batch}", batch * GIB, utilisation=0.1) for batch in (1, 2, 4)]
    own = a_run("--batch 8", 8 * GIB, utilisation=0.9)

    assert 0.9 == expected_utilisation(Wanted(words=("--batch", "8")), [*runs, own])
    assert 0.1 == expected_utilisation(Wanted(words=("--batch", "8")), runs)


def test_the_source_of_such_a_number_is_kept() -> None:
    """The text of a spec is read back, and has words."""
    source = MemSource(MemKind.LEARNED, 9, Signature.LINE)

    assert source == MemSource.parse("learned 9 line")
    assert "learned from 9 runs whose peaks lie on a line of one argument" == source.words


@pytest.mark.parametrize("text", ["", "nan", "inf", "-1", "1e12", "64k", "1e400", "1e-31", "1e-257"])
def test_these_are_no_numbers_of_a_line(text: str) -> None:
    """A value that is no usable number takes part in no line."""
    assert number_of(text) is None


@given(
    st.lists(st.tuples(st.floats(0, 1e13), st.integers(0, 2**45)), max_size=12),
    st.floats(0, 1e13),
)
@example([(0.0, 1), (9.567503987782707e-257, 1), (2.483466367593476e-289, 2)], 0.0)  # a division by zero
@example([(0.0, 1), (1e-30, 1), (2e-30, 2)], 9e12)
def test_any_numbers_give_a_number_of_bytes(points: list[tuple[float, int]], value: float) -> None:
    """No history makes a submit fail or ask for less than nothing."""
    runs = [a_run(f"--x {number!r}", size) for number, size in points]
    result = lesson_for(Wanted(words=("--x", repr(value))), runs)

    assert result is None or 0 <= (result.learned.high_bytes or 0) <= MAX_BYTES
    assert result is None or reason(result)
