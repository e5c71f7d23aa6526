"""What somebody who waits for a job is told when it becomes held."""

from __future__ import annotations

from gpuqueue.command import say
from gpuqueue.job import Job, WaitReason


def tell_held(job: Job) -> None:
    """Say that whoever waits for *job* waits for a person: without a word it would look like any other wait."""
    why = " (its runs were lost too often)" if job.reason is WaitReason.LOST_TOO_OFTEN else ""
    say("gpuqueue", f"job {job.id} is held{why} and will wait for: gpuqueue release {job.id}")
