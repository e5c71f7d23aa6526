"""Tests of the figures of how much one run used one device, over its whole time."""

from __future__ import annotations

import json

import pytest

from gpuqueue.codec.wire import from_plain, to_stored
from gpuqueue.errors import Unreadable
from gpuqueue.model.device import Utilisation
from workers.measure.meter import Distribution, OwnActivity

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
