"""Derives the displayed state of an array from the states of its members. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from gpuqueue.model.job import Job, JobState, WaitReason


def displayed(job: Job, members: Iterable[JobState]) -> Job:
    """Return *job*, an array, with the state that follows from the states of its claimed *members*.

    The store records an array as running until its last member has ended. If no member is active, the array is
    queued when one of its members waits for a retry. Otherwise all remaining members are held, and so is the array.
    """
    there = {state for state in members if not state.is_end}
    if job.state is not JobState.RUNNING or job.tally is None or not there or any(each.is_active for each in there):
        return job
    if JobState.QUEUED in there:
        return replace(job, state=JobState.QUEUED, reason=WaitReason.RETRY)
    return replace(job, state=JobState.HELD, reason=WaitReason.HELD)
