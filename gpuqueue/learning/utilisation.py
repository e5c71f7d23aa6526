"""Computes how much a job is expected to use its devices, from earlier runs. Pure.

Runs count that were alone on their devices (:func:`gpuqueue.learning.past_run.utilisation_of`). As for memory, the most
exact signature with three of them decides; without one, the most exact with any. Of the newest 20 the median is taken:
a mean would follow a single run that waited for its data.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from gpuqueue.learning.past_run import PastRun
from gpuqueue.learning.rule import LAST, SEVERAL
from gpuqueue.learning.signature import Wanted, levels, of_one_kind


def expected_utilisation(wanted: Wanted, runs: Sequence[PastRun]) -> float | None:
    """Return the share of time, from 0 to 1, in which the job *wanted* is expected to use each of its devices.

    *runs* are those of the same program, newest first. None if none of them was alone and measured.
    """
    best: float | None = None
    for _, alike in levels(wanted, of_one_kind(wanted, runs)):
        found = [run.utilisation for run in alike if run.utilisation is not None][:LAST]
        if len(found) >= SEVERAL:
            return _rounded(found)
        if found and best is None:
            best = _rounded(found)
    return best


def _rounded(found: Sequence[float]) -> float:
    return round(min(1.0, statistics.median(found)), 2)
