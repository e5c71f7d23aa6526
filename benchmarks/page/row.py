"""A row of the table: what is asked, of which figures, and whether it holds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.measure.figure import RATES, Figure, Report
from benchmarks.measure.table import amount, times


@dataclass(frozen=True, kw_only=True)
class Aim:
    """One bound on one figure: at most so much, of a rate at least so much."""

    figure: str
    bound: float
    #: Whether the ratio to the floor is bound, and not the value.
    of_ratio: bool = False

    def of(self, figure: Figure) -> float | None:
        """Return what of *figure* is bound."""
        return figure.ratio if self.of_ratio else figure.value

    def missed_by(self, figure: Figure) -> float | None:
        """Return by which factor *figure* misses this aim, None if it holds."""
        found = self.of(figure)
        if found is None:
            return None
        more_is_better = figure.unit in RATES and not self.of_ratio
        if found >= self.bound if more_is_better else found <= self.bound:
            return None
        return (self.bound / found if more_is_better else found / self.bound) if found and self.bound else float("inf")


@dataclass(frozen=True, kw_only=True)
class Row:
    """One row, and in words why it misses, should it miss."""

    what: str
    #: The best of others, with its figure: measured by hand, or ``peers.…`` where it is in the same run.
    anchor: str
    aim: str
    aims: Sequence[Aim]
    #: The best of others as a bound, where its figure is for the same thing.
    best: Aim | None = None
    #: What is told where an aim is missed or another is ahead: why, and what it would take.
    why_not: str = ""

    def line(self, report: Report) -> tuple[str, bool]:
        """Return the row as Markdown, and whether it needs no word: its aims hold, nobody is ahead."""
        found = [(aim, report.get(aim.figure)) for aim in self.aims]
        shown = list(dict.fromkeys(each for _, each in found if each is not None))
        missed = [by for aim, each in found if each is not None and (by := aim.missed_by(each)) is not None]
        cells = (
            self.what,
            self.anchor,
            "<br>".join(_floor(each) for each in shown) or "-",
            "<br>".join(amount(each.value, each.unit) for each in shown) or "-",
            "<br>".join(times(each.ratio) for each in shown) or "-",
            self.aim,
            _verdict(missed, measured=len(shown) > 0, whole=all(each for _, each in found)) + self._beside(report)[0],
        )
        return "| " + " | ".join(cells) + " |", not missed and not self._beside(report)[1]

    def _beside(self, report: Report) -> tuple[str, bool]:
        """Return how this stands to the best of others, and whether that is ahead."""
        figure = report.get(self.best.figure) if self.best else None
        if self.best is None or figure is None:
            return "", False
        behind = self.best.missed_by(figure)
        return (", ahead of the best", False) if behind is None else (f", {behind:.1f} times behind the best", True)


def _floor(figure: Figure) -> str:
    return f"{amount(figure.floor.value, figure.unit)}: {figure.floor.name}" if figure.floor else "-"


def _verdict(missed: Sequence[float], *, measured: bool, whole: bool) -> str:
    if not measured:
        return "not measured"
    if missed:
        return f"missed, {max(missed):.1f} times" if max(missed) != float("inf") else "missed"
    return "held" if whole else "held, as far as it was measured"
