"""Which waiting jobs a pilot of an engine can run, and when the rule of the settings asks for one. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import datetime
from itertools import chain

from gpuqueue.lazy.frozen import dataclass
from gpuqueue.model.burst import PilotSettings
from gpuqueue.model.device import DeviceFilter
from gpuqueue.model.job import Job, WaitReason
from gpuqueue.model.job_spec import JobSpec
from gpuqueue.model.placement import fits_model
from gpuqueue.text.units import format_bytes, format_duration

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


@dataclass(frozen=True, kw_only=True, slots=True)
class Lender:
    """An engine that could lend a device to a job, by the settings.

    ``why_not`` is why no pilot of it is for the job, None if one is. ``asks_in_s`` is after how many seconds its rule
    asks for one because of this job; None: it has no rule, and a person asks.
    """

    engine: str
    why_not: str | None = None
    asks_in_s: float | None = None


def lenders_of(burst: Mapping[str, PilotSettings], job: Job, now: datetime) -> Iterator[Lender]:
    """Yield the engines of the settings *burst*, and whether a pilot of each is for *job*, which waits."""
    for engine, settings in burst.items():
        if settings.when_waiting_s is None:  # a person chooses the number of GPUs, the hours and the pool
            chosen = replace(settings, gpus=max(settings.gpus, job.spec.gpus), pool=job.spec.pool)
            yield Lender(engine=engine, why_not=next(_not_there(chosen, job.spec), None))
        else:
            against = chain(_not_there(settings, job.spec), _too_long(settings, job.spec), _not_his(settings, job))
            left_s = max(0.0, settings.when_waiting_s - _waited_s(job, now))
            yield Lender(engine=engine, why_not=next(against, None), asks_in_s=left_s)


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
