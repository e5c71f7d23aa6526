"""The fourth step: asks the queue for permission to start."""

from __future__ import annotations

from gpuqueue.clock import Clock
from gpuqueue.lazy.frozen import dataclass
from gpuqueue.model.job import JobState
from gpuqueue.queue.jobqueue import JobQueue
from gpuqueue.settings.settings import Settings
from workers.measure.active_runs import LiveRun
from workers.steps.conclusion import NotStarted
from workers.steps.detach import answered
from workers.threads import SteadyEvent


@dataclass(frozen=True, slots=True)
class Permit:
    """The permission to start *run* until ``until_s`` on the host's monotonic clock, in seconds."""

    run: LiveRun
    until_s: float


def authorise(run: LiveRun, settings: Settings, queue: JobQueue, clock: Clock, stopping: SteadyEvent) -> Permit:
    """Return the permission to start *run*.

    Raises:
        NotStarted: The job was cancelled, or the claim is stale.
        Detached: The worker stops before the store answers.

    """

    def ask() -> tuple[float, JobState | None]:
        until_s = clock.monotonic_s() + settings.shim_grace_s  # counted from before the request
        state = queue.runs.started(
            run.held.job_id,
            run.held.token,
            lease_s=settings.lease_s,
            log_path=str(run.directory.log),
            devices=run.held.devices,
        )
        return until_s, state

    until_s, state = answered(ask, stopping)
    if state is JobState.CANCELLING:
        raise NotStarted("cancelled before it started")
    if state is not JobState.RUNNING:
        raise NotStarted("the claim is stale", stale=True)
    return Permit(run, until_s)
