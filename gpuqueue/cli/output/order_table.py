"""The tables of ``stats --order``: how long jobs waited by size and usage, and would have under first-fit. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from gpuqueue.cli.output import render
from gpuqueue.cli.output.simulation_table import wait
from gpuqueue.model.statistics import Figures, Statistics
from gpuqueue.text.sanitize import short
from gpuqueue.words import values

if TYPE_CHECKING:  # it needs the queue and a store
    from gpuqueue.simulator.comparison import BesideFirstFit, Served

LEGEND = (
    "Small jobs have at most half of a card, large ones more, whole ones nine tenths\n"
    "or more, several more than one card. Light are the users with the fewest\n"
    "GPU-hours who together have a tenth of them, heavy the others."
)


def measured(by_size: Statistics, by_user: Statistics, light: frozenset[str]) -> str:
    """Return the waits of the jobs that started in a period. *light* are the light users."""
    head = ("WHOSE", "JOBS", "GPU H", "WAIT", "50 %", "95 %", "MOST")
    return render.table(head, [_line(*each) for each in _groups(by_size, by_user, light)], right=range(1, len(head)))


def _groups(by_size: Statistics, by_user: Statistics, light: frozenset[str]) -> Iterator[tuple[str, Figures]]:
    for group in by_size.groups:
        yield group.label, group.figures
    for name, is_light in (("light", True), ("heavy", False)):
        theirs = [each.figures for each in by_user.groups if (each.key in light) is is_light and each.figures.waits]
        if theirs:
            yield name, _together(theirs)
    yield "all", by_size.total


def _together(figures: list[Figures]) -> Figures:
    """Return the figures of several users. Percentiles of all of them do not follow from those of each."""
    waits = sum(each.waits for each in figures)
    return Figures(
        gpu_s=sum(each.gpu_s for each in figures),
        waits=waits,
        wait_mean_s=sum(each.waits * (each.wait_mean_s or 0.0) for each in figures) / waits,
        wait_max_s=max(each.wait_max_s or 0.0 for each in figures),
    )


def _line(name: str, figures: Figures) -> tuple[str, ...]:
    waits = (figures.wait_mean_s, figures.wait_median_s, figures.wait_p95_s, figures.wait_max_s)
    return (
        name,
        str(figures.waits),
        values.hours(figures.gpu_s),
        *("-" if each is None else wait(each) for each in waits),
    )


def replayed(replay: BesideFirstFit, devices: str) -> str:
    """Return the waits of each group under both policies, on *devices*, and what reservations cost."""
    head = ("REPLAYED", "JOBS", "OURS", "90 %", "MOST", "FIRST-FIT", "90 %", "MOST")
    rows = [
        (name, str(its.jobs), *(wait(each) for served in (its, replay.first_fit[name]) for each in _waits(served)))
        for name, its in replay.ours.items()
    ]
    idle = values.hours(replay.reserved_idle_device_s)
    notes = (
        f"The newest of these jobs on {short(devices, 36)}, by the rules of this site and by",
        "first-fit: each job as soon as it fits, no fair share and no reservations.",
        f"With OURS devices were idle for {idle} h because they were reserved.",
    )
    return "\n".join([render.table(head, rows, right=range(1, len(head))), "", *notes])


def _waits(served: Served) -> tuple[float, float, float]:
    return served.wait_mean_s, served.wait_p90_s, served.wait_max_s
