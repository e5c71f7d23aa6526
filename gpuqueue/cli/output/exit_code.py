"""The exit code of a command that waited for a job."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuqueue.console import INTERRUPTED
from gpuqueue.errors import HistoryUnreachable
from gpuqueue.model.job import JobState

if TYPE_CHECKING:
    from gpuqueue.model.run import Record


def code_of(record: Record) -> int:
    """Return the exit code for an ended job; 1 if the job has none of its own.

    Raises:
        HistoryUnreachable: The job failed, and the history has not recorded its ending yet.

    """
    if record.job.state is JobState.CANCELLED:  # while it waited, for a retry too, or while it ran
        return INTERRUPTED
    last = record.last_run
    if last is not None and last.ending is not None:
        return last.ending.shell_code
    if record.job.state is JobState.FAILED:
        behind = f"job {record.job.label} failed, but its exit code is not in the history yet"
        raise HistoryUnreachable(behind, "gpuqueue status shows how far the recorder is behind")
    return 0 if record.job.state is JobState.SUCCEEDED else 1
