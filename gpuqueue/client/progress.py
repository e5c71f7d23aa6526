"""The progress of running jobs, and the time that is left: by their own pace and by earlier runs.

:func:`job_progress` is the one place where it is computed. Everything that shows progress takes it from there.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from gpuqueue.client.connection import Connection
from gpuqueue.clock import from_epoch_ms
from gpuqueue.errors import HistoryUnreachable
from gpuqueue.lazy.frozen import dataclass
from gpuqueue.lazy.imports import later
from gpuqueue.model.job import Job, JobState
from gpuqueue.model.progress import Progress, Reading
from gpuqueue.system import progress_file

if TYPE_CHECKING:
    from gpuqueue.learning import signature
else:  # only for runs of which the history is asked
    signature = later("gpuqueue.learning.signature")

#: Most runs for which the history is asked at a time.
MAX_ASKED = 50
#: The share of the work from which on only the run's own pace counts.
OWN_FROM = 0.25
#: Earlier runs count beside the pace of the run if both foretell the same duration up to this factor.
AGREES = 2.0
#: A bar alone is that of the job if it foretells at least this share of the duration of earlier runs.
WHOLE_FROM = 0.7


@dataclass(frozen=True, kw_only=True, slots=True)
class Usual:
    """Usual duration of a running job, from earlier runs of the same user that succeeded.

    Only runs that lasted at least as long as the job has by now are counted. ``median_s`` and ``p90_s`` are durations
    of whole runs in seconds, ``left_s`` the median less the age of the run. ``runs`` is the number of runs counted.
    ``is_alike``: they have the command of the job, or are of its array. Else they have its name only.
    """

    median_s: float
    p90_s: float
    runs: int
    left_s: float | None = None
    is_alike: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Earlier:
    """A running job, how long it has run, and the durations of its earlier runs, in seconds.

    ``is_alike`` is that of :class:`Usual`.
    """

    job: Job
    elapsed_s: float
    durations_s: Sequence[float]
    is_alike: bool

    @property
    def usual(self) -> Usual | None:
        """The usual duration of the run, None if no earlier run lasted as long as it by now."""
        found = usual_of(self.durations_s, elapsed_s=self.elapsed_s)
        return None if found is None else replace(found, is_alike=self.is_alike)


def readings(connection: Connection, jobs: Iterable[Job], logs: Mapping[int, str] | None = None) -> dict[int, Reading]:
    """Return what the workers of this host have read in the output of *jobs*, by job id, as far as it shows progress.

    *logs* maps ids of jobs to log paths. Without it, the queue is asked for each path.
    """
    found = {}
    for job in jobs:
        if job.state is not JobState.RUNNING or job.host != connection.settings.own_host:
            continue
        path = _current_log(connection, job.id) if logs is None else logs.get(job.id)
        reading = progress_file.read(Path(path).parent) if path else None
        if reading is not None:
            found[job.id] = reading
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
    median_s = _rank(longer, 50)
    return Usual(median_s=median_s, p90_s=_rank(longer, 90), runs=len(longer), left_s=median_s - elapsed_s)


def _rank(ordered: Sequence[float], percent: int) -> float:
    """Return the smallest value that at least *percent* of all values do not exceed."""
    return ordered[max(1, -(-len(ordered) * percent // 100)) - 1]


def runs_before(connection: Connection, jobs: Sequence[Job], *, by_name: bool = True) -> Iterator[Earlier]:
    """Yield each of *jobs* with its earlier runs of the same command; *by_name*: without any, those of its name."""
    now = from_epoch_ms(connection.queue.now_ms()) if jobs else None
    asked: dict[tuple[str, ...], list[float]] = {}  # the members of an array and repeated jobs ask the same

    def durations_s(job: Job, *, alike: bool) -> list[float]:
        spec, array_id = job.spec, None if job.member is None else job.member.array_id
        user, command = spec.account.name, spec.command
        key = (user, command, str(array_id)) if alike else (user, spec.name)
        if key not in asked:
            if alike:
                program = signature.program_of(spec.argv, spec.script, spec.cwd)
                asked[key] = connection.database.durations_alike_s(
                    user=user, program=program, command=command, array_id=array_id
                )
            else:
                asked[key] = connection.database.durations_s(user=user, name=spec.name)
        return asked[key]

    for job in jobs:
        elapsed_s = (now - job.started_at).total_seconds() if job.started_at and now else 0.0
        try:
            found, is_alike = durations_s(job, alike=True), True
            if not found and by_name:
                found, is_alike = durations_s(job, alike=False), False
        except HistoryUnreachable:
            return
        yield Earlier(job=job, elapsed_s=elapsed_s, durations_s=found, is_alike=is_alike)


def job_progress(connection: Connection, jobs: Iterable[Job], shown: Mapping[int, Reading]) -> dict[int, Progress]:
    """Return the progress of running *jobs*, by job id, from what their output has *shown*, and from earlier runs.

    Earlier runs of the same command count where the run is young, and show whether a bar alone is that of the job.
    Where it stays unknown, the job has none. If the history is unreachable, the pace of the run alone counts.
    """
    found = {job_id: reading.progress for job_id, reading in shown.items() if reading.is_sure}
    asked = [job for job in jobs if job.id in shown and _needs_past(shown[job.id])][:MAX_ASKED]
    for before in runs_before(connection, asked, by_name=False):
        progress = with_past(shown[before.job.id], before)
        if progress is not None:
            found[before.job.id] = progress
    return found


def _needs_past(reading: Reading) -> bool:
    return not reading.is_sure or reading.progress.left_s is None or reading.progress.share < OWN_FROM


def with_past(reading: Reading, before: Earlier) -> Progress | None:
    """Return the progress of a run whose output shows *reading*, None if it is not known to be that of the job.

    The pace of the run counts the more, the more is done, and alone from a quarter of the work on. It also counts
    alone if it foretells another duration than the earlier runs: something else is done this time.
    """
    progress, usual = reading.progress, before.usual
    own_s = progress.left_s
    if not reading.is_sure and not _is_whole(own_s, before):
        return None
    if usual is None or usual.left_s is None:
        return progress
    if own_s is None:
        return replace(progress, left_s=usual.left_s)
    total_s = before.elapsed_s + own_s
    if not usual.median_s / AGREES <= total_s <= usual.median_s * AGREES:
        return progress
    own = min(1.0, progress.share / OWN_FROM)
    return replace(progress, left_s=own * own_s + (1 - own) * usual.left_s)


def _is_whole(own_s: float | None, before: Earlier) -> bool:
    """Return whether a bar with *own_s* seconds to go lasts about as long as the earlier runs did."""
    if own_s is None or not before.durations_s:
        return False
    return before.elapsed_s + own_s >= WHOLE_FROM * _rank(sorted(before.durations_s), 50)
