"""The rule by which a site asks for pilots without a person: one request at a time, for jobs that would start there.

The service applies it (``gpuqueue/service/bursting.py``), and ``gpuqueue burst why`` explains what it decides.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from itertools import chain
from typing import TYPE_CHECKING

from gpuqueue.lazy.frozen import dataclass
from gpuqueue.model.burst import PilotSettings
from gpuqueue.model.device import DeviceFilter
from gpuqueue.model.job import Job, JobState, WaitReason
from gpuqueue.model.job_spec import JobSpec
from gpuqueue.model.placement import fits_model
from gpuqueue.pilots.fleet import TOKEN_NAME, Pilot, PilotRequest
from gpuqueue.text.units import format_bytes, format_duration

if TYPE_CHECKING:
    from gpuqueue.client import Client
    from gpuqueue.clock import Clock
    from gpuqueue.model.access_token import AccessToken

#: Why a job waits if more devices help it.
FOR_DEVICES = frozenset(
    {
        WaitReason.MEMORY,
        WaitReason.DEVICE,
        WaitReason.NO_GPU,
        WaitReason.SLOTS,
        WaitReason.RESERVATION,
        WaitReason.DRAINED,
        WaitReason.END,
        WaitReason.SILENT,
    }
)
#: The part of a pilot's time in which jobs can run: it joins first, and hands back before its end.
USABLE_LESS_S = 300.0
#: The most jobs that the rule looks at, the oldest first.
MAX_JOBS = 1000
#: What the name of a token says of its pilot.
_SIZE = re.compile(rf"{re.escape(TOKEN_NAME)}(\d+) GPUs?, ([0-9.]+)h")
#: The period of the budget ``hours_a_day``.
DAY = timedelta(days=1)


@dataclass(frozen=True, kw_only=True, slots=True)
class Counted:
    """A job that waits, and why it is not counted; None if it is."""

    job: Job
    why_not: str | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Spent:
    """A pilot that was asked for: its GPUs and hours, and from when to when; ``ended_at`` is None if it is not over."""

    gpus: int
    hours: float
    made_at: datetime
    ended_at: datetime | None

    def gpu_hours(self) -> float:
        """Return its GPU-hours: those that it asked for, or fewer if it is over sooner."""
        if self.ended_at is None:
            return self.gpus * self.hours
        return self.gpus * min(self.hours, max(0.0, (self.ended_at - self.made_at).total_seconds() / 3600))


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
        spent: The pilots that were asked for within ``DAY``.
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
    used_hours = sum(pilot.gpu_hours() for pilot in spent if now - pilot.made_at < DAY)
    why_not = next(_against(settings, needed, pilots, used_hours), None)
    if why_not is not None:
        return Decision(request=None, why=why_not, counted=counted)
    words = f"{_many(len(counting), 'job')} would start on a pilot of {_many(gpus, 'GPU')}"
    request = PilotRequest(gpus=gpus, hours=settings.hours, pool=settings.pool)
    return Decision(request=request, why=words, counted=counted)


def _against(settings: PilotSettings, needed: int, pilots: Sequence[bool], used_hours: float) -> Iterator[str]:
    """Yield what speaks against a further pilot for jobs that need so many GPUs."""
    if not needed:
        yield "no job that waits would start on a pilot"
    unused = sum(not runs_job for runs_job in pilots)
    if unused:
        yield f"{_many(unused, 'pilot')} asked for before {'runs' if unused == 1 else 'run'} no job yet"
    if len(pilots) >= settings.max_pilots:
        yield f"there are {_many(len(pilots), 'pilot')}, and max = {settings.max_pilots}"
    if needed < settings.min_gpus:
        yield f"the jobs would use {_many(needed, 'GPU')}, and min_gpus = {settings.min_gpus}"
    wanted_hours = min(needed, settings.gpus) * settings.hours
    if settings.hours_a_day is not None and used_hours + wanted_hours > settings.hours_a_day:
        used = f"{used_hours:.1f} of hours_a_day = {settings.hours_a_day:g} GPU-hours were used in the last day"
        yield f"{used}, and a pilot needs {wanted_hours:g}"


def why_not_counted(settings: PilotSettings, job: Job, now: datetime) -> str | None:
    """Return why no pilot is asked for because of *job*, which is queued; None if one is."""
    return next(
        chain(_not_yet(settings, job, now), _not_there(settings, job.spec), _too_long(settings, job.spec)), None
    )


def _not_yet(settings: PilotSettings, job: Job, now: datetime) -> Iterator[str]:
    waited_s = max(0.0, (now - max(job.submitted_at, job.begins_at or job.submitted_at)).total_seconds())
    if job.reason not in FOR_DEVICES:
        yield "it does not wait for a device"
    if waited_s < (settings.when_waiting_s or 0.0):
        yield f"it has waited for {format_duration(waited_s)}"
    if settings.users and job.spec.account.name not in settings.users:
        yield f"{job.spec.account.name} is not in users"


def _not_there(settings: PilotSettings, spec: JobSpec) -> Iterator[str]:
    """Yield why the devices of a pilot are not for the job."""
    models = spec.placement.models
    if spec.is_whole:
        yield "an engine runs it as a whole"
    if spec.device is DeviceFilter.CPU:
        yield "it is for a CPU"
    if spec.pool not in {"", settings.pool}:
        yield f"it is for the pool {spec.pool}"
    if spec.gpus > settings.gpus:
        yield f"it needs {spec.gpus} GPUs of one host, and gpus = {settings.gpus}"
    if settings.mem_bytes is not None and spec.mem_bytes > settings.mem_bytes:
        yield f"it needs {format_bytes(spec.mem_bytes)} of a card, and mem = {format_bytes(settings.mem_bytes)}"
    if spec.placement.devices:
        yield "it is for a device of this site"
    if models and not any(fits_model(each, settings.model) for each in models):
        yield f"it is for {' or '.join(models)}, and model = {settings.model!r}"


def _too_long(settings: PilotSettings, spec: JobSpec) -> Iterator[str]:
    """Yield why the job may not be over in time: the claim has the same rule (``device_end.lua``)."""
    lasts_s = spec.time_limit_s if spec.time_limit_s is not None else spec.expected_duration_s
    if lasts_s is None and not spec.requeue:
        yield "nobody knows how long it takes, and it must not run twice"
    if lasts_s is not None and lasts_s > settings.hours * 3600 - USABLE_LESS_S:
        yield f"it may take {format_duration(lasts_s)}, and hours = {settings.hours:g}"


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
    jobs = client.jobs.list(states=[JobState.QUEUED], limit=MAX_JOBS)
    spent = [each for token in tokens if (each := spent_by(token)) is not None]
    busy = {device.host for device in client.devices.list() if device.jobs}
    return decide(settings, jobs, [pilot.host in busy for pilot in pilots], spent, now=clock.now())


def spent_by(token: AccessToken) -> Spent | None:
    """Return what the pilot of *token* was asked for, None if it is no pilot's."""
    found = _SIZE.match(token.name)
    if found is None:
        return None
    return Spent(gpus=int(found[1]), hours=float(found[2]), made_at=token.made_at, ended_at=token.revoked_at)


def _many(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"
