"""Charts of statistics, and the style of all charts: the colour-blind safe palette of Okabe and Ito.

matplotlib is imported only when something is drawn. It is used without pyplot, so it needs no window system and keeps
no state between two figures. Names of jobs are never parsed as formulas.

matplotlib is an optional dependency, and ``show`` without ``--plot`` must start fast, so this module imports it only
when a figure is written.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Any

from gpuqueue.model.statistics import Course, Figures, Group, Statistics
from gpuqueue.text.sanitize import short
from gpuqueue.text.units import GIB
from gpuqueue.words import values

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BLUE, SKY, ORANGE, RED, DARK = "#0072B2", "#9CCDE8", "#E69F00", "#D55E00", "#909090"
STYLE = {
    "text.parse_math": False,
    "font.size": 10,
    "axes.titlesize": 12,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.titlepad": 22,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#666666",
    "axes.axisbelow": True,
    "grid.color": "#E4E4E4",
    "figure.dpi": 100,
    "svg.hashsalt": "gpuqueue",
}
#: Most users with a bar, and most devices with a label.
MOST_USERS, MOST_LABELS = 12, 32
#: Least number of rows in a chart of users, so that a single bar does not fill it.
LEAST_ROWS = 4
#: Units of a time axis: shortest span for the unit in seconds, length of the unit in seconds, name.
_UNITS = ((2 * 86400, 86400, "days"), (2 * 3600, 3600, "hours"), (120, 60, "minutes"), (0, 1, "seconds"))


@contextmanager
def style() -> Iterator[None]:
    """Draw in gpuqueue's style inside the context, without warnings about missing glyphs."""
    import warnings  # noqa: PLC0415 - only for drawing

    import matplotlib as mpl  # noqa: PLC0415 - an extra, and slow to import

    logging.getLogger("matplotlib").setLevel(logging.ERROR)
    with mpl.rc_context(STYLE), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def new_figure(width: float, height: float) -> Figure:
    """Return an empty figure of this size, in inches."""
    from matplotlib.figure import Figure  # noqa: PLC0415 - as in style

    return Figure(figsize=(width, height), layout="constrained", facecolor="white")


def overview(people: Statistics, course: Course, title: str) -> Figure:
    """Return a figure with four charts of a period: usage and memory by user, waits and devices over time."""
    with style():
        rows = min(MOST_USERS, len(people.groups))
        lower = max(3.2, 1.2 + 0.26 * min(MOST_LABELS, len(course.devices)))
        upper = 1.6 + 0.32 * max(LEAST_ROWS, rows)
        figure = new_figure(13, upper + lower + 0.6)
        engine: Any = figure.get_layout_engine()
        engine.set(w_pad=0.1, h_pad=0.08)
        figure.suptitle(title, fontsize=14, fontweight="bold", x=0.01, ha="left")
        axes: Any = figure.subplots(2, 2, gridspec_kw={"height_ratios": (upper, lower)})
        shown, others = people.groups[:MOST_USERS], people.groups[MOST_USERS:]
        _usage(axes[0][0], shown, others)
        _memory(axes[0][1], shown)
        _waits(axes[1][0], course, people.since)
        _devices(axes[1][1], figure, course, people.since)
        return figure


def _names(axes: Axes, labels: Sequence[str]) -> None:
    axes.set_yticks(range(len(labels)), [short(label, 20) for label in labels])
    axes.set_ylim(max(len(labels), LEAST_ROWS) - 0.4, -0.6)
    axes.tick_params(axis="y", length=0)


def _legend(axes: Axes) -> None:
    """Put the legend between the title and the plot area."""
    axes.legend(loc="lower left", bbox_to_anchor=(-0.01, 1), ncols=2, frameon=False, fontsize=9, borderaxespad=0.1)


def _nothing(axes: Axes, words: str) -> None:
    axes.grid(visible=False)
    axes.set_xticks([])
    axes.set_yticks([])
    axes.text(0.5, 0.5, words, transform=axes.transAxes, ha="center", va="center", color="#666666")


def _usage(axes: Axes, groups: Sequence[Group], others: Sequence[Group]) -> None:
    """Draw a bar for each user; the sum of the other users is in the label of the axis, since its bar would be huge."""
    amounts = [group.figures.gpu_s / 3600 for group in groups]
    axes.set_title("GPU time by user")
    together = values.hours(sum(group.figures.gpu_s for group in others))
    axes.set_xlabel("GPU-hours" + (f" ({len(others)} others together: {together})" if others else ""))
    axes.grid(visible=True, axis="x")
    bars = axes.barh(range(len(groups)), amounts, color=BLUE, height=0.7)
    axes.bar_label(bars, [values.hours(group.figures.gpu_s) for group in groups], padding=4, fontsize=9)
    axes.set_xlim(0, max([*amounts, 1e-9]) * 1.12)
    _names(axes, [group.label for group in groups])
    if not groups:
        _nothing(axes, "nothing ran")


def _memory(axes: Axes, groups: Sequence[Group]) -> None:
    """Draw the requested memory as a light bar, and the peak as a narrow bar within it."""
    asked = [(group.figures.asked_bytes or 0) / GIB for group in groups]
    peaks = [(group.figures.peak_bytes or 0) / GIB for group in groups]
    axes.set_title("Memory on a device: asked for, and used at the peak")
    axes.set_xlabel("GiB, mean over the time")
    axes.grid(visible=True, axis="x")
    wide = axes.barh(range(len(groups)), asked, color=SKY, height=0.7, label="asked for")
    # The edge makes a very small peak visible.
    edges = [1.5 if peak else 0.0 for peak in peaks]
    axes.barh(range(len(groups)), peaks, color=RED, edgecolor=RED, linewidth=edges, height=0.32, label="peak")
    ends = [max(pair) for pair in zip(asked, peaks, strict=True)]
    for place, (group, end) in enumerate(zip(groups, ends, strict=True)):
        used = group.figures.used
        words = "peak unknown" if used is None else f"{100 * used:.0f} %"
        axes.annotate(words, (end, place), (4, 0), textcoords="offset points", va="center", fontsize=9)
    axes.set_xlim(0, max([*ends, 1e-9]) * 1.18)
    _names(axes, [group.label for group in groups])
    if len(wide):
        _legend(axes)
    else:
        _nothing(axes, "nothing ran")


def time_unit(longest_s: float) -> tuple[float, str]:
    """Return the length in seconds and the name of the unit for an axis of *longest_s* seconds."""
    return next((size, name) for least, size, name in _UNITS if longest_s >= least)


def _middles(course: Course) -> list[datetime]:
    return [start + (end - start) / 2 for start, end in zip(course.bounds, course.bounds[1:], strict=False)]


def _time_axis(axes: Axes, course: Course, since: datetime) -> None:
    """Set up the time axis; its label says if the course begins after *since*, the beginning in the title."""
    from matplotlib.dates import AutoDateLocator, ConciseDateFormatter, date2num  # noqa: PLC0415 - as in style

    here = course.bounds[-1].astimezone().tzinfo
    locator = AutoDateLocator(tz=here, minticks=3, maxticks=8)
    axes.xaxis.set_major_locator(locator)
    axes.xaxis.set_major_formatter(ConciseDateFormatter(locator, tz=here))
    axes.set_xlim(date2num(course.bounds[0]), date2num(course.bounds[-1]))
    if course.bounds[0] > since:
        axes.set_xlabel(f"from the first run on, {values.when(course.bounds[0])[:16]}", fontsize=9)


def _waits(axes: Axes, course: Course, since: datetime) -> None:
    axes.set_title("How long jobs waited for their first start")
    known = [step.wait_p95_s for step in course.steps if step.wait_p95_s is not None]
    if not known:
        _nothing(axes, "no job was started")
        return
    size, unit = time_unit(max(known))
    axes.set_ylabel(unit)
    axes.grid(visible=True, axis="y")
    middles: Any = _middles(course)
    # The two lines may coincide, so the first one is broader and visible below the second.
    for name, colour, mark, words, broad in (
        ("wait_p95_s", ORANGE, "s", "95 of 100 waited no longer", 1.8),
        ("wait_median_s", BLUE, "o", "half waited no longer", 1.0),
    ):
        waits = [getattr(step, name) for step in course.steps]
        line = [math.nan if wait is None else wait / size for wait in waits]
        axes.plot(middles, line, color=colour, marker=mark, markersize=4 * broad, linewidth=1.5 * broad, label=words)
    axes.set_ylim(bottom=0)
    _time_axis(axes, course, since)
    _legend(axes)


def _devices(axes: Axes, figure: Figure, course: Course, since: datetime) -> None:
    """Draw a row for each device: its utilisation over time, white without a job, grey if it was not measured.

    If no device has measurements (simulated devices), draw the share of time that jobs held each device.
    """
    from matplotlib.colors import LinearSegmentedColormap  # noqa: PLC0415 - as in style
    from matplotlib.dates import date2num  # noqa: PLC0415 - as in style

    is_seen = any(step.utilisation is not None for _, steps in course.devices for step in steps)
    axes.set_title(
        "How busy each device was with jobs" if is_seen else "How much of the time each device was held by jobs"
    )
    if not course.devices:
        _nothing(axes, "no device was held")
        return
    edges: Any = [date2num(bound) for bound in course.bounds]
    rows = list(range(len(course.devices) + 1))
    lengths_s = [(end - start).total_seconds() for start, end in zip(course.bounds, course.bounds[1:], strict=False)]
    busy, unseen = (
        [[_share(*pair, measured=each) for pair in zip(steps, lengths_s, strict=True)] for _, steps in course.devices]
        for each in (True, False)
    )
    greys = LinearSegmentedColormap.from_list("held", ["#F0F0F0", DARK])
    if is_seen:
        axes.pcolormesh(edges, rows, unseen, cmap=greys, vmin=0, vmax=100)
    mesh = axes.pcolormesh(edges, rows, busy if is_seen else unseen, cmap="YlGnBu", vmin=0, vmax=100)
    labels = [label for label, _ in course.devices]
    every = math.ceil(len(labels) / MOST_LABELS)
    axes.set_yticks([place + 0.5 for place in range(0, len(labels), every)], [short(x, 20) for x in labels[::every]])
    axes.tick_params(axis="y", length=0)
    axes.set_ylim(len(labels), 0)
    for edge in rows[1:-1]:
        axes.axhline(edge, color="white", linewidth=1)
    _time_axis(axes, course, since)
    bar = figure.colorbar(mesh, ax=axes, pad=0.01, fraction=0.05)
    words = "% busy (white: no job, grey: not seen)" if is_seen else "% held (how busy is not known)"
    bar.set_label(words, fontsize=9)


def _share(step: Figures, length_s: float, *, measured: bool) -> float:
    """Return how much of the step jobs used a device, or only held it if its utilisation is unknown, in percent.

    Overlapping jobs count once. The result is NaN without a job, and if the utilisation is known but not *measured*.
    """
    if not step.held_s or (step.utilisation is not None) is not measured:
        return math.nan
    return (
        100 * min(1.0, (step.gpu_s + step.cpu_s) / length_s) * (1.0 if step.utilisation is None else step.utilisation)
    )
