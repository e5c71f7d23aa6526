"""A figure with its floor, and the report of one run."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime, timezone
from typing import Any

#: Units of which more is better. For all other units less is better.
RATES = ("jobs/s", "cycles/s", "submits/s", "rows/s")


@dataclass(frozen=True, kw_only=True)
class Floor:
    """The cheapest operation that does as much, measured in the same rounds."""

    name: str
    value: float


@dataclass(frozen=True, kw_only=True)
class Figure:
    """One measured value. Its *ratio* to the floor can be compared between machines, the value cannot."""

    #: Unique in a run, in parts: ``latency.idle.start.p50``.
    name: str
    value: float
    unit: str
    floor: Floor | None = None
    #: How often it was measured, in alternation with its floor. The value is the median of these, unless its name says
    #: otherwise. 1 is a single pass: all of gpuqueue's rounds, then all of the floor's.
    rounds: int = 1
    #: The number of jobs, claims or rows of each round.
    of: int = 1
    #: The load average over the last minute when it was measured, including other users of the machine.
    load: float = field(default_factory=lambda: round(os.getloadavg()[0], 2))

    @property
    def ratio(self) -> float | None:
        """Return the cost as a multiple of the floor's cost: 1 is perfect, for rates as well; None without a floor."""
        if self.floor is None or not self.value or not self.floor.value:
            return None
        return self.floor.value / self.value if self.unit in RATES else self.value / self.floor.value


@dataclass(frozen=True, kw_only=True)
class Absent:
    """A figure that could not be measured here, and why."""

    name: str
    why: str


Measured = Iterator[Figure | Absent]


@dataclass(frozen=True, kw_only=True)
class Run:
    """When and where a run was, and the machine's load: before it, and the range over its figures."""

    at: datetime
    quick: bool
    took_s: float
    machine: Mapping[str, Any]
    least: float
    most: float

    @classmethod
    def of(cls, report: Report, figures: Sequence[Figure]) -> Run:
        """Return the run of a report, with the loads of these *figures*."""
        loads = [each.load for each in figures] or [0.0]
        return cls(
            at=report.at,
            quick=report.quick,
            took_s=report.took_s,
            machine=report.machine,
            least=min(loads),
            most=max(loads),
        )

    @property
    def load_before(self) -> float:
        """Return the load average over the last minute before the run."""
        return float(self.machine["load_before"][0])


@dataclass(frozen=True, kw_only=True)
class Report:
    """All figures of one run, or those of the first of several runs with the figures that only the others have."""

    machine: Mapping[str, Any]
    quick: bool
    took_s: float
    figures: tuple[Figure, ...]
    absent: tuple[Absent, ...] = ()
    at: datetime = field(default_factory=lambda: datetime.now(timezone.utc))
    #: The runs that it was merged from; empty for one run.
    runs: tuple[Run, ...] = ()

    def get(self, name: str) -> Figure | None:
        """Return the figure with this name, if it was measured."""
        return next((each for each in self.figures if each.name == name), None)

    def to_json(self) -> str:
        """Return the report as text that :func:`benchmarks.measure.report_json.read` reads."""
        plain = {
            "at": self.at.isoformat(timespec="seconds"),
            "quick": self.quick,
            "took_s": round(self.took_s, 1),
            "machine": dict(self.machine),
            "figures": [{**asdict(each), "ratio": each.ratio} for each in self.figures],
            "absent": [asdict(each) for each in self.absent],
            "runs": [{**asdict(each), "at": each.at.isoformat(timespec="seconds")} for each in self.runs],
        }
        return json.dumps(plain, indent=1)
