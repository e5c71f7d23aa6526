"""Routes of the group ``client.logs`` that read a part of a log."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from typing import Annotated

from fastapi import APIRouter, Query, Request, Response

from gpuqueue.client.logs import Logs
from gpuqueue.client.remote.log_tail import KNOWN, NEXT
from gpuqueue.errors import BadRequest, Refused
from gpuqueue.lazy.frozen import dataclass
from gpuqueue.model.access import Action
from gpuqueue.model.api import LogStream, ProgressRequest
from gpuqueue.model.progress import Progress
from gpuqueue.model.run import Record
from gpuqueue.service.call import Call
from gpuqueue.service.routes.described import route
from gpuqueue.service.site import body_of, site_of
from gpuqueue.system.logs import LogTail, last_bytes

router = APIRouter(tags=["logs"])
#: Most bytes of a log in one answer.
MOST_BYTES = 1024 * 1024


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    """The part of a log that a request asks for."""

    attempt: int | None
    offset: int
    most: int
    lines: int | None
    since: datetime | None
    last: int | None


@route(router, "GET", "/jobs/{name}/log", answer=bytes, media_type="application/octet-stream")
async def read_log(  # noqa: PLR0913 - one parameter for each way to choose a part
    request: Request,
    name: str,
    *,
    attempt: Annotated[int | None, Query(ge=1, description="The run; by default the newest.")] = None,
    stream: LogStream = LogStream.LOG,
    offset: Annotated[int, Query(ge=0, le=2**62)] = 0,
    most: Annotated[int, Query(ge=0, le=MOST_BYTES)] = MOST_BYTES,
    lines: Annotated[int | None, Query(ge=0, description="Begin with the last lines.")] = None,
    since: Annotated[datetime | None, Query(description="Begin with the output of this time.")] = None,
    last: Annotated[int | None, Query(ge=0, le=MOST_BYTES, description="Return only the last bytes.")] = None,
) -> Response:
    """Return a part of a run's output. The header ``Gpuqueue-Next-Offset`` says where the next part begins."""
    part = Part(attempt=attempt, offset=offset, most=most, lines=lines, since=since, last=last)
    return await site_of(request).answer(request, lambda call: _part(call, name, str(stream), part))


def _part(call: Call, name: str, stream: str, part: Part) -> Response:
    tail = LogTail(stream)
    path = logs_of(call).path_in(run_record(call, name, part.attempt))
    tail.resume(path, part.offset)
    known = True
    if part.last is not None:
        return _bytes(last_bytes(path.with_name(stream) if stream != LogStream.LOG else path, part.last), {})
    if part.lines is not None:
        tail.skip_to_last(part.lines)
    if part.since is not None:
        known = tail.skip_to_time(part.since)
    content = bytearray()
    if part.most or not (part.lines is not None or part.since is not None):
        for piece in tail.rest():
            if part.most:
                content += piece
            if len(content) >= part.most:
                break
    offset = tail.offset if part.most else part.offset if part.lines is None and part.since is None else tail.offset
    return _bytes(bytes(content), {NEXT: str(offset), KNOWN: str(known).lower()})


def _bytes(content: bytes, headers: dict[str, str]) -> Response:
    return Response(content, media_type="application/octet-stream", headers=headers)


def run_record(call: Call, name: str, attempt: int | None) -> Record:
    """Return the job with the run *attempt* alone, by default its newest run, for a caller who may read its log.

    Raises:
        Forbidden: the caller may not.
        Refused: the job had no such run.

    """
    record = call.client.jobs.newest(name)
    call.must(Action.SEE_LOGS, record.job.spec.account)
    if attempt is None:
        return record
    if record.last_run is None or record.last_run.attempt != attempt:
        record = call.client.jobs.show(name)
    runs = tuple(run for run in record.runs if run.attempt == attempt)
    if not runs:
        raise Refused(f"job {name} has no run {attempt}")
    return replace(record, runs=runs)


def logs_of(call: Call) -> Logs:
    """Return the logs that this process can read, for the caller."""
    return Logs(call.connection)


@route(router, "POST", "/progress", answer=dict[int, Progress], body=ProgressRequest)
async def progress(request: Request) -> Response:
    """Return the progress of running jobs that report it in their logs, as far as the caller may read these."""
    asked = await body_of(request, ProgressRequest)

    def work(call: Call) -> dict[int, Progress]:
        call.must(Action.SEE_SITE)
        if len(asked.jobs) > 5000:  # noqa: PLR2004 - more than any site runs
            raise BadRequest("progress is reported for at most 5000 jobs at a time")
        wanted = set(asked.jobs)
        page = call.client.jobs.listing()
        jobs = [job for job in page.jobs if job.id in wanted and call.may(Action.SEE_LOGS, job.spec.account)]
        return logs_of(call).progress(jobs, page.logs)

    return await site_of(request).answer(request, work)
