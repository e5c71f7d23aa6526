"""Encodes how a job waits as one argument of the scripts (see ``lua/shared/dependencies.lua``)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime

from gpuqueue.clock import to_epoch_ms
from gpuqueue.model.dependencies import Dependency
from gpuqueue.model.job import Job, JobState, WaitReason
from gpuqueue.model.job_spec import JobSpec

#: Reasons of a job that waits for a time, as the history records them. A held job has another reason there.
_OF_ITS_TIME = {WaitReason.BEGIN, WaitReason.RETRY, WaitReason.REQUEUE}


def asked(spec: JobSpec, ends: Mapping[int, bool] | None = None) -> str:
    """Return how a requested job waits; *ends* says which dependencies have ended, and whether they succeeded."""
    words = _words(spec, spec.waits.after, ends or {}, begin_at=spec.waits.begin_at)
    return " ".join([*words, "hold=1"] if spec.waits.hold else words)


def left(job: Job, ends: Mapping[int, bool], *, again: WaitReason | None) -> str:
    """Return how a job of the history waits now, without conditions that are over; its counts continue.

    *again* is why the job runs again after its last run: RETRY, REQUEUE, or None for neither.
    """
    words = _words(job.spec, _others(job, ends), ends, begin_at=job.begins_at)
    why = job.reason if job.reason in _OF_ITS_TIME else again
    words += [f"why={why}"] if job.begins_at is not None and why is not None else []
    granted = job.attempt if again is WaitReason.RETRY else 0
    counts = (
        ("retries", job.retries),
        ("requeues", job.requeues),
        ("granted", granted),
        ("memretries", job.mem_retries),
    )
    return " ".join([*words, *(f"{name}={count}" for name, count in counts if count)])


def _others(job: Job, ends: Mapping[int, bool]) -> Sequence[Dependency]:
    """Return the dependencies of a job of the history that may still be open.

    A job that has run has met its first dependencies. If its reason is DEPENDENCY, an edit has added new ones since
    then. A held job has another reason, so its dependencies that have not ended are open. Any other job that has run
    waits for none.
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
