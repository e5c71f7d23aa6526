"""The rule by which a site asks for pilots without a person: one request at a time, for jobs that would start there.

The service applies it (``gpuqueue/service/bursting.py``), and ``gpuqueue burst why`` explains what it decides.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import TYPE_CHECKING

from gpuqueue.lazy.frozen import dataclass
from gpuqueue.model.burst import PilotSettings
from gpuqueue.model.job import Job, JobState
from gpuqueue.model.lending import Spent, bounds_met, spent_by, why_not_counted
from gpuqueue.pilots.fleet import Pilot, PilotRequest

if TYPE_CHECKING:
    from gpuqueue.client import Client
    from gpuqueue.clock import Clock
    from gpuqueue.model.access_token import AccessToken

#: The most jobs that the rule looks at, the oldest first.
MAX_JOBS = 1000


@dataclass(frozen=True, kw_only=True, slots=True)
class Counted:
    """A job that waits, and why it is not counted; None if it is."""

    job: Job
    why_not: str | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Decision:
    """What the rule decides: the pilot to ask for, or None; the sentence that says why; and what it has counted."""

    request: PilotRequest | None
    why: str
    counted: tuple[Counted, ...] = ()

    @property
    def jobs(self) -> tuple[Job, ...]:
        """Return the jobs that count."""
        return tuple(each.job for each in self.counted if each.why_not is None)


def decide(
    settings: PilotSettings, jobs: Sequence[Job], pilots: Sequence[bool], spent: Sequence[Spent], *, now: datetime
) -> Decision:
    """Decide whether to ask for a pilot now.

    Args:
        settings: How pilots of the engine are made, with the rule.
        jobs: The jobs that have not ended, in the order of their ids.
        pilots: For each pilot that was not given up, whether it runs a job.
        spent: The pilots that were asked for, at least those of the last day.
        now: The time on the clock of the jobs.

    """
    if settings.when_waiting_s is None:
        return Decision(request=None, why="no rule: when_waiting is not set")
    counted = tuple(
        Counted(job=job, why_not=why_not_counted(settings, job, now)) for job in jobs if job.state is JobState.QUEUED
    )
    counting = [item.job for item in counted if item.why_not is None]
    needed = gpus_for(settings, counting)
    gpus = min(needed, settings.gpus)
    against = "; ".join(_against(settings, needed, pilots, spent, now))
    if not counting or against:
        why_not = against if counting else "no job that waits would start on a pilot"
        return Decision(request=None, why=why_not, counted=counted)
    words = f"{_many(len(counting), 'job')} would start on a pilot of {_many(gpus, 'GPU')}"
    request = PilotRequest(gpus=gpus, hours=settings.hours, pool=settings.pool)
    return Decision(request=request, why=words, counted=counted)


def _against(
    settings: PilotSettings, needed: int, pilots: Sequence[bool], spent: Sequence[Spent], now: datetime
) -> Iterator[str]:
    """Yield what speaks against a further pilot for jobs that need so many GPUs."""
    unused = sum(not runs_job for runs_job in pilots)
    if unused:
        yield f"{_many(unused, 'pilot')} asked for before {'runs' if unused == 1 else 'run'} no job yet"
    if needed < settings.min_gpus:
        yield f"the jobs would use {_many(needed, 'GPU')}, and min_gpus = {settings.min_gpus}"
    yield from bounds_met(settings, min(needed, settings.gpus), len(pilots), spent, now)


def gpus_for(settings: PilotSettings, jobs: Sequence[Job]) -> int:
    """Return how many GPUs *jobs* would use at once: shared by memory, if the settings say how much a card has.

    Their memory is added up and divided by that of a card. Jobs that do not fill cards exactly may need more: the next
    turn asks for another pilot.
    """
    shared_bytes, whole = 0, 0
    largest = 0
    for job in jobs:
        spec = job.spec
        members = 1 if job.tally is None else len(job.tally.left)
        largest = max(largest, spec.gpus)
        if spec.placement.exclusive or settings.mem_bytes is None:
            whole += members * spec.gpus
        else:
            shared_bytes += members * spec.gpus * spec.mem_bytes
    shared = math.ceil(shared_bytes / settings.mem_bytes) if settings.mem_bytes else 0
    return max(largest, whole + shared)


def decision_of(
    client: Client, settings: PilotSettings, pilots: Sequence[Pilot], tokens: Sequence[AccessToken], clock: Clock
) -> Decision:
    """Return what the rule of *settings* decides now. *tokens* are all of the site."""
    # Before the jobs: a pilot that claims a job between the two counts as unused, and holds the next one back.
    busy = {device.host for device in client.devices.list() if device.jobs}
    jobs = client.jobs.list(states=[JobState.QUEUED], limit=MAX_JOBS)
    spent = [each for token in tokens if (each := spent_by(token)) is not None]
    return decide(settings, jobs, [pilot.host in busy for pilot in pilots], spent, now=clock.now())


def _many(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"
