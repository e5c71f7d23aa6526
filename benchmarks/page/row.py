"""A row of the table: the aim, its figures, and whether it is met."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.measure.figure import RATES, Figure, Report
from benchmarks.measure.table import amount, times
from benchmarks.page.others import Others, factor


@dataclass(frozen=True, kw_only=True)
class Aim:
    """One bound on one figure: an upper bound, or a lower bound for a rate."""

    figure: str
    #: None if the figure is only shown.
    bound: float | None
    #: Whether the bound is for the ratio to the floor, and not for the value.
    of_ratio: bool = False
    #: Its label in a row with several figures.
    called: str = ""

    def of(self, figure: Figure) -> float | None:
        """Return the bounded quantity of *figure*."""
        return figure.ratio if self.of_ratio else figure.value

    def missed_by(self, figure: Figure) -> float | None:
        """Return by which factor *figure* misses this aim, None if it holds."""
        found = self.of(figure)
        if found is None or self.bound is None or math.isclose(found, self.bound):  # sums of clock ticks are not exact
            return None
        more_is_better = figure.unit in RATES and not self.of_ratio
        if found >= self.bound if more_is_better else found <= self.bound:
            return None
        return (self.bound / found if more_is_better else found / self.bound) if found and self.bound else float("inf")


@dataclass(frozen=True, kw_only=True)
class Row:
    """One row, and the reasons in case it misses its aim."""

    what: str
    aim: str
    aims: Sequence[Aim]
    #: Other queues that do the same. If no comparison is fair, *anchor* says so.
    others: Others | None = None
    anchor: str = "none is known"
    #: The text for a missed aim, or if another queue is ahead: why, and what it would take.
    why_not: str = ""

    def line(self, report: Report) -> tuple[str, bool]:
        """Return the row as Markdown, and whether it needs no reason: all aims are met, and no other queue is ahead."""
        found = [(aim, report.get(aim.figure)) for aim in self.aims]
        called = {each: aim.called for aim, each in reversed(found) if each is not None}
        shown = list(dict.fromkeys(each for _, each in found if each is not None))
        missed = [by for aim, each in found if each is not None and (by := aim.missed_by(each)) is not None]
        whole = all(each for aim, each in found if aim.bound is not None)
        beside, behind = self.others.beside(report) if self.others else ("", False)
        cells = (
            self.what,
            self.others.reported(report) if self.others else self.anchor,
            "<br>".join(_floor(each) for each in shown) or "-",
            "<br>".join(_value(each, called[each]) for each in shown) or "-",
            "<br>".join(times(each.ratio) for each in shown) or "-",
            self.aim,
            f"{max(each.load for each in shown):.1f}" if shown else "-",
            _verdict(missed, measured=len(shown) > 0, whole=whole) + beside,
        )
        return "| " + " | ".join(cells) + " |", not missed and not behind


def _value(figure: Figure, called: str) -> str:
    return amount(figure.value, figure.unit) + (f": {called}" if called else "")


def _floor(figure: Figure) -> str:
    return f"{amount(figure.floor.value, figure.unit)}: {figure.floor.name}" if figure.floor else "-"


def _verdict(missed: Sequence[float], *, measured: bool, whole: bool) -> str:
    if not measured:
        return "not measured"
    if missed:
        worst = max(missed)
        return f"missed, {factor(worst)} times" if worst != float("inf") else "missed"
    return "held" if whole else "held, as far as it was measured"
