"""Estimates the memory of a script's next run from its earlier runs. Pure.

The number is that of learned memory (:mod:`gpuqueue.learning.rule`), so that ``gpuqueue estimate`` and ``--mem auto``
agree. This module chooses the runs: those of the account come first, then those of others, then those of a copy.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime
from enum import Enum
from pathlib import Path

from gpuqueue.lazy.frozen import dataclass
from gpuqueue.learning import past_run
from gpuqueue.learning.past_run import Proof
from gpuqueue.learning.signature import Lesson, Wanted, lesson_for, of_one_kind
from gpuqueue.model.device import DeviceFilter, DeviceKind
from gpuqueue.model.job import Job
from gpuqueue.model.job_spec import Account
from gpuqueue.model.mem_source import Signature
from gpuqueue.model.run import EndingKind, Record, Run
from gpuqueue.model.script_args import words_before_args


class Whose(str, Enum):
    """Which runs an estimate uses, in the order of preference."""

    OWN = "own"
    ANYBODY = "anybody"
    OWN_ELSEWHERE = "own_elsewhere"

    def __str__(self) -> str:
        return self.value


@dataclass(frozen=True, kw_only=True, slots=True)
class Script:
    """The script to estimate: its path, its arguments and the account that would run it.

    ``code`` and ``interpreter`` are those of a job that is submitted now, None if they are not known.
    """

    path: str
    args: tuple[str, ...]
    account: Account
    code: str | None = None
    interpreter: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class PastRun:
    """One ended run on its fullest device. ``bytes`` is what it shows of the need, in the way that ``proof`` says."""

    job_id: int
    ended_at: datetime
    bytes: int
    proof: Proof
    same_args: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Past:
    """The estimate from the history: what it teaches, and the runs that it uses, newest first.

    ``kind`` is the kind of their devices.
    """

    whose: Whose
    kind: DeviceKind
    lesson: Lesson
    runs: tuple[PastRun, ...]

    @property
    def need_bytes(self) -> int:
        """Return the needed bytes."""
        return self.lesson.learned.need_bytes

    @property
    def mem_bytes(self) -> int:
        """Return the bytes to request: the need within the largest device of the runs, rounded."""
        return self.lesson.learned.mem_bytes

    @property
    def suffices(self) -> bool:
        """Return whether the estimate is usable. It is not if all runs ended out of memory."""
        return any(run.proof is not Proof.DIED for run in self.runs)


def past_of(script: Script, records: Iterable[Record], headroom_bytes: int = 0) -> Past | None:
    """Return the estimate for *script* from *records*, newest first, or None if none of their runs shows a need.

    The account's own runs of the same file are preferred, then other accounts' runs of it, then the account's own runs
    of a file with the same name elsewhere. *headroom_bytes* of a device are for no job.
    """
    known = [
        (whose, run, shown)
        for record in records
        if (whose := _whose(script, record.job)) is not None
        for run, shown in _telling(script, record)
    ]
    for whose in Whose:
        runs = [run for each, run, _ in known if each is whose]
        wanted = _wanted(script, runs)
        lesson = lesson_for(wanted, runs, headroom_bytes)
        if lesson is not None:
            kind = of_one_kind(wanted, runs)[0].kind
            all_args = lesson.signature in {Signature.MOVING, Signature.LINE, Signature.SCRIPT}
            used = tuple(
                shown
                for each, run, shown in known
                if each is whose and run.kind is kind and (all_args or shown.same_args)
            )
            return Past(whose=whose, kind=kind, lesson=lesson, runs=used)
    return None


def _wanted(script: Script, runs: Iterable[past_run.PastRun]) -> Wanted:
    """Return what to compare with *runs*. The number of devices is that of the last run with the same arguments."""
    gpus = next((run.gpus for run in runs if run.words == script.args), 1)
    return Wanted(
        words=script.args, code=script.code, interpreter=script.interpreter, gpus=gpus, device=DeviceFilter.GPU
    )


def _whose(script: Script, job: Job) -> Whose | None:
    spec = job.spec
    if spec.script is None or spec.gpus < 1:
        return None
    own = spec.account.name == script.account.name
    path, wanted = Path(spec.cwd, spec.script), Path(script.path)
    if path == wanted:
        return Whose.OWN if own else Whose.ANYBODY
    return Whose.OWN_ELSEWHERE if own and path.name == wanted.name else None


def _telling(script: Script, record: Record) -> Iterator[tuple[past_run.PastRun, PastRun]]:
    """Yield the runs on GPUs, simulated ones included, that show a need, newest first, for the rule and the reader."""
    died = sum(run.ending is not None and run.ending.kind is EndingKind.OUT_OF_MEMORY for run in record.runs)
    next_bytes = past_run.next_request(record.job.spec.mem_bytes, died=died, mem_retries=record.job.mem_retries)
    runs = [*reversed(record.runs)]
    attempts = (
        (
            _of_rule(record, run),
            max((each.lease_bytes for each in run.devices), default=0),
            max((each.peak.bytes for each in run.devices if each.peak.bytes is not None), default=None),
        )
        for run in runs
    )
    for run, found in zip(runs, past_run.without_lost(attempts, next_bytes), strict=True):
        if found is not None and run.ended_at is not None:
            yield (
                found,
                PastRun(
                    job_id=run.job_id,
                    ended_at=run.ended_at,
                    bytes=found.bytes,
                    proof=found.proof,
                    same_args=found.words == script.args,
                ),
            )


def _of_rule(record: Record, run: Run) -> past_run.PastRun | None:
    """Return *run* as the rule reads it; None if it shows no need or was on a CPU."""
    spec, devices = record.job.spec, past_run.on_devices(run)
    if run.ending is None or not devices or not past_run.kind_of(devices[0]).is_gpu:
        return None
    git, timed_out = spec.git, run.ending.kind is EndingKind.TIMED_OUT
    proved = past_run.proof_of(
        devices,
        ended_well=timed_out or run.ending.shell_code == 0,
        out_of_memory=run.ending.kind is EndingKind.OUT_OF_MEMORY,
        is_cut=timed_out and spec.probe is not None,
        note_kinds=run.note_kinds,
    )
    if proved is None:
        return None
    return past_run.PastRun(
        proof=proved[0],
        bytes=proved[1],
        kind=past_run.kind_of(devices[0]),
        words=spec.argv[words_before_args(spec) :],
        code=past_run.code_of(spec.snapshot, git.commit if git else None, dirty=git.dirty if git else None),
        interpreter=spec.interpreter,
        environment=spec.environment or spec.container,
        gpus=len(devices),
        models=tuple(each.name for each in devices if each.name is not None),
        room_bytes=min((each.total_bytes for each in devices if each.total_bytes is not None), default=None),
    )
