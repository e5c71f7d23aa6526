"""Waits for the ends of jobs over the service, by long polls. A wait goes on while the service restarts."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator

from gpuqueue.client.patience import ABSENCES, Patience
from gpuqueue.client.remote.link import ANSWER_S, Link, segment
from gpuqueue.errors import Unreachable, WaitTimeout
from gpuqueue.model import api, job_ref, validation
from gpuqueue.model.job import Job
from gpuqueue.model.run import Record

#: Longest time that the service may hold one request, in seconds.
HOLD_S = 25.0
#: Interval between two states of :func:`watch`, in seconds.
WATCH_S = 1.0


def ends(
    link: Link,
    jobs: Iterable[int | str],
    *,
    timeout_s: float | None,
    held: Callable[[Job], None] | None,
    away: Callable[[Unreachable], None] | None,
) -> Iterator[tuple[int | str, Job]]:
    """Yield the name and the ended job for each of *jobs*, in the order of their ends."""
    from gpuqueue.client.wait import still_open  # noqa: PLC0415 - only after the time is over

    validation.seconds_or_none("timeout_s", timeout_s)
    deadline = math.inf if timeout_s is None else time.monotonic() + timeout_s
    names = {str(job_ref.one_job(name)): name for name in jobs}
    patience, known_held, left_s = Patience(away), frozenset[str](), 0.0  # the first answer comes at once
    while names:
        try:
            waited = _waited(link, tuple(names), tuple(known_held & names.keys()), left_s)
        except ABSENCES as error:
            patience.bear(error)
        else:
            patience.answered()
            for each in waited.held:
                if held is not None and each.name not in known_held:
                    held(each.job)
            known_held = frozenset(each.name for each in waited.held)
            for each in waited.ended:
                yield names.pop(each.name), each.job
        left_s = deadline - time.monotonic()
        if names and time.monotonic() >= deadline:
            raise WaitTimeout(still_open([*names.values()], timeout_s or 0.0))


def watch(link: Link, job: int | str, *, away: Callable[[Unreachable], None] | None) -> Iterator[Job]:
    """Yield the job's current state at least once a second until it has ended."""
    patience, path = Patience(away), f"/jobs/{segment(job_ref.one_job(job))}"
    while True:
        try:
            seen = link.get(Job, path)
            patience.answered()
            yield seen
            if seen.state.is_end:
                return
            _waited(link, (str(job_ref.one_job(job)),), (), WATCH_S)
        except ABSENCES as error:
            patience.bear(error)


def recorded(link: Link, job: Job) -> Record:
    """Return the ended *job* from the history, or with what the service knows if the history lags."""
    return link.get(Record, f"/jobs/{segment(job.label)}/ended")


def _waited(link: Link, jobs: tuple[str, ...], held: tuple[str, ...], left_s: float) -> api.Waited:
    hold_s = max(0.0, min(left_s, HOLD_S))
    body = api.WaitRequest(jobs=jobs, timeout_s=hold_s, held=held)
    return link.send("POST", "/jobs/wait", body, kind=api.Waited, timeout_s=hold_s + ANSWER_S)
