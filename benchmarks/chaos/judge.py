"""Compares what was acknowledged, what the history has, and what the jobs did. Pure: all evidence is passed in."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from benchmarks.chaos.effects import Trace
from benchmarks.chaos.kills import Kill
from benchmarks.chaos.one_job import Fault, Hit, of_one_job
from benchmarks.chaos.plan import JobPlan
from benchmarks.chaos.traffic import Ack
from gpuqueue.model.event import Event
from gpuqueue.model.run import EndingKind, Record, Run


@dataclass(frozen=True, slots=True)
class Finding:
    """One discrepancy; ``job_id`` is None if it concerns no job."""

    fault: Fault
    job_id: int | None
    text: str


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """All that is compared.

    ``records`` and ``stories`` are the history's, by job id; ``traces`` are the jobs' own, by name.
    """

    acks: Mapping[int, Ack]
    #: Submits whose reply was an error, by name.
    unsure: Mapping[str, JobPlan]
    records: Mapping[int, Record]
    stories: Mapping[int, Sequence[Event]]
    traces: Mapping[str, Sequence[Trace]]
    kills: Sequence[Kill]
    #: Kills for which there was no victim.
    dropped: int = 0
    #: What an operator had to do: calls of `gpuqueue up`, and how many failed because of another kill; jobs that were
    #: released after too many losses; devices that were resumed after quick deaths.
    ups: int = 0
    ups_failed: int = 0
    released: int = 0
    resumed: int = 0
    #: Jobs that were acknowledged and later unknown.
    unknown: Sequence[int] = ()
    surprises: Sequence[str] = ()
    #: Processes, keys and files that are left when all is quiet.
    processes: Sequence[str] = ()
    keys: Sequence[str] = ()
    files: Sequence[str] = ()


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """The result."""

    findings: tuple[Finding, ...]
    acknowledged: int
    #: Submits that ended in an error, and how many of them had succeeded nevertheless.
    unsure: int
    unsure_found: int
    runs: int
    #: Runs that were recorded as lost, by the recorded reason.
    losses: Counter[str] = field(default_factory=Counter)
    #: Jobs with a second run after a first one had begun and was lost, and jobs that came to their end twice.
    again: int = 0
    ended_twice: int = 0

    def jobs_with(self, fault: Fault) -> int:
        """Return how many jobs, or other things, have this fault."""
        found = [finding for finding in self.findings if finding.fault is fault]
        return len({each.job_id for each in found if each.job_id}) + sum(each.job_id is None for each in found)


def judge(evidence: Evidence) -> Verdict:
    """Return every discrepancy, and the figures."""
    findings = [*_of_the_site(evidence), *_of_the_history(evidence)]
    hit = Hit(evidence.kills, evidence.records.values())
    known_names = {record.job.spec.name: job_id for job_id, record in evidence.records.items()}
    for name, traces in evidence.traces.items():
        if name not in known_names:
            findings.append(
                Finding(Fault.LOST, None, f"{name} has run ({traces[0].lines[0]}) and is not in the history")
            )
    plans = {ack.name: ack.plan for ack in evidence.acks.values()} | dict(evidence.unsure)
    losses: Counter[str] = Counter()
    again = twice = runs = 0
    for job_id, record in evidence.records.items():
        traces = evidence.traces.get(record.job.spec.name, ())
        plan = plans.get(record.job.spec.name)
        if plan is None:
            findings.append(Finding(Fault.OTHER, job_id, f"nobody submitted {record.job.spec.name}"))
            continue
        found = of_one_job(plan, record, evidence.stories.get(job_id, ()), traces, hit)
        findings += [Finding(fault, job_id, text) for fault, text in found]
        lost = [run for run in record.runs if run.ending is not None and run.ending.kind is EndingKind.LOST]
        losses.update(_cause(run) for run in lost)
        runs += len(record.runs)
        again += len(traces) > 1
        twice += sum(bool(trace.of("end")) for trace in traces) > 1
    return Verdict(
        findings=tuple(findings),
        acknowledged=len(evidence.acks),
        unsure=len(evidence.unsure),
        unsure_found=sum(name in known_names for name in evidence.unsure),
        runs=runs,
        losses=losses,
        again=again,
        ended_twice=twice,
    )


def _cause(run: Run) -> str:
    """Return why a run was lost, without the numbers in it."""
    detail = run.ending.detail if run.ending else ""
    return detail.split(", ")[0]


# ---- the site --------------------------------------------------------------------------------------------------------


def _of_the_site(evidence: Evidence) -> Iterator[Finding]:
    for process in evidence.processes:
        yield Finding(Fault.ORPHANED, None, f"still there when all was quiet: {process}")
    for key in evidence.keys:
        yield Finding(Fault.LEFT, None, f"key left in the store: {key}")
    for file in evidence.files:
        yield Finding(Fault.LEFT, None, f"file left in a run directory: {file}")
    for surprise in evidence.surprises:
        yield Finding(Fault.OTHER, None, surprise)


def _of_the_history(evidence: Evidence) -> Iterator[Finding]:
    for job_id, ack in evidence.acks.items():
        record = evidence.records.get(job_id)
        if record is None:
            yield Finding(Fault.LOST, job_id, f"{ack.name} was acknowledged and is not in the history")
        elif record.job.spec.name != ack.name:
            yield Finding(Fault.LOST, job_id, f"the id of {ack.name} belongs to {record.job.spec.name}")
        elif not record.job.state.is_end:
            yield Finding(Fault.LOST, job_id, f"{ack.name} is {record.job.state} for ever")
    for job_id in evidence.unknown:
        yield Finding(Fault.LOST, job_id, "it was acknowledged, and nobody knew it when it was to be cancelled")
    rows = Counter(record.job.spec.name for record in evidence.records.values())
    for name, count in rows.items():
        if count > 1:
            yield Finding(Fault.DOUBLED, None, f"one submit of {name} made {count} jobs")
