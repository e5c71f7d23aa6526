"""What others take for the same thing: by the same run where it measured them, else by figures that are known."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from benchmarks.measure.figure import RATES, Figure, Report
from benchmarks.measure.table import amount

#: What is said of a figure that somebody took elsewhere, at another time.
NOT_OF_THIS_RUN = "known, not of this run"
#: How many of those that were measured are named.
NAMED = 3


@dataclass(frozen=True, kw_only=True)
class Known:
    """What another did elsewhere: *said* in words, *value* is the best of it in our figure's unit."""

    name: str
    said: str
    value: float


_Valued = TypeVar("_Valued", Figure, Known)


@dataclass(frozen=True, kw_only=True)
class Others:
    """Who else does the same thing."""

    #: Our figure for it, where this run has measured no others.
    ours: str
    #: What of a peer is the same thing: the last part of its figures' names. Empty where the run measures it of nobody.
    measured: str = ""
    known: Sequence[Known] = ()

    def told(self, report: Report) -> str:
        """Return the best of them: those of the run first, then those that are only known."""
        here = self._of_run(report)
        names = [_peer(each) for each in here]
        told = [f"{_peer(each)} {amount(each.value, each.unit)}" for each in here[:NAMED]]
        known = ", ".join(f"{each.name} {each.said}" for each in self.known if each.name not in names)
        return "<br>".join([*told, *([f"{NOT_OF_THIS_RUN}: {known}"] if known else [])]) or "none is known"

    def beside(self, report: Report) -> tuple[str, bool]:
        """Return how we stand to the best of them, and whether that one is ahead."""
        here = self._of_run(report)
        mine = report.get(f"peers.gpuqueue.{self.measured}") if here else None
        ours = mine or report.get(self.ours)
        if ours is None or not (here or self.known):
            return "", False
        if here:
            name, value = _peer(here[0]), here[0].value
            whose = f"{name}, {amount(value, ours.unit)} beside our {amount(ours.value, ours.unit)} in this run"
        else:
            best = _best_first(self.known, ours.unit)[0]
            name, value = best.name, best.value
            whose = f"{name}, {amount(value, ours.unit)}: {NOT_OF_THIS_RUN}"
        behind = value / ours.value if ours.unit in RATES else ours.value / value
        if behind <= 1:
            return f", ahead of the best ({whose})", False
        return f", {behind:.1f} times behind the best ({whose})", True

    def _of_run(self, report: Report) -> list[Figure]:
        """Return what the run has measured of others, the best first."""
        found = [
            each
            for each in report.figures
            if self.measured and each.name.startswith("peers.") and each.name.endswith(f".{self.measured}")
        ]
        return _best_first([each for each in found if _peer(each) != "gpuqueue"], found[0].unit if found else "")


def _peer(figure: Figure) -> str:
    return figure.name.split(".")[1]


def _best_first(some: Sequence[_Valued], unit: str) -> list[_Valued]:
    return sorted(some, key=lambda each: each.value, reverse=unit in RATES)
