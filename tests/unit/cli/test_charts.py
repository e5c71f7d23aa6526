"""Tests of the charts of ``gpuqueue stats --plot`` when some figures are unknown."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from gpuqueue.cli.plots import charts
from gpuqueue.model.statistics import By, Course, Figures, Group, Statistics
from gpuqueue.text.units import GIB

pytest.importorskip("matplotlib")

NOON = datetime(2026, 11, 21, 12, tzinfo=timezone.utc)
HELD = [
    Figures(gpu_s=600.0 * n, held_s=900.0 * n, wait_median_s=3.0 * n, wait_p95_s=3.0 * n, waits=1) for n in (1, 3, 6, 2)
]
SEEN = [replace(each, utilisation=0.5) for each in HELD]


def drawn(*devices: list[Figures], users: tuple[Figures, ...] = (HELD[2],), before: timedelta = timedelta()) -> Any:
    """Return the charts of four hours on *devices*; the statistics begin *before* earlier than the course."""
    course = Course(
        bounds=tuple(NOON + timedelta(hours=n) for n in range(5)),
        steps=tuple(HELD),
        devices=tuple((f"box:{place}", tuple(steps)) for place, steps in enumerate(devices)),
    )
    people = Statistics(
        by=By.USER,
        since=NOON - before,
        until=NOON + timedelta(hours=4),
        groups=tuple(Group(key="ada", label="ada", figures=figures) for figures in users),
        total=HELD[2],
    )
    return charts.overview(people, course, "usage")


def shares(axes: Any) -> list[list[float]]:
    """Return the visible fields of each mesh, in percent."""
    return [[round(each) for each in mesh.get_array().compressed().ravel()] for mesh in axes.collections]


def test_devices_of_which_nobody_sees_how_busy_they_are_show_when_they_were_held() -> None:
    """Devices without utilisation data show how long jobs held them.

    Regression: for simulated devices a quarter of the picture was one grey field.
    """
    axes = drawn(HELD).axes[3]

    assert axes.get_title(loc="left") == "How much of the time each device was held by jobs"
    assert shares(axes) == [[17, 50, 100, 33]]


def test_among_devices_that_are_seen_the_others_are_grey_for_as_long_as_they_were_held() -> None:
    """Beside devices with utilisation data, the others are grey by the time they were held: the darker, the longer."""
    axes = drawn(SEEN, HELD).axes[3]

    assert axes.get_title(loc="left") == "How busy each device was with jobs"
    assert shares(axes) == [[17, 50, 100, 33], [8, 25, 50, 17]]


def test_two_courses_of_waits_that_are_the_same_are_both_seen() -> None:
    """Two equal waiting-time lines are both visible.

    Regression: one line hid the other, because both had the same width.
    """
    below, above = drawn(HELD).axes[2].get_lines()[:2]

    assert list(below.get_ydata()) == list(above.get_ydata())
    assert below.get_linewidth() > 1.5 * above.get_linewidth()
    assert below.get_markersize() > 1.5 * above.get_markersize()


def test_axes_that_begin_after_the_title_does_say_so() -> None:
    """Axes that begin later than the title say so.

    Regression: the title named a month while the axes showed the last day.
    """
    whole, late = drawn(SEEN), drawn(SEEN, before=timedelta(days=30))

    assert ["", ""] == [axes.get_xlabel() for axes in whole.axes[2:4]]
    assert all(axes.get_xlabel().startswith("from the first run on, 2026-11-21 ") for axes in late.axes[2:4])


def test_the_smallest_peak_is_seen() -> None:
    """The smallest peak is visible.

    Regression: a peak of a hundredth of the requested memory was narrower than a line.
    """
    none = replace(HELD[0], asked_byte_s=60_000.0 * GIB)
    used = replace(none, measured_s=600.0, measured_byte_s=60_000.0 * GIB, peak_byte_s=600.0 * GIB)

    axes = drawn(SEEN, users=(used, none)).axes[1]

    assert [1.5, 0.0] == [bar.get_linewidth() for bar in axes.containers[1]]
