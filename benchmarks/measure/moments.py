"""Compares several ways to do the same at several moments. The shortest way is the floor."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence

from benchmarks.measure.figure import Figure, Floor


def beside(
    floor: str, found: Mapping[str, Sequence[Sequence[float]]], moments: Sequence[str], *, called: str, group: str
) -> Iterator[Figure]:
    """Yield the median time to each of *moments* for each way except *floor*. *called* is the name of the floor.

    *found* has the seconds to each moment in each round, by the names of the ways.
    """
    medians_ms = {
        way: [statistics.median(seconds) * 1e3 for seconds in zip(*rounds, strict=True)]
        for way, rounds in found.items()
    }
    for way in (each for each in found if each != floor):
        for moment, ours_ms, least_ms in zip(moments, medians_ms[way], medians_ms[floor], strict=True):
            least = Floor(name=called, value=least_ms)
            name = f"{group}.{way}.{moment}"
            yield Figure(name=name, value=ours_ms, unit="ms", floor=least, rounds=len(found[way]))
