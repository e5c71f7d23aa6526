"""Tests of the utilisation that a job is expected to have: which runs show one, and what follows from them."""

from __future__ import annotations

from typing import Any

import pytest

from gpuqueue.learning.past_run import OnDevice, PastRun, Proof, utilisation_of
from gpuqueue.learning.signature import Wanted, expected_duration_s, expected_utilisation
from gpuqueue.model.device import DeviceFilter, DeviceKind, PeakSource
from gpuqueue.text.units import GIB


def on_device(**changes: Any) -> OnDevice:
    """Return a device on which a run was alone and measured."""
    fields: dict[str, Any] = {"shared": False, "use": 0.5, "samples": 50, **changes}
    return OnDevice(lease_bytes=GIB, peak_bytes=GIB, source=PeakSource.NVML_SAMPLED, **fields)


def a_run(words: str, use: float | None, **changes: Any) -> PastRun:
    """Return a run with these arguments and this utilisation."""
    fields: dict[str, Any] = {"proof": Proof.PEAK, "kind": DeviceKind.GPU, "interpreter": "/py", **changes}
    return PastRun(bytes=GIB, words=tuple(words.split()), utilisation=use, **fields)


def expected(words: str, *runs: PastRun, **changes: Any) -> float | None:
    """Return the expected utilisation of a job with these arguments."""
    return expected_utilisation(Wanted(words=tuple(words.split()), interpreter="/py", **changes), runs)


@pytest.mark.parametrize(
    ("changes", "shown"),
    [({}, 0.5), ({"shared": 0}, 0.5), ({"use": 0.0}, 0.0)]
    + [(each, None) for each in ({"shared": True}, {"shared": 1}, {"shared": None}, {"use": None}, {"samples": 9})],
)
def test_only_a_run_that_was_alone_and_measured_shows_its_use(changes: dict[str, Any], shown: float | None) -> None:
    """Others on the device may slow a run, so that it seems to use less. Unknown is not alone."""
    assert shown == utilisation_of([on_device(**changes)])


def test_a_run_on_several_devices_shows_the_busiest() -> None:
    """The devices of a run are rarely used alike, and one that was shared spoils the figure."""
    assert 0.9 == utilisation_of([on_device(), on_device(use=0.9)])
    assert utilisation_of([on_device(), on_device(shared=True)]) is None


def test_three_runs_with_the_same_arguments_decide() -> None:
    """The median of the exact runs counts, and other arguments do not."""
    others = [a_run("--batch 1", 0.1)] * 5

    assert 0.8 == expected("--batch 8", *others, *(a_run("--batch 8", use) for use in (0.9, 0.8, 0.2)))


def test_runs_without_a_figure_are_passed_over() -> None:
    """Two of five runs with the same arguments were alone. They come before any number with other arguments."""
    same = [a_run("--batch 8", use) for use in (None, 0.6, None, 0.7, None)]

    assert 0.65 == expected("--batch 8", *same)
    assert 0.65 == expected("--batch 8", *[a_run("--batch 1", 0.3)] * 20, *same)
    assert 0.3 == expected("--batch 8", *[a_run("--batch 1", 0.3)] * 3, same[0])


def test_nothing_is_expected_without_such_a_run() -> None:
    """No run at all, none that was alone, and none on a GPU."""
    assert expected("") is None
    assert expected("", a_run("", None)) is None
    assert expected("", a_run("", 0.5, kind=DeviceKind.CPU), device=DeviceFilter.GPU) is None


def test_only_the_newest_runs_count() -> None:
    """A program that was changed is judged by its last twenty runs."""
    assert 0.9 == expected("", *[a_run("", 0.9)] * 20, *[a_run("", 0.1)] * 30)


@pytest.mark.parametrize(
    ("lasted", "expected_s"),
    [((), None), ((None,), None), ((30.0,), 30.0), ((30.0, None, 50.0), 50.0), (tuple(map(float, range(1, 31))), 18.0)],
)
def test_nine_of_ten_of_the_newest_runs_were_over_by_the_expected_duration(
    lasted: tuple[float | None, ...], expected_s: float | None
) -> None:
    """The newest twenty with the same arguments count, else those of the program. One that ended badly says nothing."""
    runs = [a_run("--batch 8", None, lasted_s=each) for each in lasted]

    assert expected_s == expected_duration_s(("--batch", "8"), runs)
    assert expected_s == expected_duration_s(("--batch", "1"), runs)
    assert 7.0 == expected_duration_s(("--batch", "1"), [*runs, a_run("--batch 1", None, lasted_s=7.0)])
