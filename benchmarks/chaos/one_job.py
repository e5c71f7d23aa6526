"""Compares one job's plan, row, runs, events and own traces. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from itertools import pairwise

from benchmarks.chaos.effects import Trace
from benchmarks.chaos.kills import Kill
from benchmarks.chaos.plan import FOR_EVER_S, Breaks, JobPlan
from gpuqueue.model.event import Act, Event
from gpuqueue.model.job import TRANSITIONS, JobState
from gpuqueue.model.run import Ending, EndingKind, Record, Run

#: How much later than its recorded end a process may be seen alive, in seconds: the store's clock has milliseconds, and
#: a SIGKILL takes time.
TOLERANCE_S = 0.02
SIGKILL = 9


class Fault(str, Enum):
    """A fault of one job, or of the site."""

    #: Acknowledged, but without exactly one ended row in the history.
    LOST = "lost"
    #: Two live copies, or another run after a recorded end.
    DOUBLED = "doubled"
    #: A process that outlived its run.
    ORPHANED = "orphaned"
    #: The history disagrees with the job's own files, or with the request.
    WRONG = "wrong in the history"
    #: Something was left behind in the store or on the disk.
    LEFT = "left behind"
    #: Something else that must not happen.
    OTHER = "other"

    def __str__(self) -> str:
        return self.value


class Hit:
    """What the kills can explain, and which workers continued."""

    def __init__(self, kills: Sequence[Kill], records: Iterable[Record]) -> None:
        self.shims = frozenset(token for kill in kills for token in kill.shims)
        self.jobs = frozenset(token for kill in kills for token in kill.jobs)
        self._stops = [kill for kill in kills if kill.plan.breaks is Breaks.WORKER_STOP]
        self._last_claim: dict[str, datetime] = {}
        for run in (run for record in records for run in record.runs):
            self._last_claim[run.worker] = max(run.claimed_at, self._last_claim.get(run.worker, run.claimed_at))

    def went_on(self, run: Run) -> bool:
        """Return whether the worker of a run claimed other jobs after the loss, and was never stopped."""
        stopped = any(str(kill.device) in run.worker for kill in self._stops)
        return run.ended_at is not None and self._last_claim[run.worker] > run.ended_at and not stopped


Found = Iterator[tuple[Fault, str]]


def of_one_job(plan: JobPlan, record: Record, story: Sequence[Event], traces: Sequence[Trace], hit: Hit) -> Found:
    """Yield every discrepancy of one job, in words."""
    yield from _of_the_story(record, story)
    yield from _of_the_runs(record)
    yield from _of_the_traces(record, traces)
    by_token = {trace.token: trace for trace in traces}
    for run in record.runs:
        if run.ending is not None:
            yield from _of_one_run(plan, run, run.ending, by_token.get(run.token), hit)
    yield from _of_the_end(plan, record)


def _of_the_story(record: Record, story: Sequence[Event]) -> Found:
    """Check every step against the lifecycle: no unknown transition, and none twice."""
    state: JobState | None = None
    for event in story:
        if event.state not in TRANSITIONS.get(state, ()):
            yield Fault.WRONG, f"{event.act} moved it from {state} to {event.state}, and there is no such arrow"
        state = event.state
    if state is not record.job.state:
        yield Fault.WRONG, f"its row says {record.job.state}, its story ends with {state}"
    begun = {event.fields.get("token") for event in story if event.act in {Act.STARTED, Act.ADOPT}}
    for event in story:
        if event.state is JobState.SUCCEEDED and event.fields.get("token") not in begun:
            yield Fault.WRONG, f"run {event.fields.get('token')} has ended well, and nobody had said that it began"
    for act in (Act.FINISH, Act.LOSE, Act.STARTED, Act.CLAIM):
        tokens = Counter(event.fields.get("token") for event in story if event.act is act)
        for token, count in tokens.items():
            if count > 1:
                yield Fault.WRONG, f"{act} of run {token} is recorded {count} times"


def _of_the_runs(record: Record) -> Found:
    attempts = [run.attempt for run in record.runs]
    if attempts != list(range(1, len(attempts) + 1)) or record.job.attempt != len(attempts):
        yield Fault.WRONG, f"its row counts {record.job.attempt} runs, its runs are {attempts}"
    for run in record.runs:
        if run.ending is None:
            yield Fault.WRONG, f"run {run.token} has no ending"
    for earlier, later in pairwise(record.runs):
        if earlier.ending is not None and earlier.ending.kind is not EndingKind.LOST:
            yield Fault.DOUBLED, f"run {later.token} came after run {earlier.token} had ended: {earlier.ending}"


def _of_the_traces(record: Record, traces: Sequence[Trace]) -> Found:
    """Check that each run ran once, that no two were alive at once, and that no process outlived its run."""
    runs = {run.token: run for run in record.runs}
    for trace in traces:
        if trace.token not in runs:
            yield Fault.WRONG, f"run {trace.token} has begun and is not in the history"
        begun = trace.of("begin")
        if len(begun) > 1:
            yield Fault.DOUBLED, f"run {trace.token} has begun {len(begun)} times"
        if trace.of("doubled"):
            yield Fault.DOUBLED, f"when run {trace.token} began, another run of the job was alive"
        ended_at = runs[trace.token].ended_at if trace.token in runs else None
        if ended_at is not None and trace.last_at > ended_at.timestamp() + TOLERANCE_S:
            late_s = trace.last_at - ended_at.timestamp()
            yield Fault.ORPHANED, f"a process of run {trace.token} was alive {late_s:.3f} s after its recorded end"
    for earlier, later in pairwise(sorted(traces, key=lambda trace: trace.first_at)):
        if later.first_at <= earlier.last_at:
            over_s = earlier.last_at - later.first_at
            yield Fault.DOUBLED, f"runs {earlier.token} and {later.token} were alive together for {over_s:.3f} s"


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """One run with all evidence about its ending. ``last_words`` is what its first process wrote at its end."""

    plan: JobPlan
    run: Run
    ending: Ending
    begun: bool
    last_words: str | None
    hit: Hit

    def __str__(self) -> str:
        return f"run {self.run.token} ended in the history with {self.ending}"


def _of_one_run(plan: JobPlan, run: Run, ending: Ending, trace: Trace | None, hit: Hit) -> Found:
    """Check the ending of a run against its own lines, and against the plan."""
    ends = trace.of("end") if trace is not None else []
    case = Case(
        plan=plan,
        run=run,
        ending=ending,
        begun=trace is not None and bool(trace.of("begin")),
        last_words=ends[-1].argument if ends else None,
        hit=hit,
    )
    against = _AGAINST[ending.kind](case) if ending.kind in _AGAINST else "which nothing here does"
    if against is not None:
        yield Fault.WRONG, f"{case}, {against}"


def _against_exited(case: Case) -> str | None:
    if not case.begun:
        return "and it never began"
    if case.last_words != str(case.ending.exit_code):
        return f"and it has written {case.last_words}"
    asked = case.plan.signal is None and case.plan.duration_s < FOR_EVER_S
    return None if asked and case.ending.exit_code == case.plan.exit_code else "which it was not asked to do"


def _against_signalled(case: Case) -> str | None:
    by_itself = case.plan.signal == case.ending.signal and case.last_words == str(case.plan.signal)
    by_us = case.ending.signal == SIGKILL and case.run.token in case.hit.jobs | case.hit.shims
    return None if by_itself or by_us else "and nobody has sent that"


def _against_timed_out(case: Case) -> str | None:
    limit_s = case.plan.time_limit_s
    return None if limit_s is not None and case.plan.duration_s >= limit_s else "and its time was not over"


def _against_cancelled(case: Case) -> str | None:
    return None if case.plan.cancel_after_s is not None else "and nobody has cancelled it"


def _against_refused(case: Case) -> str | None:
    return None if case.plan.refused else "and it could be started"


def _against_lost(case: Case) -> str | None:
    """Return an objection unless the shim of a run that had begun was killed, or the grace was exceeded."""
    vanished = any(words in case.ending.detail for words in _VANISHED)
    if case.begun and vanished and case.run.token not in case.hit.shims:
        return "but it had begun and nobody had killed its shim"
    if not case.begun and not vanished and case.hit.went_on(case.run):
        return "but it had not begun, and its worker went on without it"
    return None


_VANISHED = ("shim vanished", "between the claim and the start")
#: The check of an ending, by its kind.
_AGAINST: dict[EndingKind, Callable[[Case], str | None]] = {
    EndingKind.EXITED: _against_exited,
    EndingKind.SIGNALLED: _against_signalled,
    EndingKind.TIMED_OUT: _against_timed_out,
    EndingKind.CANCELLED: _against_cancelled,
    EndingKind.REFUSED: _against_refused,
    EndingKind.LOST: _against_lost,
}


def _of_the_end(plan: JobPlan, record: Record) -> Found:
    job, last = record.job, record.last_run
    kind = last.ending.kind if last is not None and last.ending is not None else None
    if job.state is JobState.LOST and plan.requeue:
        yield Fault.WRONG, "it may run again and ended as lost"
    if job.state is JobState.CANCELLED and plan.cancel_after_s is None:
        yield Fault.WRONG, "it is cancelled, and nobody has done that"
    expected: dict[JobState, set[EndingKind | None]] = {
        JobState.SUCCEEDED: {EndingKind.EXITED},
        JobState.FAILED: {EndingKind.EXITED, EndingKind.SIGNALLED, EndingKind.TIMED_OUT, EndingKind.REFUSED},
        JobState.LOST: {EndingKind.LOST},
        # Cancelled while it waited, perhaps after losses; or its last run was lost during the cancel.
        JobState.CANCELLED: {EndingKind.CANCELLED, EndingKind.LOST, None},
    }
    if job.state.is_end and kind not in expected[job.state]:
        yield Fault.WRONG, f"it is {job.state}, its last run {kind}"
    code = last.ending.exit_code if last is not None and last.ending is not None else None
    if kind is EndingKind.EXITED and (job.state is JobState.SUCCEEDED) != (code == 0):
        yield Fault.WRONG, f"it is {job.state}, its last run ended with exit {code}"
