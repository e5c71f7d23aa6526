"""The progress of running jobs, and the time that is left: by their own pace, or by earlier runs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from gpuqueue.client.connection import Connection
from gpuqueue.clock import from_epoch_ms
from gpuqueue.errors import HistoryUnreachable
from gpuqueue.lazy.frozen import dataclass
from gpuqueue.model.job import Job, JobState
from gpuqueue.model.progress import Progress
from gpuqueue.system import progress_file

#: Most runs without a pace of their own for which the history is asked at a time.
MAX_YOUNG = 50


@dataclass(frozen=True, kw_only=True, slots=True)
class Usual:
    """Usual duration of a running job, from earlier runs of the same user and name.

    Only runs that lasted at least as long as the job has by now are counted. ``median_s`` and ``p90_s`` are durations
    of whole runs in seconds. ``runs`` is the number of runs counted.
    """

    median_s: float
    p90_s: float
    runs: int


def own_progress(
    connection: Connection, jobs: Iterable[Job], logs: Mapping[int, str] | None = None
) -> dict[int, Progress]:
    """Return the progress that the workers of this host have read of *jobs*, by job id, as far as it is known.

    *logs* maps ids of jobs to log paths. Without it, the queue is asked for each path.
    """
    found = {}
    for job in jobs:
        if job.state is not JobState.RUNNING or job.host != connection.settings.own_host:
            continue
        path = _current_log(connection, job.id) if logs is None else logs.get(job.id)
        progress = progress_file.read(Path(path).parent) if path else None
        if progress is not None:
            found[job.id] = progress
    return found


def _current_log(connection: Connection, job_id: int) -> str | None:
    record = connection.queue.jobs.record(job_id)
    run = record.last_run if record is not None else None
    return None if run is None else run.log_path


def usual_of(durations_s: Iterable[float], *, elapsed_s: float) -> Usual | None:
    """Return the usual duration among runs of *durations_s*, for a run that has lasted *elapsed_s*.

    Return None if no run lasted that long. The quantiles are nearest ranks, so each is an observed duration.
    """
    longer = sorted(each for each in durations_s if each >= elapsed_s)
    if not longer:
        return None
    return Usual(median_s=_rank(longer, 50), p90_s=_rank(longer, 90), runs=len(longer))


def _rank(ordered: Sequence[float], percent: int) -> float:
    """Return the smallest value that at least *percent* of all values do not exceed."""
    return ordered[max(1, -(-len(ordered) * percent // 100)) - 1]


def runs_before(connection: Connection, jobs: Sequence[Job]) -> Iterator[tuple[Job, list[float], float]]:
    """Yield each of *jobs* with the durations of its earlier runs and how long it has run, both in seconds."""
    now = from_epoch_ms(connection.queue.now_ms()) if jobs else None
    for job in jobs:
        try:
            durations_s = connection.database.durations_s(user=job.spec.account.name, name=job.spec.name)
        except HistoryUnreachable:
            return
        yield job, durations_s, (now - job.started_at).total_seconds() if job.started_at and now else 0.0


def with_usual(connection: Connection, jobs: Iterable[Job], progress: Mapping[int, Progress]) -> dict[int, Progress]:
    """Return the *progress* of running *jobs*, by job id, with a time left by earlier runs where a run has no own pace.

    The median of the runs that lasted as long counts. Where the history has none, or is unreachable, none is known.
    """
    found = dict(progress)
    young = [job for job in jobs if job.id in found and found[job.id].left_s is None][:MAX_YOUNG]
    for job, durations_s, elapsed_s in runs_before(connection, young):
        usual = usual_of(durations_s, elapsed_s=elapsed_s)
        if usual is not None:
            found[job.id] = replace(found[job.id], left_s=usual.median_s - elapsed_s)
    return found
