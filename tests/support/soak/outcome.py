"""The result of the soak: what was allocated, compared with what was used."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from soak.jobs import Kind
from soak.peaks import Peaks
from soak.promises import Judge, Promises
from soak.truth import truth_of

from gpuqueue.model.history_query import HistoryQuery
from gpuqueue.model.job import JobState
from gpuqueue.model.run import EndingKind

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from soak.soak import Soak
    from soak.truth import Process, Run, Truth

    from gpuqueue.model.run import Record

#: The least share of the runs that held their peak for longer than the sampler's step and have it in the history to the
#: byte.
EQUAL_SHARE = 0.95


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """The figures of one soak."""

    took_s: float
    kinds: Counter[str]
    moves: Mapping[str, int]
    promises: Promises
    peaks: Peaks
    #: Honest jobs that the driver refused memory, and everything that the history has wrong.
    refused: list[str]
    astray: list[str]

    def violations(self) -> list[str]:
        """Return every violation; the result must be empty."""
        found = [*self.promises.violations, *self.refused, *self.astray, *self.peaks.above]
        if self.promises.losses:
            found.append(f"{self.promises.losses} runs were lost")
        if self.peaks.equal < EQUAL_SHARE * self.peaks.held:
            found.append(f"only {self.peaks.equal} of {self.peaks.held} peaks that were held are in the history")
        if self.peaks.accounted_equal < self.peaks.accounted:
            missed = self.peaks.accounted - self.peaks.accounted_equal
            found.append(f"{missed} peaks of which the driver kept account are not in the history")
        return found

    def table(self) -> str:
        """Return the figures as a table for readers."""
        promises, peaks = self.promises, self.peaks
        most, shares = max(self.peaks.excesses, default=0), promises.shares
        late = f"{peaks.late} of {peaks.compared}, {peaks.unseen} never seen; longest {peaks.longest_unseen_s:.2f} s"
        rows = [
            ("claims", f"{promises.claims} in {self.took_s:.0f} s, {promises.released} of them given back"),
            ("jobs", ", ".join(f"{count} {kind}" for kind, count in self.kinds.most_common())),
            ("external_processes", ", ".join(f"{count} {move}" for move, count in self.moves.items())),
            ("promised of what was there", f"median {median(shares):.0%}, most {max(shares):.1%}" if shares else "-"),
            ("over-promised, by our own sums", f"{len(promises.violations)}"),
            ("honest jobs refused by the driver", f"{len(self.refused)}"),
            ("runs lost", f"{promises.losses}"),
            ("endings astray", f"{len(self.astray)}"),
            ("liars", f"{self.kinds['liar']}, at most {most / 2**20:.0f} MiB above their word"),
            ("peaks above the truth", f"{len(peaks.above)} of {peaks.compared}"),
            ("peaks held and equal", f"{peaks.equal} of {peaks.held}"),
            ("peaks accounted and equal", f"{peaks.accounted_equal} of {peaks.accounted}"),
            ("samples that came too late", f"{late}, largest gap {peaks.largest_gap_bytes / 2**20:.0f} MiB"),
        ]
        width = max(len(name) for name, _ in rows)
        return "\n".join(f"{name:<{width}}  {figure}" for name, figure in rows)


def judge(soak: Soak, *, took_s: float, samples: str, moves: Mapping[str, int]) -> Outcome:
    """Compare the soak's events and the history with the fake driver's record."""
    records = list(_records(soak))
    owners = {process: run for record in records for run, process in _processes(record)}
    truth = truth_of(soak.changes, owners)
    referee = Judge(soak.cards, truth, {key: int(ns) for _, key, ns in map(str.split, samples.splitlines())})
    for event in soak.events:
        referee.take(event)
    return Outcome(
        took_s=took_s,
        kinds=Counter(job.kind.value for job in soak.jobs.values()),
        moves=moves,
        promises=referee.promises,
        peaks=_peaks(soak, records, truth),
        refused=list(_refused(soak, truth, owners)),
        astray=list(_astray(soak, records, referee.promises)),
    )


def _records(soak: Soak) -> Iterator[Record]:
    before_id: int | None = None
    while page := soak.site.client.database.history(HistoryQuery(limit=500, before_id=before_id)):
        yield from page
        before_id = page[-1].job.id


def _processes(record: Record) -> Iterator[tuple[Run, Process]]:
    """Yield the processes of each run of a job, from its log."""
    for run in record.runs:
        log = Path(run.log_path).read_text() if run.log_path else ""
        for line in log.splitlines():
            if line.startswith("process "):
                _, pid, start = line.split()
                yield (run.job_id, run.token), (int(pid), int(start))


def _refused(soak: Soak, truth: Truth, owners: Mapping[Process, Run]) -> Iterator[str]:
    for refusal in truth.refusals:
        job_id, _ = owners.get(refusal.process, (0, ""))
        if not job_id or soak.jobs[job_id].kind.honest:
            wanted = f"{refusal.wanted_bytes / 2**20:.0f} MiB on card {refusal.card} at {refusal.at_ns}"
            yield f"job {job_id} was refused {wanted}"


def _peaks(soak: Soak, records: list[Record], truth: Truth) -> Peaks:
    peaks = Peaks()
    index_of = {card.uuid: card.index for card in soak.cards}
    for record in records:
        job = soak.jobs[record.job.id]
        run = record.last_run
        for device in run.devices if run is not None else ():
            card = index_of[device.uuid]
            level = truth.runs.get(((run.job_id, run.token), card)) if run is not None else None
            if level is None:
                continue
            accounting = bool(soak.fake.state.gpus[card].accounting)
            peaks.compare(f"job {record.job.id}", job.kind, level, device.peak, accounting=accounting)
            if job.kind is Kind.LIAR:
                peaks.excesses.append(level.peak_bytes - device.lease_bytes)
    return peaks


def _astray(soak: Soak, records: list[Record], promises: Promises) -> Iterator[str]:
    """Yield what is wrong in the history: each job must have one end, of a kind that fits the job."""
    known = {record.job.id: record for record in records}
    for job_id, job in soak.jobs.items():
        record = known.get(job_id)
        if record is None:
            yield f"job {job_id} is not in the history"
            continue
        ending = record.last_run.ending if record.last_run else None
        if record.job.state is not promises.ended.get(job_id):
            yield f"job {job_id}: {record.job.state} in the history, {promises.ended.get(job_id)} in the outbox"
        if ending is None or (record.job.state, ending.kind) not in _DESERVED[job.kind]:
            yield f"job {job_id} ({job.kind.value}): {record.job.state}, {ending}"


_WELL, _ENDED = (JobState.SUCCEEDED, EndingKind.EXITED), (JobState.FAILED, EndingKind.OUT_OF_MEMORY)
_DESERVED = {
    **{kind: {_WELL} for kind in Kind if kind.honest},
    Kind.FIB: {_WELL, _ENDED},
    Kind.LIAR: {_ENDED},
}
