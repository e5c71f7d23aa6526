"""Which waiting jobs a pilot of an engine can run, and when the rule of the settings asks for one. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from itertools import chain
from typing import TYPE_CHECKING

from gpuqueue.lazy.frozen import dataclass
from gpuqueue.lazy.imports import pattern
from gpuqueue.model.burst import PilotSettings
from gpuqueue.model.device import DeviceFilter
from gpuqueue.model.job import Job, WaitReason
from gpuqueue.model.job_spec import JobSpec
from gpuqueue.model.placement import fits_model
from gpuqueue.text.units import format_bytes, format_duration

if TYPE_CHECKING:
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
        WaitReason.CALENDAR,
        WaitReason.SILENT,
    }
)
#: The part of a pilot's time in which jobs can run: it joins first, and hands back before its end.
USABLE_LESS_S = 300.0
#: How the name of a pilot's token begins, and what it says of the pilot.
TOKEN_NAME = "pilot: "  # noqa: S105 - a name
_SIZE = pattern(rf"{TOKEN_NAME}(\d+) GPUs?, ([0-9.]+)h")
#: The period of the budget ``hours_a_day``.
DAY = timedelta(days=1)


@dataclass(frozen=True, kw_only=True, slots=True)
class Lender:
    """An engine that could lend a device to a job, by the settings.

    ``why_not`` is why no pilot of it is for the job, None if one is. ``asks_in_s`` is after how many seconds its rule
    asks for one because of this job; None: it has no rule, and a person asks. ``bound`` is which bound of the rule is
    met, such as ``max``, so that it asks for none now.
    """

    engine: str
    why_not: str | None = None
    asks_in_s: float | None = None
    bound: str | None = None


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


def spent_by(token: AccessToken) -> Spent | None:
    """Return what the pilot of *token* was asked for, None if it is no pilot's."""
    found = _SIZE.match(token.name)
    if found is None:
        return None
    return Spent(gpus=int(found[1]), hours=float(found[2]), made_at=token.made_at, ended_at=token.revoked_at)


def bounds_met(settings: PilotSettings, gpus: int, pilots: int, spent: Sequence[Spent], now: datetime) -> Iterator[str]:
    """Yield which bounds of the rule forbid another pilot of so many *gpus* beside so many *pilots*."""
    if pilots >= settings.max_pilots:
        yield f"there {'is 1 pilot' if pilots == 1 else f'are {pilots} pilots'}, and max = {settings.max_pilots}"
    used_hours = sum(pilot.gpu_hours() for pilot in spent if now - pilot.made_at < DAY)
    wanted_hours = gpus * settings.hours
    if settings.hours_a_day is not None and used_hours + wanted_hours > settings.hours_a_day:
        used = f"{used_hours:.1f} of hours_a_day = {settings.hours_a_day:g} GPU-hours were used in the last day"
        yield f"{used}, and a pilot needs {wanted_hours:g}"


def lenders_of(
    burst: Mapping[str, PilotSettings], job: Job, now: datetime, tokens: Sequence[AccessToken] = ()
) -> Iterator[Lender]:
    """Yield the engines of the settings *burst*, and whether a pilot of each is for *job*, which waits.

    *tokens* are those of the site, the records of its pilots.
    """
    spent = [each for token in tokens if (each := spent_by(token)) is not None]
    live = [token.account for token in tokens if token.name.startswith(TOKEN_NAME) and token.not_valid(now) is None]
    for engine, settings in burst.items():
        if settings.when_waiting_s is None:  # a person chooses the number of GPUs, the hours and the pool
            chosen = replace(settings, gpus=max(settings.gpus, job.spec.gpus), pool=job.spec.pool)
            yield Lender(engine=engine, why_not=next(_not_there(chosen, job.spec), None))
        else:
            against = chain(_not_there(settings, job.spec), _too_long(settings, job.spec), _not_his(settings, job))
            left_s = max(0.0, settings.when_waiting_s - _waited_s(job, now))
            pilots = sum(account.startswith(f"{engine}-") for account in live)
            met = "; ".join(bounds_met(settings, max(1, job.spec.gpus), pilots, spent, now)) or None
            yield Lender(engine=engine, why_not=next(against, None), asks_in_s=left_s, bound=met)


def why_not_counted(settings: PilotSettings, job: Job, now: datetime) -> str | None:
    """Return why no pilot is asked for because of *job*, which is queued; None if one is."""
    return next(
        chain(_not_yet(settings, job, now), _not_there(settings, job.spec), _too_long(settings, job.spec)), None
    )


def _not_yet(settings: PilotSettings, job: Job, now: datetime) -> Iterator[str]:
    waited_s = _waited_s(job, now)
    if job.reason not in FOR_DEVICES:
        yield "it does not wait for a device"
    if waited_s < (settings.when_waiting_s or 0.0):
        yield f"it has waited for {format_duration(waited_s)}"
    yield from _not_his(settings, job)


def _not_his(settings: PilotSettings, job: Job) -> Iterator[str]:
    if settings.users and job.spec.account.name not in settings.users:
        yield f"{job.spec.account.name} is not in users"


def _waited_s(job: Job, now: datetime) -> float:
    return max(0.0, (now - max(job.submitted_at, job.begins_at or job.submitted_at)).total_seconds())


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
