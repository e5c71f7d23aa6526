"""The labels of arrays in lists, and the exit codes of ended jobs and arrays."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from gpuqueue.console import INTERRUPTED
from gpuqueue.errors import HistoryUnreachable
from gpuqueue.model.job import Job, JobState
from gpuqueue.text.sanitize import short

if TYPE_CHECKING:
    from gpuqueue.client import Client
    from gpuqueue.model.run import Record

#: Longest text of indexes in a list, in columns.
SHOWN = 40


def labels(job: Job) -> list[tuple[str, JobState]]:
    """Return the labels and states that a list shows for *job*.

    An array has one pair for its waiting members and one for its held members. It has none once all its members have
    begun, since a list shows these as jobs.
    """
    if job.tally is None or job.spec.array is None:
        return [(job.label, job.state)]
    most = f"%{job.spec.array.at_once}" if job.spec.array.at_once else ""
    rows = ((str(job.tally.left), JobState.QUEUED), (str(job.tally.held), JobState.HELD))
    return [(f"{job.id}_[{short(text, SHOWN)}{most}]", state) for text, state in rows if text]


def worst_code(client: Client, record: Record) -> int:
    """Return the exit code of an ended job; for an array, the highest of its members.

    Raises:
        HistoryUnreachable: The job failed, and the history has not recorded its ending yet.

    """
    if record.job.spec.array is None or record.job.state is JobState.SUCCEEDED:
        return exit_code_of(record)
    bad = [state for state in JobState if state.is_end and state is not JobState.SUCCEEDED]
    found = client.history.search(array=record.job.id, states=bad, limit=len(record.job.spec.array))
    # The history does not record members that were cancelled before they began. The array's state shows that some were.
    never_began = [INTERRUPTED] if record.job.state is JobState.CANCELLED else []
    return max([*never_began, *map(exit_code_of, found)], default=1) or 1


def first_bad_code(
    client: Client,
    words: Iterable[Sequence[str]],
    ended: Mapping[int | str, Job],
    records: Mapping[str, Record],
) -> int:
    """Return the exit code of the first of *words* with a job that has not succeeded, or 0.

    Each element of *words* is the list of jobs that one argument names. Its exit code is the highest of its jobs.
    *records* are already known. The history is queried for other jobs only if they did not succeed.

    Raises:
        HistoryUnreachable: A job failed, and the history has not recorded its ending yet.

    """
    for names in words:
        bad = [name for name in names if name in ended and ended[name].state is not JobState.SUCCEEDED]
        if bad:
            return max(worst_code(client, records.get(name) or client.jobs.recorded(ended[name])) for name in bad) or 1
    return 0


def exit_code_of(record: Record) -> int:
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
