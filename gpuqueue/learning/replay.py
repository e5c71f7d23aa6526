"""Replays past jobs: what each rule would have allocated, given only what was known when the job was submitted. Pure.

Beside the learned number it tries plain rules, each of which takes the peaks of earlier runs in bytes, oldest first.

A run fits if its allocation is at least its peak. A run that does not fit is lost, and the next one gets twice as much:
:func:`gpuqueue.learning.rule.tried` has the price.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import TypeAlias

from gpuqueue.lazy.frozen import dataclass
from gpuqueue.learning import rule
from gpuqueue.learning.past_run import MOST_JOBS, PastRun, Proof
from gpuqueue.learning.rule import LEAST_BYTES, rounded_up
from gpuqueue.learning.signature import Lesson, Wanted, lesson_for
from gpuqueue.model.device import DeviceFilter, DeviceKind
from gpuqueue.model.learning_report import FirstRequest, LearningReport, MemRule, ReplayFigures, ReplayGroup
from gpuqueue.model.mem_source import Signature

#: Takes the run of a job and the runs that a submit would have read, newest first. Returns the bytes to ask for.
Rule: TypeAlias = Callable[[PastRun, Sequence[PastRun]], float]


@dataclass(frozen=True, kw_only=True, slots=True)
class PastJob:
    """An ended job with its runs that show a need, newest first.

    ``is_known`` says whether the last run has a trusted peak. ``asked_bytes`` is what the first run was allocated on a
    device, ``used_bytes`` the sum of the last run's peaks on its ``devices``, and ``duration_s`` the time of that run.
    """

    id: int
    program: tuple[str, str]
    runs: tuple[PastRun, ...]
    is_known: bool
    asked_bytes: int
    used_bytes: int
    devices: int
    duration_s: float
    submitted_at: datetime
    ended_at: datetime


@dataclass(frozen=True, kw_only=True, slots=True)
class _Repeat:
    """A job, what was learned for it, and what each rule would have allocated."""

    job: PastJob
    lesson: Lesson
    allocations: Mapping[str, int]


def replay(
    jobs: Iterable[PastJob],
    *,
    since: datetime,
    until: datetime,
    headroom_bytes: int = 0,
    is_cut: bool = False,
    others: Mapping[str, Rule] | None = None,
) -> LearningReport:
    """Return how each rule did over *jobs*. *headroom_bytes* of a device are for no job.

    *since*, *until* and *is_cut* are those of the report. *others* are more rules, by their keys in it.
    """
    others = others or {}
    jobs = list(jobs)
    known = sum(job.is_known for job in jobs)
    repeats = list(_repeats(jobs, headroom_bytes, others))
    by_signature = {word: [each for each in repeats if each.lesson.signature is word] for word in Signature}
    by_first = {word: [each for each in repeats if _first_of(each) is word] for word in FirstRequest}
    return LearningReport(
        since=since,
        until=until,
        jobs=len(jobs),
        unclear=len(jobs) - known,
        first=known - len(repeats),
        is_cut=is_cut,
        rules=tuple(ReplayGroup(key=key, figures=_figures(repeats, key)) for key in (*map(str, MemRule), *others)),
        signatures=tuple(
            ReplayGroup(key=word.value, figures=_figures(some, MemRule.LEARNED.value))
            for word, some in by_signature.items()
            if some
        ),
        first_requests=tuple(
            ReplayGroup(key=word.value, figures=_figures(some, MemRule.LEARNED.value))
            for word, some in by_first.items()
            if some
        ),
    )


def _first_of(repeat: _Repeat) -> FirstRequest:
    is_less = repeat.allocations[MemRule.LEARNED.value] < repeat.allocations[MemRule.ENOUGH.value]
    return FirstRequest.TWO_THIRDS if is_less else FirstRequest.ALL


def _repeats(jobs: Sequence[PastJob], headroom_bytes: int, others: Mapping[str, Rule]) -> Iterator[_Repeat]:
    """Yield the jobs with a trusted peak for which an earlier one was known when they were submitted."""
    programs: dict[tuple[str, str], list[PastJob]] = defaultdict(list)
    for job in sorted(jobs, key=lambda each: each.id):
        before = programs[job.program]
        if job.is_known:
            found = _repeat(job, _known_runs(before, job.submitted_at), headroom_bytes, others)
            if found is not None:
                yield found
        before.append(job)


def _known_runs(before: Sequence[PastJob], at: datetime) -> Sequence[PastRun]:
    """Return the runs, newest first, that a submit at this time would have read."""
    found: list[PastRun] = []
    count = 0
    for job in reversed(before):
        if job.ended_at <= at:
            found += job.runs
            count += 1
            if count == MOST_JOBS:
                break
    return found


def _repeat(
    job: PastJob, earlier: Sequence[PastRun], headroom_bytes: int, others: Mapping[str, Rule]
) -> _Repeat | None:
    run = job.runs[0]
    peaks = peaks_for(run, earlier)
    lesson = lesson_for(_wanted(run), earlier, headroom_bytes) if peaks else None
    if lesson is None:
        return None
    plain = {rule.value: rounded_up(int(of(peaks))) for rule, of in PLAIN_RULES.items()}
    more = {key: rounded_up(int(of(run, earlier))) for key, of in others.items()}
    return _Repeat(
        job=job,
        lesson=lesson,
        allocations={
            MemRule.ASKED.value: job.asked_bytes,
            MemRule.LEARNED.value: lesson.learned.first_within(lesson.learned.room_bytes),
            MemRule.ENOUGH.value: lesson.learned.mem_bytes,
            **plain,
            **more,
        },
    )


def _wanted(run: PastRun) -> Wanted:
    return Wanted(
        words=run.words,
        code=run.code,
        interpreter=run.interpreter,
        environment=run.environment,
        gpus=run.gpus,
        device=DeviceFilter.CPU if run.kind is DeviceKind.CPU else DeviceFilter.GPU,
    )


def _figures(repeats: Iterable[_Repeat], rule: str) -> ReplayFigures:
    total = ReplayFigures()
    for each in repeats:
        lost, reserved_byte_s = _tried(each.job, each.allocations[rule])
        total = replace(
            total,
            jobs=total.jobs + 1,
            fitted=total.fitted + (lost == 0),
            lost_tries=total.lost_tries + lost,
            reserved_byte_s=total.reserved_byte_s + reserved_byte_s,
            used_byte_s=total.used_byte_s + each.job.used_bytes * each.job.duration_s,
        )
    return total


def _tried(job: PastJob, allocated_bytes: int) -> tuple[int, float]:
    """Return how many runs are lost before one fits, and the memory times time that all of them reserve."""
    need = job.runs[0]
    lost, taken = rule.tried(need.bytes, max(LEAST_BYTES, allocated_bytes), need.room_bytes)
    return lost, taken * job.duration_s * job.devices


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
