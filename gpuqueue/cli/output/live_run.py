"""The current state of a running job, as in ``gpuqueue queue``, for the output of ``show``."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING

from gpuqueue.cli.output.silent_hosts import silent_lines
from gpuqueue.client import Client
from gpuqueue.errors import GpuQueueError
from gpuqueue.lazy.frozen import dataclass
from gpuqueue.model.job import Job, JobState

if TYPE_CHECKING:
    from gpuqueue.model.progress import Progress


@dataclass(frozen=True, kw_only=True, slots=True)
class Live:
    """The run time of a job in seconds, its last sample of memory on all its devices in bytes, and its progress."""

    elapsed_s: float | None
    held_bytes: int | None
    progress: Progress | None


def read(client: Client, job: Job) -> Live | None:
    """Return the current state of *job*, or None if it does not run or the store does not answer."""
    if job.state not in {JobState.RUNNING, JobState.CANCELLING}:
        return None
    try:
        page = client.jobs.listing(limit=1, after=job.id - 1)
        progress = client.logs.progress([job], page.logs).get(job.id)
    except GpuQueueError:  # the output is complete without the live state
        return None
    return Live(
        elapsed_s=None if job.started_at is None else max(0.0, (page.at - job.started_at).total_seconds()),
        held_bytes=page.held_bytes.get(job.id),
        progress=progress,
    )


def silent(client: Client, job: Job) -> Iterator[str]:
    """Yield a line if the host that runs *job* is silent. Yield nothing if the store does not answer."""
    if job.state.is_active:
        with suppress(GpuQueueError):
            yield from silent_lines(client.devices.list(), client.settings, job.id)
