"""The jobs of ``gpuqueue queue --json``, with memory, run time and progress of those that run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gpuqueue.cli.output.queue_table import elapsed_s
from gpuqueue.codec import job_to_plain
from gpuqueue.model.job_page import Listing
from gpuqueue.model.progress import Progress


def listing_to_plain(listing: Listing, progress: Mapping[int, Progress]) -> list[dict[str, Any]]:
    """Return the jobs of *listing* as plain values."""
    return [
        {
            **job_to_plain(job),
            "held_bytes": listing.held_bytes.get(job.id) if job.state.is_active else None,
            "elapsed_s": elapsed_s(job, listing),
            "progress": progress_to_plain(progress.get(job.id)),
        }
        for job in listing.jobs
    ]


def progress_to_plain(progress: Progress | None) -> dict[str, Any] | None:
    """Return the progress of a job as plain values, or None if the job reports none."""
    return None if progress is None else {"share": progress.share, "words": progress.words}
