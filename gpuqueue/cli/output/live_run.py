"""What the queue knows of a job that runs, at one moment: what ``queue`` shows, for the story of that job."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuqueue.client.watching import Watching
from gpuqueue.errors import GpuQueueError
from gpuqueue.lazy.frozen import dataclass
from gpuqueue.model.job import Job, JobState

if TYPE_CHECKING:
    from gpuqueue.model.progress import Progress


@dataclass(frozen=True, kw_only=True, slots=True)
class Live:
    """For how long a job has been running, what it was last seen to hold on all its devices, and how far it is."""

    elapsed_s: float | None
    held_bytes: int | None
    progress: Progress | None


def look(client: Watching, job: Job) -> Live | None:
    """Return what is known of *job* now; None where it does not run, or the store does not answer."""
    if job.state not in {JobState.RUNNING, JobState.CANCELLING}:
        return None
    try:
        page = client.queue.page(limit=1, after=job.id - 1)
        progress = client.progress([job], page.logs).get(job.id)
    except GpuQueueError:  # its story is told without it
        return None
    return Live(
        elapsed_s=None if job.started_at is None else max(0.0, (page.at - job.started_at).total_seconds()),
        held_bytes=page.held_bytes.get(job.id),
        progress=progress,
    )
