"""Reads the progress of running jobs from their logs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from gpuqueue.client.waiting import Waiting
from gpuqueue.model.job import Job, JobState
from gpuqueue.system.logs import LOGS, last_bytes

if TYPE_CHECKING:
    from gpuqueue.model.progress import Progress


class Watching(Waiting):
    """Reads the logs of running jobs."""

    def progress(self, jobs: Iterable[Job], logs: Mapping[int, str] | None = None) -> dict[int, Progress]:
        """Return the progress of the running jobs of *jobs* that report it in their logs, by job id.

        Only logs that are on this machine and readable by this account are searched. *logs* maps ids of jobs to log
        paths (:class:`gpuqueue.model.job_page.Listing`). Without it, the queue is asked for each path.
        """
        from gpuqueue.model.progress import TAIL_BYTES, progress_in  # noqa: PLC0415 - lazy import for startup time

        found = {}
        for job in jobs:
            if job.state is not JobState.RUNNING or job.host != self.settings.host:
                continue
            path = self._current_log(job.id) if logs is None else _path(logs.get(job.id))
            names = LOGS[::-1] if job.spec.separate_stderr else LOGS[:1]  # tqdm draws its bars on standard error
            ends = (last_bytes(path.with_name(name), TAIL_BYTES) for name in names) if path is not None else ()
            progress = next((said for said in map(progress_in, ends) if said is not None), None)
            if progress is not None:
                found[job.id] = progress
        return found

    def _current_log(self, job_id: int) -> Path | None:
        record = self.queue.jobs.record(job_id)
        run = record.last_run if record is not None else None
        return None if run is None else _path(run.log_path)


def _path(text: str | None) -> Path | None:
    return Path(text) if text else None
