"""Formats the result: a table, the story of each discrepancy, and the times to recover."""

from __future__ import annotations

import statistics
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from benchmarks.chaos.judge import Evidence, Finding, Verdict
from benchmarks.chaos.kills import Kill
from benchmarks.chaos.one_job import Fault
from benchmarks.chaos.plan import Breaks
from gpuqueue.model.event import Act, Event

_HISTORY = frozenset({Breaks.RECORDER_KILL, Breaks.DATABASE})
_RUN = frozenset({Breaks.SHIM_KILL, Breaks.JOB_KILL})
#: The acts that end a run. A shim killed before its job began causes only a release of the claim.
_ENDS = frozenset({Act.FINISH, Act.LOSE, Act.RELEASE_CLAIM})
_WORKERS = frozenset(
    {
        *(Breaks.WORKER_KILL, Breaks.WORKER_TERM, Breaks.HOST_KILL, Breaks.GROUP_KILL),
        *(Breaks.MACHINE_KILL, Breaks.AWAY),
    }
)
#: The longest story, in lines of the job's own.
LINES = 12


@dataclass(frozen=True, kw_only=True, slots=True)
class Signs:
    """The signs of recovery: the history's events in order, and when its position was seen to move.

    After the kill of a worker or a host the sign is the next claim of a *new* worker (for the device of the killed
    worker). After that of a shim or a job it is the recorded end of the run. After that of the recorder or the database
    it is the next move of the history. After all other kills it is the next claim of any worker.
    """

    events: Sequence[Event]
    moves: Sequence[float]

    def after(self, kill: Kill) -> float | None:
        """Return how long after a kill its sign of recovery came, in seconds; None if none came."""
        breaks = kill.plan.breaks
        if breaks in _HISTORY:
            place = bisect_right(self.moves, kill.at)
            return self.moves[place] - kill.at if place < len(self.moves) else None
        token = next(iter(kill.shims | kill.jobs), None) if breaks in _RUN else None
        known: set[str | None] = set()
        for event in self.events:
            worker, at = event.fields.get("worker"), event.at.timestamp()
            if at <= kill.at:
                known.add(worker)
            elif token is not None:
                if event.fields.get("token") == token and event.act in _ENDS:
                    return at - kill.at
            elif event.act is Act.CLAIM and not (breaks in _WORKERS and worker in known) and _is_of(worker, kill):
                return at - kill.at
        return None


def _is_of(worker: str | None, kill: Kill) -> bool:
    """Return whether a worker, by its name, serves the device of a kill, if the kill had one."""
    return kill.device is None or str(worker).split("/")[1:2] == [kill.device]


def recoveries(kills: Sequence[Kill], signs: Signs) -> dict[Breaks, list[float | None]]:
    """Return the time to recover of each kill, by what it broke."""
    found: dict[Breaks, list[float | None]] = defaultdict(list)
    for kill in kills:
        found[kill.plan.breaks].append(signs.after(kill))
    return found


def table(verdict: Verdict, evidence: Evidence, recovered: dict[Breaks, list[float | None]]) -> Iterator[str]:
    """Yield the lines of the result."""
    yield f"{'jobs acknowledged':34} {verdict.acknowledged:6}"
    yield f"{'  submits that ended in an error':34} {verdict.unsure:6}   {verdict.unsure_found} had come through"
    yield f"{'runs':34} {verdict.runs:6}"
    for cause, count in sorted(verdict.losses.items()):
        yield f"{'  lost':34} {count:6}   {cause}"
    yield f"{'  jobs run again after a loss':34} {verdict.again:6}   {verdict.ended_twice} of them ended twice"
    yield f"{'  gpuqueue up called':34} {evidence.ups:6}   {evidence.ups_failed} in vain, into the next kill"
    yield f"{'  jobs that a person released':34} {evidence.released:6}   lost three times"
    yield f"{'  devices that a person resumed':34} {evidence.resumed:6}   three quick deaths in a row"
    for fault in Fault:
        yield f"{fault.value:34} {verdict.jobs_with(fault):6}"
    yield ""
    yield f"{'what was broken':34} {'times':>6} {'back after: median':>20} {'max':>8}"
    for breaks in Breaks:
        times = [each for each in recovered.get(breaks, ()) if each is not None]
        silent = len(recovered.get(breaks, ())) - len(times)
        if breaks in recovered:
            shown = f"{statistics.median(times):18.2f} s {max(times):6.2f} s" if times else f"{'-':>20} {'-':>8}"
            none = f"   {silent} without a sign before the end" if silent else ""
            yield f"{breaks.value:34} {len(recovered[breaks]):6} {shown}{none}"
    every = [each for times in recovered.values() for each in times if each is not None]
    if every:
        none = f"   {evidence.dropped} more had no victim" if evidence.dropped else ""
        yield f"{'all':34} {len(evidence.kills):6} {statistics.median(every):18.2f} s {max(every):6.2f} s{none}"


def story(finding: Finding, evidence: Evidence) -> Iterator[str]:
    """Yield everything that is known about the job of a finding."""
    yield f"{finding.fault.value.upper()}: {f'job {finding.job_id}: ' if finding.job_id else ''}{finding.text}"
    job_id = finding.job_id
    if job_id is None:
        return
    ack = evidence.acks.get(job_id)
    if ack is not None:
        yield f"  asked   {ack.plan}"
        yield f"  printed {ack.at:.3f} id {ack.job_id}"
    record = evidence.records.get(job_id)
    events = evidence.stories.get(job_id, ())
    for event in events:
        fields = {name: text for name, text in event.fields.items() if name in {"token", "worker", "detail"}}
        yield f"  event   {event.at.timestamp():.3f} {event.act} -> {event.state} {event.attempt} {fields}"
    if record is None:
        return
    for run in record.runs:
        yield f"  run     {run.token} on {[device.uuid for device in run.devices]}: {run.ending}"
    for trace in evidence.traces.get(record.job.spec.name, ()):
        shown = trace.lines if len(trace.lines) <= LINES else (*trace.lines[: LINES // 2], *trace.lines[-LINES // 2 :])
        yield from (f"  wrote   {line}" for line in shown)
    if events:
        from_s, to_s = events[0].at.timestamp() - 1, events[-1].at.timestamp() + 1
        for kill in evidence.kills:
            if kill.until >= from_s and kill.at <= to_s:
                yield f"  kill    {kill.at:.3f} {kill.plan.number}: {kill.plan.breaks}: {kill.what}"


def as_plain(verdict: Verdict, kills: Sequence[Kill], recovered: dict[Breaks, list[float | None]]) -> dict[str, object]:
    """Return the result for programs."""
    every = [each for times in recovered.values() for each in times if each is not None]
    return {
        "acknowledged": verdict.acknowledged,
        "unsure": verdict.unsure,
        "unsure_found": verdict.unsure_found,
        "runs": verdict.runs,
        "losses": dict(verdict.losses),
        "again": verdict.again,
        "ended_twice": verdict.ended_twice,
        "kills": dict(Counter(kill.plan.breaks.value for kill in kills)),
        "faults": {fault.name.lower(): verdict.jobs_with(fault) for fault in Fault},
        "findings": [finding.text for finding in verdict.findings],
        "recovery_median_s": statistics.median(every) if every else None,
        "recovery_max_s": max(every, default=None),
    }
