from __future__ import annotations

from gpuqueue.device import Peak, PeakSource
from workers.meter import INTERVAL_S, Meter


def test_the_peak_is_the_largest_sample_with_its_evidence() -> None:
    """Samples, looks without an answer and neighbours are counted along."""
    meter = Meter()
    for used in (1, 9, None, 4):
        meter.note(used, shared=used == 4)

    expected = Peak(
        bytes=9, source=PeakSource.NVML_SAMPLED, samples=3, na_samples=1, interval_s=INTERVAL_S, shared=True
    )
    assert expected == meter.peak(PeakSource.NVML_SAMPLED)
    assert 4 == meter.observed_bytes


def test_what_nobody_could_see_is_unknown_and_not_zero() -> None:
    """Only N/A answers give no peak."""
    meter = Meter()
    meter.note(None, shared=False)

    assert Peak.unknown(na_samples=1) == meter.peak(PeakSource.NVML_SAMPLED)


def test_the_kernels_own_maximum_counts_where_the_sampler_was_too_slow() -> None:
    """A run shorter than a sampling step still has a peak."""
    assert 77 == Meter().peak(PeakSource.HOST_RSS, at_least_bytes=77).bytes
