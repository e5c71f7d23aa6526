from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuqueue.codec.wire import from_plain, to_stored
from gpuqueue.errors import Unreadable
from gpuqueue.model.device import Activity, Health, Peak, PeakSource, Timeline, Utilisation
from gpuqueue.text.units import MIB
from workers.measure.idle import LAST_WARNING_S, MAX_GAP_S, Stage, Unused, stage_of
from workers.measure.meter import FIRST_STEP_S, MOST_POINTS, Distribution, Meter, OwnActivity, Trace
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


def test_a_line_is_the_largest_sample_of_each_step() -> None:
    """Each point is the largest sample of its step. A step without a sample is None, and not 0."""
    trace = Trace()
    for at_s, used in ((0.01, 1), (0.02, 5), (0.35, 3)):
        trace.note(at_s, used)

    assert Timeline(step_s=FIRST_STEP_S, bytes=(5, None, None, 3)) == trace.timeline()


def test_a_point_is_no_line() -> None:
    """A run that is too short has no timeline, so that a million short jobs need no space for it."""
    trace = Trace()
    assert trace.timeline() is None
    trace.note(0.05, 7)
    assert trace.timeline() is None


def test_three_days_take_no_more_room_than_three_minutes() -> None:
    """The step doubles until all points fit, and a spike of one sample is never lost."""
    trace = Trace()
    for second in range(3 * 24 * 3600):
        trace.note(float(second), 77 if second == 100_000 else 5)

    line = trace.timeline()

    assert line is not None
    assert MOST_POINTS / 2 < len(line.bytes) <= MOST_POINTS
    assert {5, 77} == set(line.bytes)
    assert 77 == line.bytes[int(100_000 / line.step_s)]


@given(
    st.lists(st.tuples(st.floats(0, 10**6, width=32), st.integers(0, 2**40)), min_size=1, max_size=200),
    st.integers(1, 240),
)
def test_whatever_comes_the_largest_stays_and_the_points_are_few(samples: list[tuple[float, int]], points: int) -> None:
    """The largest sample stays and the number of points is limited, for samples in any order.

    Times can go back when another worker adopts a run on another clock.
    """
    trace = Trace(points)
    for at_s, used in samples:
        trace.note(at_s, used)

    line = from_plain(Trace, to_stored(trace)).timeline()

    if line is None:
        assert max(at_s for at_s, _ in samples) < FIRST_STEP_S
        return
    assert len(line.bytes) <= max(2, points)
    assert max(used for _, used in samples) == max(each for each in line.bytes if each is not None)


# ---- Tests of the figures of how much one run used one device, over its whole time -----------------------------------

UNKNOWN = dict.fromkeys(("own_utilisation_mean", "own_utilisation_p95", "own_bandwidth_mean", "own_bandwidth_p95"))


def activity_of(*samples: Utilisation | None) -> OwnActivity:
    """Return the use by a run with *samples*."""
    own = OwnActivity()
    for each in samples:
        own.note(each)
    return own


def again(own: OwnActivity) -> OwnActivity:
    """Return *own* as another worker reads it."""
    return from_plain(OwnActivity, json.loads(json.dumps(to_stored(own))))  # type: ignore[no-any-return]


def test_the_use_has_a_mean_and_a_high_percentile() -> None:
    """The 95th percentile is the value that 95 of 100 samples do not exceed. Another worker continues both."""
    half = [Utilisation(busy=0.5, memory=0.25)] * 94
    high = [Utilisation(busy=0.75, memory=0.5)] * 3 + [Utilisation(busy=1.0, memory=1.0)] * 3
    own = again(activity_of(*half))
    for each in high:
        own.note(each)

    figures = again(own).figures()

    assert {
        "own_utilisation_mean": pytest.approx((94 * 0.5 + 3 * 0.75 + 3) / 100),
        "own_utilisation_p95": 0.75,
        "own_bandwidth_mean": pytest.approx((94 * 0.25 + 3 * 0.5 + 3) / 100),
        "own_bandwidth_p95": 0.5,
    } == figures


def test_what_is_known_for_less_than_half_of_a_run_is_unknown() -> None:
    """A run that was alone for a short part of its time has no figures, and neither has one without a sample."""
    one = Utilisation(busy=0.5, memory=0.5)

    assert UNKNOWN == activity_of().figures() == activity_of(None).figures()
    assert UNKNOWN == activity_of(one, None, None).figures()
    assert 0.5 == activity_of(one, None).figures()["own_utilisation_mean"]


def test_a_driver_without_bandwidth_reports_the_utilisation() -> None:
    """The figures are known or unknown independently of each other."""
    figures = activity_of(Utilisation(busy=0.5)).figures()

    assert (0.5, None) == (figures["own_utilisation_mean"], figures["own_bandwidth_mean"])


@pytest.mark.parametrize("plain", [{"counts": {"101": 1}}, {"counts": {"x": 1}}, {"counts": {"50": None}}])
def test_a_damaged_distribution_is_refused(plain: dict[str, object]) -> None:
    """Figures that no worker wrote are not continued."""
    with pytest.raises(Unreadable):
        from_plain(Distribution, plain)


HOUR_S = 3600.0


def unused_of(*samples: tuple[float, float | None]) -> Unused:
    """Return the time without use after *samples*: the time of each, and the share in which the device worked."""
    unused = Unused()
    for at_s, busy in samples:
        unused.note(busy, at_s)
    return unused


@pytest.mark.parametrize(
    ("samples", "since_s"),
    [
        (((10, 0.0), (20, 0.0)), 10),
        (((10, 0.0), (20, 0.01), (30, 0.0)), 30),
        (((10, 0.0), (20, 0.5)), None),
        ((), None),
        (((10, None), (20, None)), None),
        (((10, 0.0), (20, None), (30, 0.0)), 30),
        (((10, 0.0), (20, 0.0), (30, None)), None),
    ],
)
def test_the_time_without_use_begins_after_the_last_use(
    samples: tuple[tuple[float, float | None], ...], since_s: float | None
) -> None:
    """The time begins with the first sample after the last use, or after the last sample whose use is unknown."""
    assert since_s == unused_of(*samples).since_s(30.0)


def test_what_is_unknown_for_long_is_no_time_without_use() -> None:
    """A gap without known samples ends the time, because the run may have used the device in it."""
    last_s = 20.0
    unused = unused_of((10, 0.0), (last_s, 0.0))
    assert 10 == unused.since_s(last_s + MAX_GAP_S)
    assert unused.since_s(last_s + MAX_GAP_S + 1) is None

    unused.note(0.0, last_s + MAX_GAP_S + 1)

    assert last_s + MAX_GAP_S + 1 == unused.since_s(last_s + MAX_GAP_S + 2)


@pytest.mark.parametrize(
    ("unused_s", "after_s", "grace_s", "stage"),
    [
        (None, HOUR_S, None, Stage.IN_USE),
        (HOUR_S - 1, HOUR_S, None, Stage.IN_USE),
        (9 * HOUR_S, None, HOUR_S, Stage.IN_USE),
        (HOUR_S, HOUR_S, None, Stage.MARKED),
        (9 * HOUR_S, HOUR_S, None, Stage.MARKED),
        (2 * HOUR_S - LAST_WARNING_S - 1, HOUR_S, HOUR_S, Stage.MARKED),
        (2 * HOUR_S - LAST_WARNING_S, HOUR_S, HOUR_S, Stage.WARNED),
        (HOUR_S + 4, HOUR_S, 10.0, Stage.MARKED),
        (HOUR_S + 6, HOUR_S, 10.0, Stage.WARNED),
    ],
)
def test_the_stages_come_one_after_the_other(
    unused_s: float | None, after_s: float | None, grace_s: float | None, stage: Stage
) -> None:
    """A run is marked, and warned before the action. Unknown use never marks it, and a mark alone has no action."""
    assert stage is stage_of(unused_s, after_s=after_s, grace_s=grace_s)


@pytest.mark.parametrize(
    ("warned_s", "stage"),
    [(None, Stage.WARNED), (0.0, Stage.WARNED), (LAST_WARNING_S - 1, Stage.WARNED), (LAST_WARNING_S, Stage.DUE)],
)
def test_no_action_comes_without_its_warning(warned_s: float | None, stage: Stage) -> None:
    """However long a run has been idle, its owner has the time of the last warning.

    The site may have set the action a moment ago.
    """
    assert stage is stage_of(99 * HOUR_S, after_s=HOUR_S, grace_s=HOUR_S, warned_s=warned_s)
