"""Reports of the benchmarks, and a page to write them into, with defaults, so that a test names only its subject."""

from __future__ import annotations

from datetime import datetime, timezone

from benchmarks.measure.figure import Absent, Figure, Report
from benchmarks.page.write import REGIONS

MACHINE = {
    "cores": 2,
    "memory_bytes": 2**33,
    "kernel": "6.1",
    "python": "3.11",
    "store": "valkey 9",
    "load_before": [0.1],
}
#: A page with only its regions.
PAGE = "".join(f"<!-- {name}: x -->\n<!-- end of {name} -->\n" for name in REGIONS)


def make_report(*parts: Figure | Absent, day: int = 22) -> Report:
    """Return the report of a run of ten minutes on that day of November, with these parts."""
    return Report(
        machine=MACHINE,
        quick=False,
        took_s=600.0,
        at=datetime(2026, 11, day, tzinfo=timezone.utc),
        figures=tuple(each for each in parts if isinstance(each, Figure)),
        absent=tuple(each for each in parts if isinstance(each, Absent)),
    )
