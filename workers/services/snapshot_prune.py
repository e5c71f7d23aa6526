"""Deletes the snapshots of code that no job uses, repeating ones included. The recorder beside the blob store does."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING

from gpuqueue.errors import GpuQueueError, Unreachable
from gpuqueue.files.blob_store import blob_store_of, directory_of
from gpuqueue.files.collect import GRACE_S, collect
from gpuqueue.model.code_snapshot import CodeSnapshot
from gpuqueue.queue.jobqueue import JobQueue
from gpuqueue.settings.settings import Settings

if TYPE_CHECKING:
    from gpuqueue.history.database import HistoryDatabase

log = logging.getLogger(__name__)

#: Jobs in one page of the queue.
PAGE = 1000


def collect_snapshots(settings: Settings, queue: JobQueue, database: HistoryDatabase) -> int:
    """Delete the blobs that no queued or running job needs and that were last used before ``keep_snapshots``.

    Those of repeating jobs stay. Return the number of deleted blobs. If Redis or the history is unreachable, nothing is
    deleted.
    """
    if settings.keep_snapshots_s is None or not directory_of(settings).is_dir():
        return 0
    try:
        if queue.epoch() is None:  # Redis is empty or is being rebuilt: it does not know all jobs
            return 0
        blobs = blob_store_of(settings)
        repeating = (CodeSnapshot.parse(snapshot) for _, _, snapshot in database.repeating_snapshots())
        used = {*_used(queue), *repeating}
        found = collect(
            blobs,
            {each.address for each in used},
            diffs={each.diff for each in used if each.diff is not None},
            grace_s=max(GRACE_S, settings.keep_snapshots_s),
        )
        blobs.forget_parts()
    except Unreachable:
        return 0
    except GpuQueueError as error:
        log.warning("old snapshots of code cannot be deleted: %s", error)
        return 0
    if found.blobs:
        log.info("%d blobs of snapshots that no job uses were deleted, %d bytes", found.blobs, found.size_bytes)
    return found.blobs


def _used(queue: JobQueue) -> Iterator[CodeSnapshot]:
    """Yield the snapshots of all jobs in the queue."""
    after: int | None = 0
    while after is not None:
        page = queue.jobs.page(limit=PAGE, after=after)
        for job in page.jobs:
            if job.spec.snapshot is not None:
                yield CodeSnapshot.parse(job.spec.snapshot)
        after = page.after
