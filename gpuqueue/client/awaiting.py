"""Waiting for the ends of many jobs at once."""

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

#: Longest time between two looks while waiting for an end, in seconds. The doorbell usually rings before.
LOOK_S = 1.0
#: Looking at very many jobs takes long itself: between two looks lies at least so many times as long.
LOOK_SHARE = 10


class Awaiting(Looking):
    """Waits for jobs, however many."""

    def ends(
        self,
        jobs: Iterable[int | str],
        *,
        timeout_s: float | None = None,
        held: Callable[[Job], None] | None = None,
        away: Callable[[Unreachable], None] | None = None,
    ) -> Iterator[tuple[int | str, Job]]:
        """Yield each of *jobs* by its name and as it ended, in the order of their ends.

        A held job waits for a person, perhaps for the one who waits here: *held* is called with a job each time it
        becomes held. The history is asked only for what the queue has forgotten. A store that goes away while we wait
        is waited for as well, for ten minutes: *away* is called with the error then.

        Raises:
            JobNotFound: nobody knows one of them: it is told at the first look, whatever the others do.
            WaitTimeout: they have not all ended after *timeout_s*; those that have not go on.

        """
        validation.seconds_or_none("timeout_s", timeout_s)
        deadline = math.inf if timeout_s is None else time.monotonic() + timeout_s
        ids = {name: _id_of(name) for name in jobs}
        notices = {name: HeldNotice(held) for name in ids}
        patience = Patience(away)
        while ids:
            try:
                for name, job in self._looked_at(ids, until=deadline):
                    patience.answered()
                    if job.state.is_end:
                        yield name, job
                    else:
                        notices[name].look(job)
            except ABSENCES as error:
                patience.bear(error)
            if ids and time.monotonic() >= deadline:
                raise WaitTimeout(_still_open(list(ids), timeout_s or 0.0))

    def _looked_at(self, ids: dict[int | str, int], *, until: float) -> Iterator[tuple[int | str, Job]]:
        """Yield each of the jobs whenever it was looked at, for as long as some have not ended; those leave *ids*."""
        from gpuqueue.queue import keys  # noqa: PLC0415 - as in queue
        from gpuqueue.queue.connect import connect_at_once  # noqa: PLC0415 - as in queue
        from gpuqueue.queue.wakeup import Doorbell  # noqa: PLC0415 - as in queue

        next_look = 0.0
        with Doorbell(self.settings.redis_url, keys.END, by=connect_at_once) as bell:
            rung: int | None = None  # the job whose end was rung; None: look at all
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
                    next_look = now + max(LOOK_S, LOOK_SHARE * (now - began))
                rung = _rung(bell, ids.values(), until=min(next_look, until)) if ids else None


def _id_of(job: int | str) -> int:
    name = validation.one_job(job)
    return name.id if name.member is None else name.member.id


def _rung(bell: Doorbell, ids: Collection[int], *, until: float) -> int | None:
    """Return which of the jobs *ids* ended, None if none did before *until*."""
    while (left_s := until - time.monotonic()) > 0:
        ring = bell.wait(left_s)
        if ring is not None and ring.job_id in ids:
            return ring.job_id
    return None


def _still_open(names: list[int | str], timeout_s: float) -> str:
    others = len(names) - 1
    more = f", and {others} more {'does' if others == 1 else 'do'}" if others else ""
    return f"job {names[0]} has not ended after {timeout_s:g} s: it goes on{more}"


class HeldNotice:
    """Calls *tell* once each time that a job becomes held."""

    def __init__(self, tell: Callable[[Job], None] | None) -> None:
        self._tell = tell
        self._was_held = False

    def look(self, job: Job) -> None:
        """Take note of where the job stands."""
        is_held = job.state is JobState.HELD
        if is_held and not self._was_held and self._tell is not None:
            self._tell(job)
        self._was_held = is_held
