"""Waits for the ends of jobs."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from gpuqueue.client import reads
from gpuqueue.client.connection import Connection
from gpuqueue.client.patience import ABSENCES, Patience
from gpuqueue.errors import HistoryUnreachable, Unreachable, WaitTimeout
from gpuqueue.lazy.imports import later
from gpuqueue.model import job_ref, validation
from gpuqueue.model.job import Job, JobState

if TYPE_CHECKING:
    from gpuqueue.model import run as runs
    from gpuqueue.model.run import Record
    from gpuqueue.queue.wakeup import Subscriber
else:
    runs = later("gpuqueue.model.run")

#: Longest interval between two polls for an end, in seconds. A wake-up message usually arrives earlier.
POLL_S = 1.0
#: Polling very many jobs is slow. The interval between two polls is at least this many times the poll's duration.
POLL_SHARE = 10
#: How long to wait for an ended job's record in the history, in seconds. After that, it is returned without its runs.
RECORD_S = 5.0


def ends(
    connection: Connection,
    jobs: Iterable[int | str],
    *,
    timeout_s: float | None,
    held: Callable[[Job], None] | None,
    away: Callable[[Unreachable], None] | None,
) -> Iterator[tuple[int | str, Job]]:
    """Yield the name and the ended job for each of *jobs*, in the order of their ends."""
    validation.seconds_or_none("timeout_s", timeout_s)
    deadline = math.inf if timeout_s is None else time.monotonic() + timeout_s
    ids = {name: reads.id_of(job_ref.one_job(name)) for name in jobs}
    notifications = {name: HeldMessage(held) for name in ids}
    patience, is_away = Patience(away), False
    while ids:
        try:
            for name, job in _polled(connection, ids, until=deadline):
                patience.answered()
                is_away = False
                if job.state.is_end:
                    yield name, job
                else:
                    notifications[name].update(job)
        except ABSENCES as error:
            if not is_away:
                yield from _recorded_ends(connection, ids)
            is_away = True
            if ids:
                patience.bear(error)
        if ids and time.monotonic() >= deadline:
            raise WaitTimeout(still_open(list(ids), timeout_s or 0.0))


def _recorded_ends(connection: Connection, ids: dict[int | str, int]) -> Iterator[tuple[int | str, Job]]:
    """Yield each job that has ended by the history, and remove it from *ids*. No further one ends without the store."""
    for name in [*ids]:
        record = reads.ended(connection, job_ref.one_job(name))
        if record is not None:
            del ids[name]
            yield name, record.job


def _polled(connection: Connection, ids: dict[int | str, int], *, until: float) -> Iterator[tuple[int | str, Job]]:
    """Yield each job after each poll of it, until all have ended. An ended job is removed from *ids*."""
    next_poll = 0.0
    with connection.ends() as wakeups:
        ended: int | None = None  # the job whose end was announced; None: poll all
        while ids:
            began = time.monotonic()
            for name in [each for each, job_id in ids.items() if ended in {None, job_id}]:
                job = reads.by_its_members(connection, reads.get(connection, name))
                if job.state.is_end:
                    del ids[name]
                yield name, job
            now = time.monotonic()
            if now >= until:
                return
            if ended is None:
                next_poll = now + max(POLL_S, POLL_SHARE * (now - began))
            ended = _announced(wakeups, ids.values(), until=min(next_poll, until)) if ids else None


def watch(connection: Connection, job: int | str, *, away: Callable[[Unreachable], None] | None) -> Iterator[Job]:
    """Yield the job's current state at least once a second until it has ended."""
    patience = Patience(away)
    while True:
        try:
            for seen in _watched(connection, job):
                patience.answered()
                yield seen
        except ABSENCES as error:
            patience.bear(error)
        else:
            return


def _watched(connection: Connection, job_id: int | str) -> Iterator[Job]:
    with connection.ends() as wakeups:
        while True:
            job = reads.get(connection, job_id)
            yield job
            if job.state.is_end:
                return
            until = time.monotonic() + POLL_S
            while (left_s := until - time.monotonic()) > 0:
                wake = wakeups.wait(left_s)
                if wake is not None and wake.job_id == job.id:
                    break


def recorded(connection: Connection, job: Job) -> Record:
    """Return the ended *job* from the history, or with what the store knows if the history does not have it in time."""
    deadline = time.monotonic() + RECORD_S
    while True:
        record = recorded_now(connection, job, is_last=time.monotonic() >= deadline)
        if record is not None:
            return record
        time.sleep(0.01)


def recorded_now(connection: Connection, job: Job, *, is_last: bool) -> Record | None:
    """Return the ended *job* from the history; None if the history lags, unless this is the last try.

    The last try, and one that does not reach the history, returns what the store knows.
    """
    if job.member is not None and not job.attempt:
        return runs.Record(job=job)  # never claimed: the history has only its array
    try:
        record = connection.recorded(job.id)
        if record is not None and record.job.state.is_end:
            return record
    except HistoryUnreachable:
        is_last = True
    if not is_last:
        return None
    try:
        return connection.queue.jobs.record(job.id) or runs.Record(job=job)
    except Unreachable:
        return runs.Record(job=job)


def _announced(wakeups: Subscriber, ids: Collection[int], *, until: float) -> int | None:
    """Return the id of a job of *ids* whose end is announced before *until*, else None."""
    while (left_s := until - time.monotonic()) > 0:
        wake = wakeups.wait(left_s)
        if wake is not None and wake.job_id in ids:
            return wake.job_id
    return None


def still_open(names: Sequence[int | str], timeout_s: float) -> str:
    """Return the message of a WaitTimeout about the jobs *names*."""
    others = len(names) - 1
    more = f", and {others} more {'does' if others == 1 else 'do'}" if others else ""
    return f"job {names[0]} has not ended after {timeout_s:g} s: it goes on{more}"


class HeldMessage:
    """Calls *report* each time that a job becomes held."""

    def __init__(self, report: Callable[[Job], None] | None) -> None:
        self._report = report
        self._was_held = False

    def update(self, job: Job) -> None:
        """Record the job's state, and call *report* if the job became held since the last call."""
        is_held = job.state is JobState.HELD
        if is_held and not self._was_held and self._report is not None:
            self._report(job)
        self._was_held = is_held
