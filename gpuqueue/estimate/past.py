"""Estimates the memory of a script's next run from its earlier runs. Pure.

Runs with the same arguments have almost constant peaks. The estimate is the largest of the last few peaks, plus 5 % and
256 MiB. For runs with other arguments it is the 95th percentile of the peaks, with more weight on newer runs, plus
15 %. These margins are those of the Kubernetes Vertical Pod Autoscaler. Its half-life of one day suits services; for
scripts it is two weeks. A run that ended out of memory shows only that it needed more than it had.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from enum import Enum
from itertools import accumulate
from pathlib import Path

from gpuqueue.lazy.frozen import dataclass
from gpuqueue.model.device import PeakSource
from gpuqueue.model.job import Job
from gpuqueue.model.job_spec import Account, JobSpec
from gpuqueue.model.run import Ending, EndingKind, Record, Run
from gpuqueue.model.script_args import words_before_args
from gpuqueue.text.units import MIB

#: The largest number of newest runs with the same arguments that count, and the number that is needed.
LAST, ENOUGH = 5, 2
#: The margins that are added to the largest of their peaks.
SAME_FACTOR, SAME_MORE_BYTES = 1.05, 256 * MIB
#: The margin for runs with other arguments, and the age at which a run has half its weight.
OTHER_FACTOR, HALF_LIFE_DAYS = 1.15, 14.0
PERCENTILE = 0.95
#: The factor for a run that ended out of memory: that of the queue's own retries and of learned memory.
MORE_FACTOR = 2
#: The number of samples that a trusted sampled peak needs.
ENOUGH_SAMPLES = 10


class Whose(str, Enum):
    """Which runs an estimate uses, in the order of preference."""

    OWN = "own"
    ANYBODY = "anybody"
    OWN_ELSEWHERE = "own_elsewhere"

    def __str__(self) -> str:
        return self.value


class Rule(str, Enum):
    """The rule by which the figure was computed."""

    #: The largest of the last runs with the same arguments.
    SAME_ARGUMENTS = "same_arguments"
    #: A high percentile of runs with any arguments.
    SAME_SCRIPT = "same_script"
    #: All runs ended out of memory. The need is more than they had.
    MORE_THAN = "more_than"

    def __str__(self) -> str:
        return self.value


@dataclass(frozen=True, kw_only=True, slots=True)
class Script:
    """The script to estimate: its path, its arguments and the account that would run it."""

    path: str
    args: tuple[str, ...]
    account: Account


@dataclass(frozen=True, kw_only=True, slots=True)
class PastRun:
    """One ended run. ``bytes`` is its peak on one device, or the memory that was not enough if it ran out of memory."""

    job_id: int
    ended_at: datetime
    bytes: int
    same_args: bool
    out_of_memory: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Past:
    """The estimate from the history: the runs it uses, newest first, the rule, and the needed bytes."""

    whose: Whose
    rule: Rule
    runs: tuple[PastRun, ...]
    need_bytes: int

    @property
    def suffices(self) -> bool:
        """Return whether the estimate is usable. It is not if only insufficient sizes are known."""
        return self.rule is not Rule.MORE_THAN


def past_of(script: Script, records: Iterable[Record]) -> Past | None:
    """Return the estimate for *script* from *records*, newest first, or None if none of their peaks is trusted.

    The account's own runs of the same file are preferred, then other accounts' runs of it, then the account's own runs
    of a file with the same name elsewhere.
    """
    known = [
        (whose, run)
        for record in records
        if (whose := _whose(script, record.job)) is not None
        for run in _seen(script, record)
    ]
    for whose in Whose:
        runs = [run for each, run in known if each is whose]
        found = _same_arguments(whose, runs) or _same_script(whose, runs) or _more_than(whose, runs)
        if found is not None:
            return found
    return None


def _whose(script: Script, job: Job) -> Whose | None:
    spec = job.spec
    if spec.script is None or spec.gpus < 1:
        return None
    own = spec.account.name == script.account.name
    path, wanted = Path(spec.cwd, spec.script), Path(script.path)
    if path == wanted:
        return Whose.OWN if own else Whose.ANYBODY
    return Whose.OWN_ELSEWHERE if own and path.name == wanted.name else None


def _seen(script: Script, record: Record) -> Iterator[PastRun]:
    spec = record.job.spec
    words = spec.argv[words_before_args(spec) :]
    for run in reversed(record.runs):
        if run.ending is None or run.ended_at is None or _is_cut(spec, run.ending):
            continue
        beyond = run.ending.kind is EndingKind.OUT_OF_MEMORY
        size = _not_enough(run) if beyond else _taken(run)
        if size is not None:
            yield PastRun(
                job_id=run.job_id,
                ended_at=run.ended_at,
                bytes=size,
                same_args=words == script.args,
                out_of_memory=beyond,
            )


def _is_cut(spec: JobSpec, ending: Ending) -> bool:
    """Return whether the run is one of a probe that ended it early: its peak is only a lower bound."""
    return spec.probe is not None and ending.kind is EndingKind.TIMED_OUT


def _taken(run: Run) -> int | None:
    """Return the peak of a run on one device, or None if it is not certain.

    Only runs that succeeded or exceeded their time limit count. Other runs may have ended before their peak.
    """
    ending = run.ending
    if ending is None or not (ending.kind is EndingKind.TIMED_OUT or ending.shell_code == 0):
        return None
    sure = [each.peak.bytes for each in run.devices if _is_trusted(each.peak.source, each.peak.samples)]
    return max((each for each in sure if each is not None), default=None) if len(sure) == len(run.devices) else None


def _is_trusted(source: PeakSource, samples: int) -> bool:
    return source is PeakSource.NVML_ACCOUNTING or (source is PeakSource.NVML_SAMPLED and samples >= ENOUGH_SAMPLES)


def _not_enough(run: Run) -> int | None:
    """Return the bytes that were not enough for a run out of memory: the larger of its allocation and its use."""
    return max((max(each.lease_bytes, each.peak.bytes or 0) for each in run.devices), default=None)


def _same_arguments(whose: Whose, runs: Sequence[PastRun]) -> Past | None:
    last = [run for run in runs if run.same_args][:LAST]
    well = [run.bytes for run in last if not run.out_of_memory]
    if len(well) < ENOUGH:
        return None
    need = _at_least(enough_after(max(well)), last)
    return Past(whose=whose, rule=Rule.SAME_ARGUMENTS, runs=tuple(last), need_bytes=need)


def _same_script(whose: Whose, runs: Sequence[PastRun]) -> Past | None:
    well = [run for run in runs if not run.out_of_memory]
    if not well:
        return None
    need = math.ceil(_percentile(well) * OTHER_FACTOR)
    if _at_least(need, [run for run in runs if run.same_args]) > need:
        return None  # these arguments need more than others needed
    return Past(whose=whose, rule=Rule.SAME_SCRIPT, runs=tuple(runs), need_bytes=need)


def _more_than(whose: Whose, runs: Sequence[PastRun]) -> Past | None:
    short = [run for run in runs if run.same_args and run.out_of_memory]
    if not short:
        return None
    return Past(whose=whose, rule=Rule.MORE_THAN, runs=tuple(short), need_bytes=_at_least(0, short))


def _at_least(need_bytes: int, runs: Iterable[PastRun]) -> int:
    """Return *need_bytes*, or more if runs that had at least as much ran out of memory."""
    return max([need_bytes, *(more_than(run.bytes) for run in runs if run.out_of_memory)])


def enough_after(peak_bytes: int) -> int:
    """Return the bytes that are enough for a run like one with the peak *peak_bytes*."""
    return math.ceil(peak_bytes * SAME_FACTOR) + SAME_MORE_BYTES


def more_than(had_bytes: int) -> int:
    """Return the bytes for the next try of a run for which *had_bytes* were not enough."""
    return had_bytes * MORE_FACTOR


def _percentile(runs: Sequence[PastRun]) -> int:
    """Return the smallest peak that a share PERCENTILE of the runs does not exceed, weighted by age.

    The age is relative to the newest run, so that no clock is needed and the weights of old runs do not vanish.
    """
    newest = max(run.ended_at for run in runs)
    days = [(newest - run.ended_at).total_seconds() / 86400 for run in runs]
    weighed = sorted((run.bytes, 2 ** (-age / HALF_LIFE_DAYS)) for run, age in zip(runs, days, strict=True))
    sums = list(accumulate(weight for _, weight in weighed))
    return next(size for (size, _), so_far in zip(weighed, sums, strict=True) if so_far >= PERCENTILE * sums[-1])
