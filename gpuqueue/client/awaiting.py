"""Waits for the ends of many jobs at once."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import TYPE_CHECKING

from gpuqueue.client import validation
from gpuqueue.client.looking import Looking
from gpuqueue.client.patience import ABSENCES, Patience
from gpuqueue.errors import Unreachable, WaitTimeout
from gpuqueue.model.job import Job, JobState

if TYPE_CHECKING:
    from gpuqueue.queue.wakeup import Doorbell

#: Longest interval between two polls for an end, in seconds. A wake-up message usually arrives earlier.
POLL_S = 1.0
#: Polling very many jobs is slow. The interval between two polls is at least this many times the poll's duration.
LOOK_SHARE = 10


class Awaiting(Looking):
    """Waits for any number of jobs."""

    def ends(
        self,
        jobs: Iterable[int | str],
        *,
        timeout_s: float | None = None,
        held: Callable[[Job], None] | None = None,
        away: Callable[[Unreachable], None] | None = None,
    ) -> Iterator[tuple[int | str, Job]]:
        """Yield the name and the ended job for each of *jobs*, in the order of their ends.

        The history is queried only for jobs that the queue has deleted. If the store becomes unreachable during the
        wait, the wait continues for up to ten minutes.

        Args:
            jobs: Ids, or names of array members.
            timeout_s: The longest time to wait, in seconds. None means no limit.
            held: Called with a job each time the job becomes held. A held job waits until a person releases it.
            away: Called with the error when the store becomes unreachable.

        Raises:
            JobNotFound: one of the jobs does not exist. Raised by the first poll.
            WaitTimeout: some jobs have not ended after *timeout_s*. They continue.

        """
        validation.seconds_or_none("timeout_s", timeout_s)
        deadline = math.inf if timeout_s is None else time.monotonic() + timeout_s
        ids = {name: _id_of(name) for name in jobs}
        notifications = {name: HeldMessage(held) for name in ids}
        patience = Patience(away)
        while ids:
            try:
                for name, job in self._looked_at(ids, until=deadline):
                    patience.answered()
                    if job.state.is_end:
                        yield name, job
                    else:
                        notifications[name].look(job)
            except ABSENCES as error:
                patience.bear(error)
            if ids and time.monotonic() >= deadline:
                raise WaitTimeout(_still_open(list(ids), timeout_s or 0.0))

    def _looked_at(self, ids: dict[int | str, int], *, until: float) -> Iterator[tuple[int | str, Job]]:
        """Yield each job after each poll of it, until all have ended. An ended job is removed from *ids*."""
        from gpuqueue.queue import keys  # noqa: PLC0415 - lazy import for startup time
        from gpuqueue.queue.connect import connect_at_once  # noqa: PLC0415 - lazy import for startup time
        from gpuqueue.queue.wakeup import Doorbell  # noqa: PLC0415 - lazy import for startup time

        next_look = 0.0
        with Doorbell(self.settings.redis_url, keys.END, by=connect_at_once) as wakeups:
            rung: int | None = None  # the job whose end was announced; None: poll all
            while ids:
                began = time.monotonic()
                for name in [each for each, job_id in ids.items() if rung in {None, job_id}]:
                    job = self.get(name)
                    if job.state.is_end:
                        del ids[name]
                    yield name, job
                now = time.monotonic()
                if now >= until:
                    return
                if rung is None:
                    next_look = now + max(POLL_S, LOOK_SHARE * (now - began))
                rung = _rung(wakeups, ids.values(), until=min(next_look, until)) if ids else None


def _id_of(job: int | str) -> int:
    name = validation.one_job(job)
    return name.id if name.member is None else name.member.id


def _rung(wakeups: Doorbell, ids: Collection[int], *, until: float) -> int | None:
    """Return the id of a job of *ids* whose end is announced before *until*, else None."""
    while (left_s := until - time.monotonic()) > 0:
        wake = wakeups.wait(left_s)
        if wake is not None and wake.job_id in ids:
            return wake.job_id
    return None


def _still_open(names: list[int | str], timeout_s: float) -> str:
    others = len(names) - 1
    more = f", and {others} more {'does' if others == 1 else 'do'}" if others else ""
    return f"job {names[0]} has not ended after {timeout_s:g} s: it goes on{more}"


class HeldMessage:
    """Calls *report* each time that a job becomes held."""

    def __init__(self, report: Callable[[Job], None] | None) -> None:
        self._report = report
        self._was_held = False

    def look(self, job: Job) -> None:
        """Record the job's state, and call *report* if the job became held since the last call."""
        is_held = job.state is JobState.HELD
        if is_held and not self._was_held and self._report is not None:
            self._report(job)
        self._was_held = is_held
