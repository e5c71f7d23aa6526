"""Where an array stands for who looks at it, by where its members stand. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from gpuqueue.model.job import Job, JobState, WaitReason


def standing(job: Job, members: Iterable[JobState]) -> Job:
    """Return an array as *members* that were taken stand: the store has it running until the last of them has ended.

    Where none of them is at it, one that waits to run again makes it wait, and else a person holds all that is left.
    """
    there = {state for state in members if not state.is_end}
    if job.state is not JobState.RUNNING or job.tally is None or not there or any(each.is_active for each in there):
        return job
    if JobState.QUEUED in there:
        return replace(job, state=JobState.QUEUED, reason=WaitReason.RETRY)
    return replace(job, state=JobState.HELD, reason=WaitReason.HELD)
