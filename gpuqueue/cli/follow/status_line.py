"""What somebody who stays with a job is told: it is held, it runs again, the store is away."""

from __future__ import annotations

from gpuqueue.console import say
from gpuqueue.errors import Unreachable
from gpuqueue.model.job import Job, WaitReason
from gpuqueue.model.run import Run

_WHY = {
    WaitReason.LOST_TOO_OFTEN: " (its runs were lost too often)",
    WaitReason.REQUEUED_TOO_OFTEN: " (its runs asked to be requeued too often)",
}


def tell_held(job: Job) -> None:
    """Say that whoever waits for *job* waits for a person: without a word it would look like any other wait."""
    why = _WHY.get(job.reason, "") if job.reason is not None else ""
    say("gpuqueue", f"job {job.label} is held{why} and will wait for: gpuqueue release {job.label}")


def tell_again(run: Run) -> None:
    """Say that the output goes on in another run's log."""
    say("gpuqueue", f"job {run.job_id} runs again, attempt {run.attempt}: what follows is of that run")


def tell_away(error: Unreachable) -> None:
    """Say that we stay all the same: the jobs go on while the store is away."""
    say("gpuqueue", f"{error}. Waiting for it; the jobs go on")


def tell_the_book(error: Unreachable) -> None:
    """Say that what follows is what the history has: it may be behind."""
    say("gpuqueue", f"{error}. What the history has of it follows")
