"""Charts of a simulation: waits and allocated memory under each policy, in the style of ``charts.py``."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from gpuqueue.cli.plots.charts import BLUE, ORANGE, new_figure, style
from gpuqueue.simulator.comparison import Comparison, course
from gpuqueue.simulator.replay import Placement

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: Colour, width and line style of each policy, in the order of the table. Line styles differ for prints without colour.
STYLES: tuple[tuple[str, float, str | tuple[int, tuple[int, ...]]], ...] = (
    (BLUE, 2.6, "-"),
    ("#777777", 1.6, ":"),
    (ORANGE, 1.6, "--"),
    ("#009E73", 1.6, "-."),
    ("#CC79A7", 1.6, (0, (6, 2))),
    ("#56B4E9", 1.6, (0, (1, 1, 3, 1))),
)
#: Shorter waits count as this one, in seconds: the axis is logarithmic.
LEAST_S = 1.0
#: Steps of the chart over time.
STEPS = 200
_MARKS = ((1, "none"), (10, "10 s"), (60, "1 min"), (600, "10 min"), (3600, "1 h"), (6 * 3600, "6 h"))
_DAYS = ((86400, "1 d"), (3 * 86400, "3 d"), (10 * 86400, "10 d"), (30 * 86400, "30 d"), (100 * 86400, "100 d"))


def overview(reported: Comparison, title: str) -> Figure:
    """Return a figure with two charts: the distribution of waits, and the allocated memory over time."""
    with style():
        figure = new_figure(13, 5.2)
        figure.suptitle(title, fontsize=14, fontweight="bold", x=0.01, ha="left")
        left, right = figure.subplots(1, 2)
        _waits(left, reported)
        _memory(right, reported)
        figure.legend(*left.get_legend_handles_labels(), loc="outside lower left", ncols=6, frameon=False)
        return figure


def _each(reported: Comparison) -> list[tuple[str, Sequence[Placement], dict[str, Any]]]:
    """Return each policy with its runs and its line style; the first policy is drawn above the others."""
    return [
        (name, placed, {"color": colour, "linewidth": width, "linestyle": line, "zorder": 9 - place})
        for place, ((name, placed), (colour, width, line)) in enumerate(
            zip(reported.placements.items(), STYLES, strict=True)
        )
    ]


def _waits(axes: Axes, reported: Comparison) -> None:
    axes.set_title("Share of the jobs that waited no longer than …")
    longest_s = LEAST_S
    for name, placed, drawn_as in _each(reported):
        waits = sorted(max(LEAST_S, each.wait_s) for each in placed)
        longest_s = max(longest_s, waits[-1])
        shares = [100 * (place + 1) / len(waits) for place in range(len(waits))]
        axes.step([LEAST_S, *waits], [0, *shares], where="post", label=name, **drawn_as)
    axes.set_xscale("log")
    marks = [mark for mark in (*_MARKS, *_DAYS) if mark[0] <= longest_s * 1.5]
    axes.set_xticks([at_s for at_s, _ in marks], [words for _, words in marks])
    axes.minorticks_off()
    axes.set_xlim(LEAST_S * 0.9, max(longest_s * 1.1, 60))
    axes.set_ylim(0, 101)
    axes.set_ylabel("% of the jobs")
    axes.grid(visible=True)


def _memory(axes: Axes, reported: Comparison) -> None:
    """Draw the mean of each step: a line with every start and end would be unreadable."""
    axes.set_title("Share of all memory that is allocated")
    last_s = max(outcome.makespan_s for outcome in reported.outcomes)
    size_s, unit = (86400, "days") if last_s > 3 * 86400 else (3600, "hours") if last_s > 2 * 3600 else (60, "minutes")
    step_s = last_s / STEPS
    for name, placed, drawn_as in _each(reported):
        means = [100 * share for share in _means(*course(placed, reported.site), step_s)]
        edges = [number * step_s / size_s for number in range(STEPS + 1)]
        axes.stairs(means, edges, baseline=None, label=name, **drawn_as)
    axes.set_xlim(0, last_s / size_s)
    axes.set_ylim(0, 101)
    axes.set_xlabel(f"{unit} since the first arrival")
    axes.set_ylabel("%")
    axes.grid(visible=True)


def _means(moments: Sequence[float], shares: Sequence[float], step_s: float) -> list[float]:
    """Return the mean share in each step; *shares* apply from one of *moments* to the next, in seconds."""
    held = [0.0] * STEPS
    ends = itertools.islice(moments, 1, None)
    for from_s, to_s, share in zip(moments, ends, shares, strict=False):
        for step in range(min(STEPS - 1, int(from_s / step_s)), min(STEPS - 1, int(to_s / step_s)) + 1):
            overlap_s = min(to_s, (step + 1) * step_s) - max(from_s, step * step_s)
            held[step] += share * max(0.0, overlap_s)
    return [each / step_s for each in held]
