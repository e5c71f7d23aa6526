"""Tests of what the run of a probe shows."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Any

import pytest

from gpuqueue.learning.probed import Probed, as_time, probed
from gpuqueue.model.device import DeviceKind, Peak, PeakSource
from gpuqueue.model.progress import Progress
from gpuqueue.model.run import Ending, EndingKind, Run, RunDevice
from gpuqueue.text.units import GIB, parse_duration

CUT = Ending.stopped(EndingKind.TIMED_OUT, -15)
WELL = Ending.from_status(0)


def shown(
    peak: float | None = 5, ending: Ending = CUT, *, share: float | None = None, took_s: float = 60.0, **changes: Any
) -> Probed:
    """Return what a run on a whole device of 24 GiB shows."""
    seen = Peak.unknown() if peak is None else Peak(bytes=int(peak * GIB), source=PeakSource.NVML_SAMPLED, samples=60)
    device = RunDevice(
        uuid="GPU-0", lease_bytes=24 * GIB, kind=DeviceKind.GPU, total_bytes=24 * GIB, **{"peak": seen, **changes}
    )
    run = Run(
        job_id=1,
        attempt=1,
        token="1.a",
        host="nodeA",
        worker="w0",
        devices=(device,),
        claimed_at=datetime(2026, 11, 1, tzinfo=timezone.utc),
        duration_s=took_s,
        ending=ending,
    )
    return probed(run, None if share is None else Progress(share=share), 512 * 2**20)


@pytest.mark.parametrize("ending", [CUT, WELL])
def test_the_memory_is_what_the_next_job_would_learn(ending: Ending) -> None:
    """One run, whole or not, asks for three tenths more than its peak."""
    found = shown(5, ending)

    assert (5 * GIB, 6.5 * GIB, ending is WELL) == (found.peak_bytes, found.mem_bytes, found.is_whole)


def test_it_is_at_most_what_a_job_can_get_on_the_device() -> None:
    """A program that nearly fills its device asks for all that a job can get there."""
    assert 23.5 * GIB == shown(20).mem_bytes
    assert 24 * GIB == shown(23.8, WELL).mem_bytes  # it filled the device, and that was enough


@pytest.mark.parametrize("ending", [Ending.from_status(1), Ending.stopped(EndingKind.CANCELLED, -15)])
def test_a_run_that_failed_shows_nothing(ending: Ending) -> None:
    """It may have ended before its peak."""
    assert Probed(is_whole=False) == shown(5, ending)


def test_an_unknown_peak_shows_nothing() -> None:
    """Unknown is not 0."""
    assert Probed(is_whole=True) == shown(None, WELL)


@pytest.mark.parametrize(
    ("ending", "took_s", "share", "time_s"),
    [
        (WELL, 60.0, None, 120.0),
        (WELL, 3000.0, 0.5, 4800.0),
        (CUT, 60.0, None, None),
        (CUT, 60.0, 0.001, None),
        (CUT, 60.0, 0.25, 360.0),
        (CUT, 600.0, 0.01, 90_000.0),
    ],
)
def test_the_time_is_half_as_much_again(
    ending: Ending, took_s: float, share: float | None, time_s: float | None
) -> None:
    """The whole time follows from the progress, if there is enough, rounded up to minutes, tens of them, or hours."""
    assert time_s == shown(5, ending, share=share, took_s=took_s).time_s


@pytest.mark.parametrize(("time_s", "text"), [(120.0, "2m"), (4800.0, "1h20m"), (90_000.0, "25h")])
def test_a_time_is_written_as_an_option_takes_it(time_s: float, text: str) -> None:
    """``--time`` reads what is proposed."""
    assert text == as_time(time_s)
    assert time_s == parse_duration(text)
