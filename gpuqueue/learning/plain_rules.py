"""Simple rules for the memory of a job that has run before, to compare the learned number with. Pure.

Each takes the peaks of earlier runs in bytes, oldest first, and returns bytes.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence

from gpuqueue.learning.past_run import PastRun, Proof
from gpuqueue.model.learning_report import MemRule


def _mean_and_2sd(peaks: Sequence[int]) -> float:
    return statistics.fmean(peaks) + 2 * statistics.pstdev(peaks)


def _last(peaks: Sequence[int]) -> float:
    return 1.2 * peaks[-1]


def _p90(peaks: Sequence[int]) -> float:
    """Return the 90th percentile by nearest rank and 15 %: the autoscaler of Kubernetes, without its decay."""
    return 1.15 * sorted(peaks)[-(-90 * len(peaks) // 100) - 1]


PLAIN_RULES: Mapping[MemRule, Callable[[Sequence[int]], float]] = {
    MemRule.LARGEST: max,
    MemRule.MEAN_2SD: _mean_and_2sd,
    MemRule.LAST: _last,
    MemRule.P90: _p90,
}


def peaks_for(run: PastRun, earlier: Sequence[PastRun]) -> Sequence[int]:
    """Return the trusted peaks in *earlier*, newest first, that a simple rule uses for *run*, oldest first.

    These are the runs with the same arguments; without one, all runs of the program on the same kind of device.
    """
    known = [each for each in reversed(earlier) if each.proof is Proof.PEAK and each.kind is run.kind]
    same = [each for each in known if each.words == run.words]
    return [each.bytes for each in same or known]
