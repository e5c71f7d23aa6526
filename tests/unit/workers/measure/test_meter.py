from __future__ import annotations

import json

import pytest

from gpuqueue.codec.wire import to_stored
from gpuqueue.model.device import Activity, Health, Peak, PeakSource, Utilisation
from gpuqueue.text.units import MIB
from workers.measure.meter import Meter
from workers.measure.peak import ENOUGH_SAMPLES, peak_of

NVML = PeakSource.NVML_SAMPLED


def meter_of(*samples: int | None, shared: bool = False, before: int | None = None, device: int = 0) -> Meter:
    """Return a meter with *samples*, one second apart."""
    meter = Meter()
    meter.before_bytes = before
    for second, used in enumerate(samples):
        meter.note(used, at_s=float(second), shared=shared, device_bytes=device, pids=(7,))
    return meter


def test_the_peak_is_the_largest_sample_with_its_evidence() -> None:
    """The peak is the largest sample.

    It counts the samples, the polls without an answer, and whether the device was shared.
    """
    meter = meter_of(1, 9, None)
    meter.note(4, at_s=3.0, shared=True, device_bytes=0)

    expected = Peak(bytes=9, source=NVML, samples=3, na_samples=1, interval_s=1.0, shared=True)
    assert expected == peak_of(meter, NVML)
    assert 4 == meter.observed_bytes


@pytest.mark.parametrize(
    ("at_s", "end_s", "gap_s"),
    [
        ((0.1, 1.0, 2.0), 3.0, 0.0),
        ((0.1, 1.0, 8.0, 9.0), 10.0, 7.0),
        ((8.0, 9.0), 10.0, 8.0),
        ((0.1, 1.0), 10.0, 9.0),
    ],
)
def test_a_time_without_a_figure_is_a_gap(at_s: tuple[float, ...], end_s: float, gap_s: float) -> None:
    """The longest of at least five seconds counts: before the first figure, between two, or after the last."""
    meter = Meter()
    for second in at_s:
        meter.note(1, at_s=second, shared=False, device_bytes=0)
        meter.note(None, at_s=second + 0.5, shared=False, device_bytes=0)  # no figure
    assert gap_s == pytest.approx(meter.gap_until_s(end_s))


def test_the_time_until_another_worker_measures_is_a_gap() -> None:
    """What the last worker had not written down is lost, so a shorter time is a gap after a run was adopted."""
    meter = meter_of(1, 2)
    adopted = Meter.adopted(json.loads(json.dumps(to_stored(meter))))
    for figures, expected_s in ((meter, 0.0), (adopted, 2.0)):
        figures.note(1, at_s=3.0, shared=False, device_bytes=0)
        figures.note(1, at_s=4.9, shared=False, device_bytes=0)  # only the first time is shorter
        assert expected_s == figures.gap_until_s(5.0)


def test_no_figure_of_a_device_that_lists_no_process_is_not_zero() -> None:
    """In a container with pids of its own, memory appears on the device, and the driver lists no process."""
    meter = Meter()
    meter.before_bytes = 0
    for second in range(2 * ENOUGH_SAMPLES):
        meter.note(0, at_s=float(second), shared=False, device_bytes=1400 * MIB, listed=False)
    assert (1400 * MIB, PeakSource.DEVICE_DELTA) == (peak_of(meter, NVML).bytes, peak_of(meter, NVML).source)

    beside = Meter()
    beside.before_bytes = 0
    for second in range(2 * ENOUGH_SAMPLES):
        beside.note(0, at_s=float(second), shared=False, device_bytes=1400 * MIB, listed=False, alone=False)
    assert peak_of(beside, NVML).bytes is None


def test_unreported_memory_is_unknown_and_not_zero() -> None:
    """Polls without an answer give no peak."""
    assert Peak.unknown(na_samples=1) == peak_of(meter_of(None), NVML)


def test_a_few_empty_samples_of_a_short_run_prove_nothing() -> None:
    """A few zero samples of a short run give no peak.

    Enough zero samples give a peak of 0: the run never used the card.
    """
    assert PeakSource.NONE is peak_of(meter_of(0, 0), NVML).source
    assert (0, NVML) == (peak_of(meter_of(*[0] * ENOUGH_SAMPLES), NVML).bytes, NVML)


@pytest.mark.parametrize(
    ("samples", "accounted", "torch", "kernel", "figure", "source"),
    [
        ((5,), None, None, None, 5, NVML),
        ((5,), None, 4, None, 5, NVML),
        ((5,), None, 6, None, 6, PeakSource.TORCH),
        ((None,), None, 4, None, 4, PeakSource.TORCH),
        ((None,), None, 0, None, None, PeakSource.NONE),
        ((5,), {7: 5}, None, None, 5, PeakSource.NVML_ACCOUNTING),
        ((5,), {7: 8}, 6, None, 8, PeakSource.NVML_ACCOUNTING),
        ((5,), {7: 3}, None, None, 5, NVML),
        ((None,), {7: 8}, None, None, 8, PeakSource.NVML_ACCOUNTING),
        ((5,), {}, None, 7, 7, NVML),
        ((), None, None, 7, 7, NVML),
    ],
)
def test_the_largest_figure_has_its_source(
    samples: tuple[int | None, ...],
    accounted: dict[int, int] | None,
    torch: int | None,
    kernel: int | None,
    figure: int | None,
    source: PeakSource,
) -> None:
    """The largest figure wins, with its source.

    Each source can only be too low, so a larger figure saw what the others missed.
    """
    peak = peak_of(meter_of(*samples), NVML, accounted=accounted, torch_bytes=torch, kernel_bytes=kernel)

    assert (figure, source) == (peak.bytes, peak.source)


def test_samples_before_the_driver_stopped_reporting_are_no_peak_of_zero() -> None:
    """Zero samples before the driver stopped reporting do not make a peak of 0.

    A run imports for seconds, then uses memory that the driver does not report, so its peak is unknown.
    """
    imports = [0] * (3 * ENOUGH_SAMPLES)
    assert PeakSource.NONE is peak_of(meter_of(*imports, None, shared=True), NVML).source

    alone = peak_of(meter_of(*imports, None, before=10, device=40), NVML)
    assert (30, PeakSource.DEVICE_DELTA) == (alone.bytes, alone.source)


def test_the_interval_is_the_measured_mean() -> None:
    """The interval is the measured mean time between two polls, whatever the configured interval was."""
    meter = Meter()
    for at_s in (0.0, 0.1, 0.2, 0.3, 1.3):
        meter.note(5, at_s=at_s, shared=False, device_bytes=5)

    assert 0.325 == peak_of(meter, NVML).interval_s


def test_of_several_processes_the_drivers_maxima_are_a_lower_bound() -> None:
    """The driver's maximums of several processes are a lower bound and are not summed.

    Two processes that used 5 each at different times never used 10. An equal sample has precedence.
    """
    meter = meter_of(5, 5)
    meter.pids = {7, 8}

    peak = peak_of(meter, NVML, accounted={7: 5, 8: 5})

    assert (5, NVML) == (peak.bytes, peak.source)


@pytest.mark.parametrize(("shared", "figure"), [(False, 30), (True, None)])
def test_the_growth_of_the_device_counts_only_without_other_processes(*, shared: bool, figure: int | None) -> None:
    """The growth of the device's use counts only if no other process was there.

    It is the last resort for a driver that reports no processes.
    """
    peak = peak_of(meter_of(None, None, shared=shared, before=10, device=40), NVML)

    assert figure == peak.bytes
    assert (PeakSource.DEVICE_DELTA if figure else PeakSource.NONE) is peak.source


def test_the_activity_of_a_run() -> None:
    """The activity has the time of the first memory, the utilisation and the temperature.

    Unknown values stay unknown.
    """
    meter = meter_of(0, 0, 6, 6)
    assert Activity(first_memory_s=2.0) == meter.activity()

    for utilisation, temperature_c in ((0.5, 40.0), (1.0, 71.0), (None, None)):
        meter.note_health(Health(utilisation=utilisation, temperature_c=temperature_c))

    seen = Activity(first_memory_s=2.0, utilisation_mean=0.75, utilisation_max=1.0, temperature_max_c=71.0)
    assert seen == meter.activity()


def test_another_worker_continues_the_figures() -> None:
    """All figures survive the file that passes them to another worker."""
    meter = meter_of(0, 9, None, before=3, device=50)
    meter.note_health(Health(utilisation=0.25, temperature_c=55.0))

    other = Meter.adopted(json.loads(json.dumps(to_stored(meter))))

    assert peak_of(meter, NVML, accounted={7: 11}) == peak_of(other, NVML, accounted={7: 11})
    assert (meter.activity(), meter.timeline(), {7}) == (other.activity(), other.timeline(), other.pids)
    assert (3, 47) == (other.before_bytes, other.delta_bytes)


def test_another_worker_continues_the_time_without_use() -> None:
    """The time for which a run has not used a device survives the worker. A file of an older version has none."""
    meter = meter_of(6, 6)
    for at_s in (1.0, 2.0):
        meter.note_use(Utilisation(busy=0.0), at_s)
    plain = json.loads(json.dumps(to_stored(meter)))

    assert 1.0 == Meter.adopted(plain).unused_since_s(3.0)
    del plain["unused"]
    assert Meter.adopted(plain).unused_since_s(3.0) is None
