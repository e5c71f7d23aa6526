"""How a job waits, as the one argument of the scripts that take a request (see ``lua/dependencies.lua``)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime

from gpuqueue.clock import to_epoch_ms
from gpuqueue.model.dependencies import Dependency
from gpuqueue.model.job import Job, JobSpec, JobState, WaitReason

#: Why a job waits that has a time, as far as the book was told: of one that is held it was told something else.
_OF_ITS_TIME = {WaitReason.BEGIN, WaitReason.RETRY, WaitReason.REQUEUE}


def asked(spec: JobSpec, ends: Mapping[int, bool] | None = None) -> str:
    """Return what a request says of waiting; *ends* is which jobs have ended, and whether they succeeded."""
    words = _words(spec, spec.waits.after, ends or {}, begin_at=spec.waits.begin_at)
    return " ".join([*words, "hold=1"] if spec.waits.hold else words)


def left(job: Job, ends: Mapping[int, bool], *, again: WaitReason | None) -> str:
    """Return how a job of the book waits now: what has been is over, and its counts go on.

    *again*: for what its last run lets it wait, RETRY or REQUEUE; None: for neither.
    """
    words = _words(job.spec, _others(job, ends), ends, begin_at=job.begins_at)
    why = job.reason if job.reason in _OF_ITS_TIME else again
    words += [f"why={why}"] if job.begins_at is not None and why is not None else []
    granted = job.attempt if again is WaitReason.RETRY else 0
    counts = (("retries", job.retries), ("requeues", job.requeues), ("granted", granted))
    return " ".join([*words, *(f"{name}={count}" for name, count in counts if count)])


def _others(job: Job, ends: Mapping[int, bool]) -> Sequence[Dependency]:
    """Return the other jobs that a job of the book still waits for, or of which it has not heard how they ended.

    One that has run was let in once, and what its first run waited for is over. That it waits for others again is of an
    edit since, and then they are its reason. One that is held was told another reason: of its others, those that have
    not ended are waited for. The rest let it in, whatever is known of them by now.
    """
    if not job.attempt or job.reason is WaitReason.DEPENDENCY:
        return job.spec.waits.after
    if job.state is JobState.HELD:
        return [each for each in job.spec.waits.after if each.job_id not in ends]
    return ()


def _words(
    spec: JobSpec, after: Sequence[Dependency], ends: Mapping[int, bool], *, begin_at: datetime | None
) -> list[str]:
    words = []
    if after:
        words.append("after=" + ",".join(_dependency(each, ends) for each in after))
    if begin_at is not None:
        words.append(f"begin={max(0, to_epoch_ms(begin_at))}")
    if spec.waits.dedupe is not None:
        words.append(f"key={spec.waits.dedupe}")
    if spec.retries.times:
        words += [f"times={spec.retries.times}", f"on={','.join(map(str, spec.retries.on))}"]
    return words


def _dependency(wanted: Dependency, ends: Mapping[int, bool]) -> str:
    if wanted.job_id not in ends:
        return str(wanted)
    return f"{wanted}:{'ok' if ends[wanted.job_id] else 'fail'}"
