"""Formats figures for readers."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

from benchmarks.measure.figure import Absent, Figure, Measured
from benchmarks.measure.home import to_the_end

WIDTH = 44


def head() -> str:
    """Return the first line of a table."""
    return f"{'':{WIDTH}} {'measured':>14} {'floor':>14} {'ratio':>7} {'rounds':>9} {'load':>5}  floor is"


def line(each: Figure | Absent) -> str:
    """Return a figure, or the reason why there is none, as one line."""
    if isinstance(each, Absent):
        return f"{each.name:{WIDTH}} {'-':>14}  {each.why}"
    ratio = times(each.ratio)
    floor = amount(each.floor.value, each.unit) if each.floor else "-"
    value = amount(each.value, each.unit)
    name = each.floor.name if each.floor else ""
    rounds = f"{each.rounds}x{each.of}" if each.of > 1 else str(each.rounds)
    return f"{each.name:{WIDTH}} {value:>14} {floor:>14} {ratio:>7} {rounds:>9} {each.load:>5.1f}  {name}".rstrip()


def report(measured: Measured) -> list[Figure | Absent]:
    """Measure one part: print a table line by line, then the load; return the figures.

    A stopped run exits with 128 plus the signal's number, and leaves nothing behind.
    """
    found = []
    with to_the_end(), closing(measured):
        print(head(), flush=True)
        for each in measured:
            print(line(each), flush=True)
            found.append(each)
        print(load())
    return found


@contextlib.contextmanager
def closing(measured: Measured) -> Iterator[None]:
    """Close the generator of the figures before anything else, because it cleans up its own places."""
    try:
        yield
    finally:
        close = getattr(measured, "close", None)
        if close is not None:
            close()


def load() -> str:
    """Return the machine's load, including that of other users."""
    return "load average: " + ", ".join(f"{each:.1f}" for each in os.getloadavg()) + f" on {os.cpu_count()} cores"


def times(ratio: float | None) -> str:
    """Return a ratio to a floor with about three digits."""
    if ratio is None:
        return "-"
    return f"{ratio:.2f}" if ratio >= 0.1 else f"{ratio:.2g}"  # noqa: PLR2004


def amount(value: float, unit: str) -> str:
    """Return a value with its unit, with about three digits."""
    digits = 0 if abs(value) >= 100 or value == int(value) else 1 if abs(value) >= 10 else 2  # noqa: PLR2004
    return f"{value:,.{digits}f} {unit}".replace(",", " ").rstrip()
