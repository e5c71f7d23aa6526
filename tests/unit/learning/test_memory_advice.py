"""Tests of the line that a submitter sees."""

from __future__ import annotations

import pytest

from gpuqueue.learning.advice import reason, suggestion
from gpuqueue.learning.past_run import PastRun, Proof
from gpuqueue.learning.rule import learned
from gpuqueue.learning.signature import Lesson
from gpuqueue.model.device import DeviceKind
from gpuqueue.model.mem_source import Signature
from gpuqueue.text.units import GIB, parse_bytes


def lesson(*sizes: float, proof: Proof = Proof.PEAK, signature: Signature = Signature.ARGUMENTS) -> Lesson:
    """Return what runs with these peaks, in GiB and newest first, teach."""
    runs = [PastRun(proof=proof, bytes=int(size * GIB), kind=DeviceKind.GPU) for size in sizes]
    found = learned(runs)
    assert found is not None
    return Lesson(signature=signature, learned=found)


TWELVE = [5.1, 5.3, *[5.2] * 10]


@pytest.mark.parametrize(
    ("asked", "sizes", "line"),
    [
        ("12G", TWELVE, "the last 12 runs peaked at 5.1G to 5.3G: 6.1G would do; asking 12G"),
        ("12G", [5.1] * 3, "the last 3 runs peaked at 5.1G: 5.9G would do; asking 12G"),
        ("4G", [5.1] * 3, "asking 4G, but the last 3 runs peaked at 5.1G: the job may die, 5.9G would do"),
        ("4G", [5.1], "asking 4G, but the last run peaked at 5.1G: the job may die, 6.7G would do"),
        ("12G", [5.1, 5.2], None),
        ("6.5G", [5.1] * 3, None),
        ("700M", [0.1] * 3, "the last 3 runs peaked at 102.4M: 384M would do; asking 700M"),
        ("576M", [0.1] * 3, None),
        ("5.5G", [5.1] * 3, None),
    ],
)
def test_a_line_where_the_history_knows_better(asked: str, sizes: list[float], line: str | None) -> None:
    """A line comes for requests below a peak, and for those that are much too large after three runs."""
    assert line == suggestion(parse_bytes(asked), lesson(*sizes))


def test_a_size_that_was_not_enough_is_named() -> None:
    """One run that died is enough for a line about the same request. A larger request gets no line."""
    died = lesson(6, proof=Proof.DIED)
    assert "asking 6G, but a run ran out of memory with 6G: try 12G" == suggestion(6 * GIB, died)
    assert suggestion(8 * GIB, died) is None


def test_a_size_that_no_device_gives_is_not_advised() -> None:
    """The line says that instead. It used to advise a size with which a job waits for ever."""
    died = lesson(23, proof=Proof.DIED)
    gone = "a run ran out of memory with 23G, and no device that the job may use gives enough"
    assert f"asking 23G, but {gone}" == suggestion(23 * GIB, died, 23 * GIB)
    assert f"asking 12G, but {gone}" == suggestion(12 * GIB, died, 16 * GIB)
    assert "asking 12G, but a run ran out of memory with 23G: try 46G" == suggestion(12 * GIB, died, 80 * GIB)
    high = "the last 3 runs peaked at 20G: the job may die, and no device that the job may use gives enough"
    assert f"asking 12G, but {high}" == suggestion(12 * GIB, lesson(20, 20, 20), 16 * GIB)


def test_a_request_below_a_lower_bound_gets_a_line() -> None:
    """A probe that ended early shows that a job needs at least as much."""
    probe = lesson(5.3, proof=Proof.AT_LEAST)
    assert suggestion(4 * GIB, probe) == (
        "asking 4G, but the last run needed at least 5.3G: the job may die, 6.9G would do"
    )
    assert suggestion(6 * GIB, probe) is None
    assert suggestion(20 * GIB, probe) is None


def test_a_line_says_if_the_arguments_were_others() -> None:
    """The reader can judge how far other runs are like the job."""
    known = suggestion(12 * GIB, lesson(5, 5, 5, signature=Signature.SCRIPT))
    assert "the last 3 runs with other arguments peaked at 5G: 5.8G would do; asking 12G" == known
    known = suggestion(12 * GIB, lesson(5, 5, 5, signature=Signature.MOVING))
    assert "the last 3 runs with such arguments peaked at 5G: 5.8G would do; asking 12G" == known


@pytest.mark.parametrize(
    ("proof", "words"),
    [
        (Proof.PEAK, "the last 2 runs peaked at 5G to 6G"),
        (Proof.DIED, "a run ran out of memory with 6G"),
        (Proof.CAPPED, "the last 2 runs filled 6G and did not need more"),
        (Proof.AT_LEAST, "one of the last 2 runs needed at least 6G"),
    ],
)
def test_a_learned_number_has_a_reason(proof: Proof, words: str) -> None:
    """The reason names the evidence, for each kind."""
    assert words == reason(lesson(6, 5, proof=proof))


@pytest.mark.parametrize(
    ("sizes", "words"), [([0], "the last run held no device memory"), ([0, 0], "the last 2 runs held no device memory")]
)
@pytest.mark.parametrize("proof", [Proof.PEAK, Proof.AT_LEAST])
def test_a_reason_says_that_nothing_was_held(sizes: list[float], words: str, proof: Proof) -> None:
    """Regression: it said that the last 0 runs peaked at an unknown size."""
    assert words == reason(lesson(*sizes, proof=proof))
