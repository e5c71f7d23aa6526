"""Routes of the group ``client.logs`` that read a part of a log."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from dataclasses import replace
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Annotated

from starlette.requests import Request
from starlette.responses import Response

from gpuqueue.client.log_places import with_run
from gpuqueue.client.logs import Logs
from gpuqueue.client.progress import job_progress
from gpuqueue.client.remote.link import WARNING
from gpuqueue.client.remote.log_tail import KNOWN, NEXT
from gpuqueue.client.run_logs import figures_of
from gpuqueue.errors import BadRequest, Refused
from gpuqueue.lazy.frozen import dataclass
from gpuqueue.model.access import Action
from gpuqueue.model.api import LogStream, ProgressRequest
from gpuqueue.model.job import Job, JobState
from gpuqueue.model.log_matches import LogMatches
from gpuqueue.model.progress import Progress
from gpuqueue.model.run import Record
from gpuqueue.model.run_figures import RunFigures
from gpuqueue.service.call import Call
from gpuqueue.service.following import Wanted, wanted, warning
from gpuqueue.service.responses import StreamedFile, header
from gpuqueue.service.routes.described import OCTETS, Depends, Download, Operations, Query, of_fields, route
from gpuqueue.service.site import answered, body_of, site_of
from gpuqueue.settings.settings import Settings
from gpuqueue.system.logs import LogTail, last_bytes, search

router = Operations("logs")
#: Most bytes of a log in one answer.
MOST_BYTES = 1024 * 1024

RUN = Query(ge=1, description="The run; by default the newest.")
RunNumber = Annotated[int | None, RUN]
#: Makes the answer of the path of a log.
Cut = Callable[[Path], Response]


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    """The part of a log that a request asks for."""

    attempt: int | None = None
    stream: LogStream = LogStream.LOG
    offset: int = 0
    most: int = MOST_BYTES
    lines: int | None = None
    since: datetime | None = None
    last: int | None = None


_part_of = of_fields(
    Part,
    {
        "attempt": RUN,
        "offset": Query(ge=0, le=2**62),
        "most": Query(ge=0, le=MOST_BYTES),
        "lines": Query(ge=0, description="Begin with the last lines."),
        "since": Query(description="Begin with the output of this time."),
        "last": Query(ge=0, le=MOST_BYTES, description="Return only the last bytes."),
    },
)


@route(router, "GET /jobs/{name}/log", answer=bytes, media_type=OCTETS)
async def read_log(request: Request, name: str, part: Annotated[Part, Depends(_part_of)]) -> Response:
    """Return a part of a run's output. The header ``Gpuqueue-Next-Offset`` says where the next part begins."""
    return await _read(request, name, part)


@route(router, "GET /jobs/{name}/log/file", answer=bytes, media_type=OCTETS)
async def download_log(
    request: Request,
    name: str,
    attempt: RunNumber = None,
    stream: LogStream = LogStream.LOG,
    _download: Download = None,
) -> Response:
    """Return the whole output of a run so far, as a file to keep."""

    def chosen(call: Call) -> tuple[str, int | None]:
        record = run_record(call, name, attempt)
        return record.job.label, record.last_run.attempt if record.last_run is not None else None

    label, run = await site_of(request).work(request, chosen)
    part = Part(stream=stream, attempt=run)
    first = await _read(request, name, part, is_first=False)
    headers = {
        "Content-Disposition": f'attachment; filename="job-{label}-run-{run}.{stream}.txt"',
        "X-Accel-Buffering": "no",
    }
    return StreamedFile(f"the log of job {label} was", _whole(request, name, part, first), headers, OCTETS)


async def _whole(request: Request, name: str, part: Part, first: Response) -> AsyncIterator[bytes]:
    """Yield the *first* part of a log and all behind it, up to one that is not full: then that was its end."""
    answer = first
    while answer.body:
        yield bytes(answer.body)
        if len(answer.body) < part.most:
            return
        part = replace(part, offset=int(answer.headers[NEXT]))
        work = partial(_delivered_part, name=name, part=part, trouble=None)
        answer = await site_of(request).work(request, work, is_first=False)


@route(router, "GET /jobs/{name}/log/search", answer=LogMatches)
async def search_log(
    request: Request,
    name: str,
    text: Annotated[str, Query(max_length=200)],
    attempt: RunNumber = None,
    stream: LogStream = LogStream.LOG,
    offset: Annotated[int, Query(ge=0, le=2**62)] = 0,
    line: Annotated[int, Query(ge=1, le=2**62, description="The number of the line at *offset*.")] = 1,
) -> Response:
    """Return the next lines of a run's output that contain a text, regardless of the case of letters.

    One answer has at most 100 lines. For the next ones, send its ``next_offset`` and ``next_line``.
    """
    if not text.strip():
        raise BadRequest("the text to search for is empty")
    find = partial(search, stream=str(stream), text=text, offset=offset, line=line)
    return await _read(request, name, Part(attempt=attempt), lambda path: answered(find(path)))


async def _read(request: Request, name: str, part: Part, cut: Cut | None = None, *, is_first: bool = True) -> Response:
    """Return what *cut* makes of a log: by default its *part*. The log of another host is brought up to date first."""
    site, cut = site_of(request), cut or partial(_part, part=part)
    found = await site.work(request, lambda call: _part_or_wanted(call, name, part, cut), is_first=is_first)
    if isinstance(found, Response):
        return found
    trouble = await site.relays.log(found.run, goes_on=found.goes_on)
    return await site.work(request, lambda call: _delivered_part(call, name, part, trouble, cut), is_first=False)


def _part_or_wanted(call: Call, name: str, part: Part, cut: Cut) -> Response | Wanted:
    """Return the part of the log, or what to ask its host for first."""
    record = run_record(call, name, part.attempt)
    run = next((each for each in reversed(record.runs) if each.log_path), None)
    asked = None if run is None else wanted(call.connection.settings, record.job, run)
    return asked or cut(logs_of(call).path_in(record))


def _delivered_part(call: Call, name: str, part: Part, trouble: str | None, cut: Cut | None = None) -> Response:
    """Return the part of the log of another host, with a warning if the host could not be asked for the newest part."""
    record, logs = run_record(call, name, part.attempt), logs_of(call)
    path = logs.path_or_none(record)
    if path is None and trouble is not None:
        raise Refused(f"the log of job {record.job.label} is on another host: {trouble}")
    answer = (cut or partial(_part, part=part))(logs.path_in(record) if path is None else path)
    if path is not None and trouble is not None:
        answer.headers[WARNING] = header(warning(trouble, path))
    return answer


def _part(path: Path, part: Part) -> Response:
    stream = str(part.stream)
    tail = LogTail(stream)
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
    return Response(content, media_type=OCTETS, headers=headers)


def run_record(call: Call, name: str, attempt: int | None) -> Record:
    """Return the job with the run *attempt* alone, by default its newest run, for a caller who may read its log.

    Raises:
        Forbidden: the caller may not.
        Refused: the job had no such run.

    """
    record = call.client.jobs.newest(name)
    call.must_read(Action.SEE_LOGS, record.job)
    if attempt is None:
        return record
    if record.last_run is None or record.last_run.attempt != attempt:
        record = call.client.jobs.show(name, away=lambda _: None)
    return with_run(record, attempt)


def logs_of(call: Call) -> Logs:
    """Return the logs that this process can read, for the caller."""
    return Logs(call.connection)


@route(router, "GET /jobs/{name}/figures", answer=RunFigures)
async def read_figures(request: Request, name: str) -> Response:
    """Return what the newest run of a job has used and reported so far; nothing if it does not go on."""
    site = site_of(request)

    def work(call: Call) -> tuple[bool, RunFigures | Wanted | None]:
        owner = call.client.jobs.get(name).spec.account
        call.must(Action.SEE_JOBS, owner)
        sees_values = call.may(Action.SEE_ARGUMENTS, owner) and call.may(Action.SEE_LOGS, owner)
        return sees_values, running_figures(call.connection.settings, call.client.jobs.newest(name))

    sees_values, found = await site.work(request, work)
    if isinstance(found, Wanted):
        found = await site.relays.figures(found.run)
    figures = found or RunFigures()
    return answered(figures if sees_values else replace(figures, values=None))


def running_figures(settings: Settings, record: Record) -> RunFigures | Wanted | None:
    """Return the figures of the newest run of *record*, or what to ask its host for; None if it does not go on."""
    run = record.last_run
    if run is None or run.ended_at is not None:
        return None
    return wanted(settings, record.job, run) or figures_of(settings, run)


@route(router, "POST /progress", answer=dict[int, Progress], body=ProgressRequest)
async def progress(request: Request) -> Response:
    """Return the progress of running jobs whose output shows it, as far as the caller may read that."""
    asked = await body_of(request, ProgressRequest)
    if len(asked.jobs) > 5000:  # noqa: PLR2004 - more than any site runs
        raise BadRequest("progress is reported for at most 5000 jobs at a time")
    return answered(await progress_of(request, asked.jobs))


async def progress_of(request: Request, ids: Iterable[int], *, is_first: bool = True) -> dict[int, Progress]:
    """Return the progress of the jobs *ids*, on all hosts, as far as the caller of *request* may read their logs.

    *is_first* is that of :meth:`gpuqueue.service.site.Site.work`.
    """
    site, wanted = site_of(request), sorted(set(ids))

    def work(call: Call) -> tuple[dict[int, Progress], list[Job]]:
        call.must(Action.SEE_SITE)
        page = call.connection.queue.jobs.some(wanted)
        jobs = [job for job in page.jobs if call.may(Action.SEE_LOGS, job.spec.account)]
        elsewhere = [job for job in jobs if job.state is JobState.RUNNING and job.host != site.settings.own_host]
        return logs_of(call).progress(jobs, page.logs), elsewhere

    here, elsewhere = await site.work(request, work, is_first=is_first)
    return site.foreseen.settled({**here, **await progress_elsewhere(request, elsewhere)})


async def progress_elsewhere(request: Request, jobs: Sequence[Job]) -> dict[int, Progress]:
    """Return the progress of *jobs* of other hosts, whose logs the caller may read."""
    site = site_of(request)
    found = await site.host_progress.of(jobs)
    return await site.work(request, lambda call: job_progress(call.connection, jobs, found), is_first=False)
