"""Routes that wait: long polls for the ends of jobs, and streams of events."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterable
from dataclasses import replace
from functools import partial
from typing import Annotated, Any

from starlette.requests import Request
from starlette.responses import Response

from gpuqueue.client import reads
from gpuqueue.client.patience import ABSENCES
from gpuqueue.errors import BadRequest, Unreachable
from gpuqueue.model import job_ref
from gpuqueue.model.access import Action
from gpuqueue.model.api import LogStream, NamedJob, Waited, WaitRequest
from gpuqueue.model.job import Job, JobState
from gpuqueue.queue.lease import DeviceStatus
from gpuqueue.service.call import Call
from gpuqueue.service.following import FollowedLog
from gpuqueue.service.responses import ALIVE, MEDIA_TYPE, event, streamed_events
from gpuqueue.service.routes.described import Header, Operations, Query, route
from gpuqueue.service.routes.jobs import LAG_S
from gpuqueue.service.site import answered, body_of, site_of

router = Operations("streams")

#: Interval between two reads of a job's state without a wake-up, and between two reads of a followed log, in seconds.
POLL_S, OUTPUT_S = 1.0, 0.25
#: Longest time of one long poll, in seconds, and most jobs in it.
MOST_WAIT_S, MOST_JOBS = 60.0, 5000
#: Polling very many jobs is slow. The pause between two polls is at least this many times the poll's duration.
PAUSE_PER_POLL = 10

Mark = Annotated[str | None, Header(alias="Last-Event-ID")]


@route(router, "POST /jobs/wait", answer=Waited, body=WaitRequest)
async def wait(request: Request) -> Response:
    """Wait until a job has ended, the held jobs differ from those that the caller names, or the time is over.

    The answer lists the ended and the held jobs.
    """
    wanted = await body_of(request, WaitRequest)
    if not 0 <= wanted.timeout_s <= MOST_WAIT_S or len(wanted.jobs) > MOST_JOBS:
        raise BadRequest(f"a wait takes at most {MOST_WAIT_S:g} s and {MOST_JOBS} jobs: ask again")
    site = site_of(request)
    ids = [reads.id_of(job_ref.one_job(name)) for name in wanted.jobs]
    until = time.monotonic() + wanted.timeout_s
    is_first = True
    while True:
        began = time.monotonic()
        waited = await site.work(request, lambda call: _read(call, wanted), is_first=is_first)
        is_first = False
        now = time.monotonic()
        has_changed = {each.name for each in waited.held} != {*wanted.held}
        if waited.ended or has_changed or now >= until or site.closing.is_set():
            return answered(waited)
        await site.ends.wait(ids, min(max(POLL_S, PAUSE_PER_POLL * (now - began)), until - now))


def _read(call: Call, wanted: WaitRequest) -> Waited:
    call.must_see_jobs()
    jobs: list[NamedJob] = []
    trouble: Unreachable | None = None
    for name in wanted.jobs:
        if trouble is not None:  # an absent store is asked once, as each answer takes seconds
            record = reads.ended(call.connection, job_ref.one_job(name))
            jobs += [] if record is None else [NamedJob(name=name, job=call.job(record.job))]
            continue
        try:
            job = reads.by_its_members(call.connection, call.client.jobs.get(name))
            jobs.append(NamedJob(name=name, job=call.job(job)))
        except ABSENCES as error:  # the history has those that have ended
            trouble = error
    if trouble is not None and not any(each.job.state.is_end for each in jobs):
        raise trouble
    return Waited(
        ended=tuple(each for each in jobs if each.job.state.is_end),
        held=tuple(each for each in jobs if each.job.state is JobState.HELD),
    )


@route(router, "GET /jobs/{name}/log/stream", answer=bytes, media_type=MEDIA_TYPE)
async def follow_log(
    request: Request, name: str, *, stream: LogStream = LogStream.LOG, whole: bool = False, mark: Mark = None
) -> Response:
    """Stream a job's output until its end.

    Events: ``job`` (its state), ``run`` (another run begins), ``output`` (a text; bytes that are not UTF-8 are lone
    surrogates), ``warning`` (a text: the host of the run does not answer), ``end``, ``problem``. The id of an event
    ``output`` is a mark: a stream with it as ``Last-Event-ID`` goes on behind that output.
    """
    log = FollowedLog(name, str(stream), mark, whole=whole)
    first = await _step(request, log, is_first=True)  # an error becomes an ordinary answer
    return streamed_events(_followed(request, log, first))


async def _step(request: Request, log: FollowedLog, *, is_first: bool = False) -> list[str]:
    """Return the new events of *log*, once the host of its run has delivered what is new. No thread waits for that."""
    site = site_of(request)
    events = await site.work(request, log.step, is_first=is_first)
    while log.wanted is not None:
        log.asked(await site.relays.log(log.wanted.run, goes_on=log.wanted.goes_on))
        events += await site.work(request, log.step, is_first=False)
    return events


async def _followed(request: Request, log: FollowedLog, first: list[str]) -> AsyncIterator[str]:
    site = site_of(request)
    events, read_at = first, time.monotonic()
    while True:
        yield "".join(events) or ALIVE
        if log.is_over or site.closing.is_set():
            return
        if not log.has_more:
            before = time.monotonic()
            await site.ends.wait([log.job_id or 0], LAG_S if log.is_behind else OUTPUT_S)
            woken = time.monotonic() - before < OUTPUT_S
            if woken or time.monotonic() - read_at >= POLL_S:
                read_at = time.monotonic()
                events = await _step(request, log)
                continue
        events = await site.work(request, log.output, is_first=False)


@route(router, "GET /jobs/{name}/stream", answer=bytes, media_type=MEDIA_TYPE)
async def watch_job(request: Request, name: str) -> Response:
    """Stream the states of a job until its end: an event ``job`` for each change."""
    first = await site_of(request).work(request, lambda call: call.job(call.client.jobs.get(name)))
    return streamed_events(_watched(request, name, first))


async def _watched(request: Request, name: str, first: Job) -> AsyncIterator[str]:
    site, job, shown = site_of(request), first, None
    while True:
        yield event("job", job) if job != shown else ALIVE
        shown = job
        if job.state.is_end or site.closing.is_set():
            return
        await site.ends.wait([job.id], POLL_S)
        job = await site.work(request, lambda call: call.job(call.client.jobs.get(name)), is_first=False)


@route(router, "GET /streams/jobs", answer=bytes, media_type=MEDIA_TYPE)
async def watch_jobs(request: Request, user: Annotated[str | None, Query()] = None) -> Response:
    """Stream the jobs that have not ended.

    It begins with an event ``job`` for each, and ``ready``. Then come ``job`` for each change, and ``ended`` with the
    last state of a job that has ended. After a reconnect the stream starts again with all jobs; a job that it does not
    list has ended.
    """

    def listed(call: Call) -> dict[int, Job]:
        call.must_see_jobs()
        return {job.id: job for job in call.jobs(call.client.jobs.list(user=user))}

    first = await site_of(request).work(request, listed)
    return streamed_events(_all_watched(request, first, listed))


def _jobs(job_ids: Iterable[int], call: Call) -> list[Job]:
    return [call.job(call.client.jobs.get(each)) for each in job_ids]


async def _all_watched(request: Request, first: dict[int, Job], listed: Any) -> AsyncIterator[str]:
    site, seen = site_of(request), first
    yield "".join(event("job", each) for each in first.values()) + event("ready", None)
    while not site.closing.is_set():
        await site.ends.wait(seen.keys(), POLL_S)
        now: dict[int, Job] = await site.work(request, listed, is_first=False)
        gone = seen.keys() - now.keys()
        last = await site.work(request, partial(_jobs, gone), is_first=False)
        changed = [event("job", job) for each, job in now.items() if seen.get(each) != job]
        yield "".join([*changed, *(event("ended", job) for job in last)]) or ALIVE
        seen = now


@route(router, "GET /streams/devices", answer=bytes, media_type=MEDIA_TYPE)
async def watch_devices(request: Request) -> Response:
    """Stream the devices: an event ``devices`` with all of them, once a second if anything but an age has changed."""
    first = await site_of(request).work(request, _devices)
    return streamed_events(_devices_watched(request, first))


def _devices(call: Call) -> list[DeviceStatus]:
    call.must(Action.SEE_SITE)
    return list(call.devices(call.client.devices.list()))


async def _devices_watched(request: Request, first: list[DeviceStatus]) -> AsyncIterator[str]:
    site, now, shown = site_of(request), first, None
    while True:
        ageless = [replace(each, seen_s_ago=0.0) for each in now]
        yield event("devices", now) if ageless != shown else ALIVE
        shown = ageless
        if site.closing.is_set():
            return
        await site.ends.wait((), POLL_S)
        now = await site.work(request, _devices, is_first=False)
