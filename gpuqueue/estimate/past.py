"""What earlier runs of a script say about the next one. Pure.

The peaks of runs with the same arguments are almost constant, so the largest of the last few and a little more is
enough: 5 % and 256 MiB. Where the arguments differ, the figure is the 95th percentile of what there was, with younger
runs counting more, and 15 % (the margins of the Kubernetes Vertical Pod Autoscaler; its half-life of a day is made for
services, and two weeks for scripts). A run that ended out of memory says only that it needed more than it had.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from enum import Enum
from pathlib import Path

from gpuqueue.lazy.frozen import dataclass
from gpuqueue.model.device import PeakSource
from gpuqueue.model.job import Account, Job
from gpuqueue.model.run import EndingKind, Record, Run
from gpuqueue.text.units import MIB

#: Runs with the same arguments that count, the newest ones, and how many there must be.
LAST, ENOUGH = 5, 2
#: What is added to the largest of them.
SAME_FACTOR, SAME_MORE_BYTES = 1.05, 256 * MIB
#: What is added where the arguments differ, and after how many days a run counts half.
OTHER_FACTOR, HALF_LIFE_DAYS = 1.15, 14.0
PERCENTILE = 0.95
#: What a run that ended out of memory should get next: by how much more, and at least how much more.
MORE_FACTOR, MORE_BYTES = 1.2, 512 * MIB
#: Looks that a sampled peak must rest on.
ENOUGH_SAMPLES = 10


class Whose(str, Enum):
    """Which runs are taken, best first."""

    OWN = "own"
    ANYBODY = "anybody"
    OWN_ELSEWHERE = "own_elsewhere"

    def __str__(self) -> str:
        return self.value


class Rule(str, Enum):
    """How the figure came about."""

    #: The largest of the last runs with the same arguments.
    SAME_ARGUMENTS = "same_arguments"
    #: A high percentile of runs with whatever arguments.
    SAME_SCRIPT = "same_script"
    #: Runs ended out of memory, and none went well: it is more than that.
    MORE_THAN = "more_than"

    def __str__(self) -> str:
        return self.value


@dataclass(frozen=True, kw_only=True, slots=True)
class Script:
    """The script that is asked about: where it lies, and what it would be given."""

    path: str
    args: tuple[str, ...]
    account: Account


@dataclass(frozen=True, kw_only=True, slots=True)
class PastRun:
    """One ended run: what it took at most on one device, or, if it ran out of memory, what was not enough."""

    job_id: int
    ended_at: datetime
    bytes: int
    same_args: bool
    out_of_memory: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Past:
    """What the history says: which runs it is taken from, the newest first, by which rule, and the figure.

    ``suffices`` is false where it is only known what was not enough.
    """

    whose: Whose
    rule: Rule
    runs: tuple[PastRun, ...]
    need_bytes: int

    @property
    def suffices(self) -> bool:
        """Return whether it answers the question."""
        return self.rule is not Rule.MORE_THAN


def past_of(script: Script, records: Iterable[Record]) -> Past | None:
    """Return what *records*, the newest first, say about the next run of *script*; None: nothing that can be trusted.

    Own runs of the same file go first, then anybody's, then own ones of a file of that name elsewhere.
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
    path = str(Path(spec.cwd, spec.script))
    if _plain(path) == _plain(script.path):
        return Whose.OWN if own else Whose.ANYBODY
    return Whose.OWN_ELSEWHERE if own and Path(path).name == Path(script.path).name else None


def _plain(path: str) -> str:
    """Return *path* without the dots that need no look at the disk: ``/a/./b`` is ``/a/b``."""
    return str(Path(path))


def _seen(script: Script, record: Record) -> Iterator[PastRun]:
    spec = record.job.spec
    words = spec.argv[2:] if spec.interpreter is not None else spec.argv[1:]
    for run in reversed(record.runs):
        if run.ending is None or run.ended_at is None:
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


def _taken(run: Run) -> int | None:
    """Return what a run that did its work took at most on one device; None where nobody can be sure.

    One that failed or was cancelled may have ended before its peak.
    """
    ending = run.ending
    if ending is None or not (ending.kind is EndingKind.TIMED_OUT or ending.shell_code == 0):
        return None
    sure = [each.peak.bytes for each in run.devices if _is_trusted(each.peak.source, each.peak.samples)]
    return max((each for each in sure if each is not None), default=None) if len(sure) == len(run.devices) else None


def _is_trusted(source: PeakSource, samples: int) -> bool:
    return source is PeakSource.NVML_ACCOUNTING or (source is PeakSource.NVML_SAMPLED and samples >= ENOUGH_SAMPLES)


def _not_enough(run: Run) -> int | None:
    """Return what a run that ran out of memory had: what it was promised, or more if it was seen to hold more."""
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
        return None  # these arguments need more than what went well with others
    return Past(whose=whose, rule=Rule.SAME_SCRIPT, runs=tuple(runs), need_bytes=need)


def _more_than(whose: Whose, runs: Sequence[PastRun]) -> Past | None:
    short = [run for run in runs if run.same_args and run.out_of_memory]
    if not short:
        return None
    return Past(whose=whose, rule=Rule.MORE_THAN, runs=tuple(short), need_bytes=_at_least(0, short))


def _at_least(need_bytes: int, runs: Iterable[PastRun]) -> int:
    """Return *need_bytes*, or more where runs had as much and it was not enough."""
    short = [run.bytes for run in runs if run.out_of_memory]
    return max([need_bytes, *map(more_than, short)])


def enough_after(peak_bytes: int) -> int:
    """Return what is enough for a run like one that did its work, and took *peak_bytes* at most."""
    return math.ceil(peak_bytes * SAME_FACTOR) + SAME_MORE_BYTES


def more_than(had_bytes: int) -> int:
    """Return what a run should get next for which *had_bytes* were not enough."""
    return max(math.ceil(had_bytes * MORE_FACTOR), had_bytes + MORE_BYTES)


def _percentile(runs: Sequence[PastRun]) -> int:
    """Return the smallest peak that so large a share of the runs stayed within, each weighed by its age.

    The age is that beside the newest of them: then no clock is asked, and no weight of old runs comes down to nothing.
    """
    newest = max(run.ended_at for run in runs)
    days = [(newest - run.ended_at).total_seconds() / 86400 for run in runs]
    weighed = sorted((run.bytes, 2 ** (-age / HALF_LIFE_DAYS)) for run, age in zip(runs, days, strict=True))
    wanted = PERCENTILE * sum(weight for _, weight in weighed)
    so_far = 0.0
    for size, weight in weighed:
        so_far += weight
        if so_far >= wanted:
            return size
    return weighed[-1][0]
