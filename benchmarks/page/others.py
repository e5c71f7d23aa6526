"""The figures of other queues: those of the same run where it measured them, else published ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from benchmarks.measure.figure import RATES, Figure, Report
from benchmarks.measure.table import amount

#: The text for a figure that was measured elsewhere, at another time.
NOT_OF_THIS_RUN = "known, not of this run"
#: How many of the measured ones are named.
NAMED = 3


@dataclass(frozen=True, kw_only=True)
class Known:
    """A figure that was measured elsewhere: *shown* is its text, *value* its best in our figure's unit."""

    name: str
    shown: str
    value: float


_Valued = TypeVar("_Valued", bound=Figure | Known)


@dataclass(frozen=True, kw_only=True)
class Others:
    """The other queues that do the same."""

    #: Our figure for it, if this run measured no others.
    ours: str
    #: The last part of the names of the peers' figures for the same operation. Empty if the run measures it for no
    #: peer.
    measured: str = ""
    known: Sequence[Known] = ()

    def reported(self, report: Report) -> str:
        """Return the best of them: those of the run first, then the known ones."""
        here = self._of_run(report)
        names = [_peer(each) for each in here]
        reported = [f"{_peer(each)} {amount(each.value, each.unit)}" for each in here[:NAMED]]
        known = ", ".join(f"{each.name} {each.shown}" for each in self.known if each.name not in names)
        return "<br>".join([*reported, *([f"{NOT_OF_THIS_RUN}: {known}"] if known else [])]) or "none is known"

    def beside(self, report: Report) -> tuple[str, bool]:
        """Return how our figure compares with the best of them, and whether the best is ahead.

        The best is taken over the peers that the run measured and, by their known figures, those it did not.
        """
        here = self._of_run(report)
        names = [_peer(each) for each in here]
        known = [each for each in self.known if each.name not in names]
        same_part = report.get(f"peers.gpuqueue.{self.measured}") if here else None
        ours = [each for each in (same_part, report.get(self.ours)) if each is not None]
        if not ours or not (here or known):
            return "", False
        unit = ours[0].unit
        everyone: list[Figure | Known] = [*here, *known]
        if here and _best_first(everyone, unit)[0] is here[0]:
            mine, best = ours[0], here[0]
            whose = f"{_peer(best)}, {amount(best.value, unit)} beside our {amount(mine.value, unit)} in this run"
            return _rank(_behind(mine.value, best.value, unit), whose)
        # The statement then also holds for the peers that were measured beside our lesser figure.
        mine, least = _best_first(ours, unit)[-1], _best_first(known, unit)[0]
        beside = f", beside our {amount(mine.value, unit)} in the table of others" if mine.name != self.ours else ""
        whose = f"{least.name}, {amount(least.value, unit)}: {NOT_OF_THIS_RUN}{beside}"
        return _rank(_behind(mine.value, least.value, unit), whose)

    def _of_run(self, report: Report) -> list[Figure]:
        """Return the run's figures of other queues, the best first."""
        found = [
            each
            for each in report.figures
            if self.measured and each.name.startswith("peers.") and each.name.endswith(f".{self.measured}")
        ]
        return _best_first([each for each in found if _peer(each) != "gpuqueue"], found[0].unit if found else "")


def _rank(behind: float, whose: str) -> tuple[str, bool]:
    """Return in words how many times we are *behind* the best, and whether we are."""
    if behind <= 1:
        return f", ahead of the best ({whose})", False
    if behind == float("inf"):
        return f", behind the best ({whose})", True
    return f", {factor(behind)} times behind the best ({whose})", True


def factor(value: float) -> str:
    """Return a factor above 1 with enough digits to differ from 1.0."""
    return f"{value:.2f}" if value < 1.1 else f"{value:.1f}"  # noqa: PLR2004


def _behind(ours: float, theirs: float, unit: str) -> float:
    """Return how many times *theirs* is better than *ours*; infinity where a time of theirs or a rate of ours is 0."""
    more, less = (theirs, ours) if unit in RATES else (ours, theirs)
    return more / less if less else float("inf") if more else 1.0


def _peer(figure: Figure) -> str:
    return figure.name.split(".")[1]


def _best_first(some: Sequence[_Valued], unit: str) -> list[_Valued]:
    return sorted(some, key=lambda each: each.value, reverse=unit in RATES)
