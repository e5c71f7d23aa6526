"""How learned memory did in the past, beside what jobs asked for and beside simple rules. Pure."""

from __future__ import annotations

from datetime import datetime
from enum import Enum

from gpuqueue.lazy.frozen import dataclass


class MemRule(str, Enum):
    """A way to choose the memory of a job that has run before."""

    #: What the first run of the job was allocated.
    ASKED = "asked"
    #: What ``--mem auto`` asks for: see :mod:`gpuqueue.learning.rule`.
    LEARNED = "learned"
    #: The same for a job that must not run again: room for the largest peak.
    ENOUGH = "enough"
    #: The largest peak of earlier runs.
    LARGEST = "largest"
    #: The mean of the peaks and twice their standard deviation.
    MEAN_2SD = "mean+2sd"
    #: The last peak x 1.2.
    LAST = "last*1.2"
    #: The 90th percentile of the peaks x 1.15.
    P90 = "p90*1.15"

    def __str__(self) -> str:
        return self.value


class FirstRequest(str, Enum):
    """For which of the peaks a learned request has room."""

    ALL = "all"
    #: See :mod:`gpuqueue.learning.rule`.
    TWO_THIRDS = "two_thirds"

    def __str__(self) -> str:
        return self.value


@dataclass(frozen=True, kw_only=True, slots=True)
class ReplayFigures:
    """How a rule did over ``jobs`` repeat jobs.

    ``fitted`` counts the jobs whose peak was within the first allocation, and ``lost_tries`` the runs that would have
    died. ``reserved_byte_s`` is memory times time of all runs, lost ones included. ``used_byte_s`` is the peak times
    the time of the runs that fitted.
    """

    jobs: int = 0
    fitted: int = 0
    lost_tries: int = 0
    reserved_byte_s: float = 0.0
    used_byte_s: float = 0.0

    DERIVED = ("unused_byte_s", "fit_rate", "above_peak")

    @property
    def unused_byte_s(self) -> float:
        """The memory times time that was reserved and not used."""
        return self.reserved_byte_s - self.used_byte_s

    @property
    def fit_rate(self) -> float | None:
        """``fitted`` as a share of ``jobs``, or None without jobs."""
        return self.fitted / self.jobs if self.jobs else None

    @property
    def above_peak(self) -> float | None:
        """``unused_byte_s`` as a share of ``used_byte_s``, or None if no memory was used."""
        return self.unused_byte_s / self.used_byte_s if self.used_byte_s else None


@dataclass(frozen=True, kw_only=True, slots=True)
class ReplayGroup:
    """The figures of one rule, or of the jobs whose learned number came in one way."""

    key: str
    figures: ReplayFigures


@dataclass(frozen=True, kw_only=True, slots=True)
class LearningReport:
    """A replay of the jobs that ended in a period.

    ``jobs`` is the number of jobs read: those that succeeded, reached their time limit or lacked memory. ``unclear``
    counts those of them without a trusted peak, and ``first`` those with one and without an earlier one of the same
    program. The others are repeat jobs, over which each rule was replayed. ``is_cut`` says whether the period has older
    jobs that were not read. ``first_requests`` are the learned numbers by :class:`FirstRequest`.
    """

    since: datetime
    until: datetime
    jobs: int
    unclear: int
    first: int
    is_cut: bool
    rules: tuple[ReplayGroup, ...]
    signatures: tuple[ReplayGroup, ...]
    first_requests: tuple[ReplayGroup, ...] = ()

    DERIVED = ("repeats",)

    @property
    def repeats(self) -> int:
        """The number of repeat jobs."""
        return self.jobs - self.unclear - self.first
