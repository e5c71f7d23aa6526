"""The page and its files. They hold no data: the page asks the API, as its user."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timezone
from functools import partial
from itertools import islice
from math import inf, isfinite
from typing import Annotated

from starlette.requests import Request
from starlette.responses import Response

from gpuqueue.client.devices import uuids_of
from gpuqueue.errors import BadRequest
from gpuqueue.model.access import Action, Forbidden
from gpuqueue.model.api import DownloadCode, DownloadRequest, RetryRequest, SignedIn, SignIn, SignInCode
from gpuqueue.model.caller import Via
from gpuqueue.model.job import Job, JobState
from gpuqueue.model.job_ref import job_name
from gpuqueue.model.page import (
    DevicesPast,
    FormStart,
    JobForm,
    JobPlace,
    JobView,
    LiveJob,
    MemberTable,
    Overview,
    QueueTable,
    StoryStep,
)
from gpuqueue.model.progress import Progress
from gpuqueue.model.queue_query import PARAMETERS, QueueQuery
from gpuqueue.model.run_figures import RunFigures
from gpuqueue.queue.lease import DeviceStatus
from gpuqueue.service.batches import alone
from gpuqueue.service.call import Call
from gpuqueue.service.following import Wanted
from gpuqueue.service.identity.browser_sessions import CODE_S, LONGEST_S
from gpuqueue.service.new_jobs import retried, spec_of_retry, submitted
from gpuqueue.service.responses import NotHere
from gpuqueue.service.routes.described import Depends, Operations, Query, of_fields, operation, route, route_of
from gpuqueue.service.routes.jobs import Key, keyed_request, new_job_answer
from gpuqueue.service.routes.logs import progress_of, running_figures
from gpuqueue.service.site import answered, body_of, credentials_of, is_tls, site_of
from gpuqueue.service.web.answers import negotiated
from gpuqueue.service.web.cookie import check_own_page, cookie_name, session_of, set_cookie
from gpuqueue.service.web.files import PAGE_HEADERS, NoPage, PageFile, PageFiles
from gpuqueue.service.web.job_form import form_of, new_job_of, retry_of, size_typed, tags_in
from gpuqueue.service.web.job_view import live_of, more_mem_bytes, story_for, view_of
from gpuqueue.service.web.members import MemberQuery, Members
from gpuqueue.service.web.queue_copy import QueueState
from gpuqueue.service.web.rows import NOT_IN_LINE, device_view, in_words, without_hidden
from gpuqueue.service.web.table import Filters, Seen
from gpuqueue.words.values import code_of_retry, more_mem_in_words, retried_in_words

_FILES = PageFiles()
_YEAR_S = 365 * 86400
#: The answer for a browser at a service without the files of the page.
NO_PAGE = """This service has no web page, because its third-party parts are not installed.

Install a released wheel of gpuqueue, or install gpuqueue again where Node.js 20 or newer is.
The command line and the API at /api/v1 work without them.
"""
router = Operations("page")


def page(request: Request) -> Response:
    """Return the page. A browser asks each time whether it has changed."""
    try:
        found = _FILES.current()["index.html"]
    except NoPage:
        return Response(NO_PAGE, 503, PAGE_HEADERS, "text/plain; charset=utf-8")
    return _sent(request, found, "no-cache")


def file(request: Request) -> Response:
    """Return a file of the page. With the hash of old files in its path the newest file is sent, uncached."""
    tree, name = request.path_params["tree"], request.path_params["name"]
    try:
        found = _FILES.known().get(name)
    except NoPage:
        found = None
    if found is None:
        raise NotHere("there is no such file of the page: load the page again")
    return _sent(request, found, f"public, max-age={_YEAR_S}, immutable" if tree == _FILES.tree else "no-cache")


def _sent(request: Request, found: PageFile, caching: str) -> Response:
    headers = {**PAGE_HEADERS, "Cache-Control": caching, "ETag": f'"{_FILES.tree}"', "Vary": "Accept-Encoding"}
    return negotiated(request, found.content, found.compressed, found.media_type, headers)


ROUTES = (
    route_of("/", page, "GET", "HEAD"),
    route_of("/static/{tree}/{name:path}", file, "GET", "HEAD"),
)


@operation(router, "access.sign_in_code", may=Action.SEE_SITE)
def make_sign_in_code(call: Call, request: Request) -> SignInCode:
    """Make a one-time code with which a browser signs in as the caller within a minute."""
    site = site_of(request)  # the sign-in is recorded, with the same account
    return SignInCode(code=site.identity.new_code(call.caller), url=site.page_url, valid_s=CODE_S)


@route(router, "POST /web/session", answer=SignedIn, body=SignIn)
async def sign_in(request: Request) -> Response:
    """Begin the session of a browser with a one-time code or an access token.

    The answer sets a cookie, and has the key that the page sends with each request beside it: browsers send cookies to
    all ports of a host.
    """
    check_own_page(request)
    wanted = await body_of(request, SignIn)
    word = wanted.code or wanted.token
    if not word or (wanted.code and wanted.token):
        raise BadRequest("send a code or a token, and not both")
    address = request.client.host if request.client is not None else ""
    made = await site_of(request).in_pool(lambda site: site.identity.sign_in(word.strip(), address))
    return _with_cookie(request, answered(SignedIn(key=made.key)), made.cookie, LONGEST_S)


@route(router, "DELETE /web/session")
async def sign_out(request: Request) -> Response:
    """End the session of a browser, and delete its cookie."""
    check_own_page(request)
    session = session_of(request, is_tls=is_tls(request), port=request.url.port)
    if session is not None:
        site_of(request).identity.sign_out(session)
    return _with_cookie(request, answered(None), "", 0)


@operation(router, "POST /web/downloads")
def make_download_code(call: Call, request: Request, body: DownloadRequest) -> DownloadCode:
    """Make a one-time code with which a browser downloads a file, for it sends no header then."""
    if call.caller.via not in {Via.SESSION, Via.ANONYMOUS}:
        raise Forbidden("only a browser needs a code for a download: programs use an access token")
    session = credentials_of(request).session or ""
    return DownloadCode(code=site_of(request).identity.new_download(session, body.path), valid_s=CODE_S)


def _with_cookie(request: Request, answer: Response, secret: str, age_s: float) -> Response:
    name = cookie_name(is_tls=is_tls(request), port=request.url.port)
    answer.headers["Set-Cookie"] = set_cookie(name, secret, is_tls=is_tls(request), age_s=age_s)
    answer.headers["Cache-Control"] = "no-store"
    return answer


@operation(router, "GET /web/form", may=Action.SUBMIT)
def start_form(call: Call, again: str | None = None) -> FormStart:
    """Return what the form for a job begins with. With the name of an ended job as *again*, that is what it asked for.

    The answer is an error if the caller may not submit, or may not run that job again.
    """
    call.must_run()
    devices = call.connection.queue.devices.all()
    shown = devices if call.may(Action.SEE_SITE) else []
    start = FormStart(
        form=JobForm(),
        file_bytes=call.connection.settings.snapshot_file_limit_bytes,
        devices=tuple(sorted(_name(each) for each in shown if each.device.kind.is_gpu)),
        pools=tuple(sorted({each.pool for each in shown if each.pool})),
        environments=tuple(sorted({name for each in shown for name in each.environments or ()})),
        targets=tuple(sorted({name for each in call.client.jobs.senders() for name in each.targets})),
    )
    return start if again is None else _with_job(call, start, again, devices)


def _with_job(call: Call, start: FormStart, name: str, devices: Sequence[DeviceStatus]) -> FormStart:
    warnings: list[str] = []
    spec = spec_of_retry(call, name, RetryRequest(), warnings.append)  # raises what a retry would raise
    job, form = call.client.jobs.get(_single(name)), _form(call, name, devices)
    had_bytes, mem_bytes = job.spec.mem_bytes, more_mem_bytes(call, job)
    return replace(
        start,
        form=form if mem_bytes is None else replace(form, mem=size_typed(mem_bytes)),
        label=name,
        command=job.spec.command,
        what=retried_in_words(spec, job.id),
        again=code_of_retry(job.spec),
        advice=None if mem_bytes is None else more_mem_in_words(had_bytes, mem_bytes),
        has_script=job.spec.script is not None,
        warnings=tuple(warnings),
    )


def _single(name: str) -> str:
    """Return the name of the job that has the request of *name*: of a part of an array that is the array."""
    found = job_name(name)
    return name if found.member is not None else str(found.id)


def _form(call: Call, name: str, devices: Iterable[DeviceStatus]) -> JobForm:
    job = call.client.jobs.get(_single(name))
    names = {each.device.uuid: _name(each) for each in devices}
    return form_of(replace(job.spec, tags=job.tags), names)


def _name(status: DeviceStatus) -> str:
    return f"{status.host}:{status.device.index}"


@operation(router, "POST /web/jobs", answer=Job, status=201)
def submit_form(call: Call, request: Request, body: JobForm, key: Key = None) -> Response:
    """Submit the script of the form, whose snapshot the caller has sent."""
    wanted = new_job_of(body, lambda names: uuids_of(call.connection, names))
    return new_job_answer(call, *alone(submitted(call, wanted, keyed_request(request, key), call.warnings.append)))


@operation(router, "POST /web/jobs/{name}/retry", answer=Job, status=201)
def retry_form(call: Call, request: Request, name: str, body: JobForm, key: Key = None) -> Response:
    """Submit the request of an ended job as a new job of the caller, with what the form has in other words."""
    before = _form(call, name, call.connection.queue.devices.all())
    tags = None if body.tags == before.tags else tags_in(body.tags)
    sent = keyed_request(request, key)
    return new_job_answer(call, *retried(call, name, retry_of(body, before), sent, call.warnings.append, tags))


#: Most rows in one answer, and most jobs whose places are asked for at a time.
MOST_ROWS, MOST_PLACES = 500, 60


_query = of_fields(QueueQuery, {}, names=PARAMETERS, without={"after", "limit"})
_filters = of_fields(
    Filters,
    {"text": Query(max_length=200), "idle": Query(description="Only jobs that are marked as idle.")},
    without={"query"},
)


@operation(router, "GET /queue-table", answer=QueueTable)
def queue_table(
    call: Call,
    request: Request,
    query: Annotated[QueueQuery, Depends(_query)],
    filters: Annotated[Filters, Depends(_filters)],
    offset: Annotated[int, Query(ge=0, le=2**53)] = 0,
    limit: Annotated[int, Query(ge=0, le=MOST_ROWS)] = 100,
) -> Response:
    """Return a part of the queue in a compact form, sorted and filtered. It may be a second old.

    With the ``ETag`` of an earlier answer as ``If-None-Match``, the answer is empty while nothing has changed (304).
    """
    call.must_see_jobs()
    site, seen, filters = site_of(request), _seen(call), replace(filters, query=query)
    state = site.queue_copy.state()
    key = ("queue", state.rows_version, state.complete, filters, seen.key, offset, limit)
    return site.answers.sent(
        request, key, lambda: site.tables.table(state, filters, seen, offset=offset, limit=limit), state.at
    )


@route(router, "GET /overview", answer=Overview)
async def overview(request: Request) -> Response:
    """Return all devices with their runs, and the numbers of jobs. It may be a second old.

    ``If-None-Match`` works as for ``/queue-table``.
    """
    is_away = "history" in await site_of(request).metrics.away()

    def work(call: Call) -> Response:
        call.must(Action.SEE_SITE)
        site, seen = site_of(request), _seen(call)
        state = site.queue_copy.state()
        key = ("overview", state.at, state.rows_version, is_away, seen.key, call.may(Action.SEE_ARGUMENTS))
        return site.answers.sent(request, key, lambda: _overview(call, state, seen, is_away=is_away), state.at)

    return await site_of(request).answer(request, work)


@operation(router, "GET /device-past", answer=DevicesPast)
def device_past(call: Call, request: Request) -> Response:
    """Return the memory and the utilisation of each device in the last eight hours, in steps of three minutes.

    ``If-None-Match`` works as for ``/queue-table``.
    """
    call.must(Action.SEE_SITE)
    return site_of(request).answers.once(request, site_of(request).past.past())


def _overview(call: Call, state: QueueState, seen: Seen, *, is_away: bool) -> Overview:
    rows = seen.of(state)
    devices = (
        device_view(each, state.rows, state.at, silent_after_s=state.silent_after_s)
        for each in call.devices(state.devices)
    )
    return Overview(
        at=state.at,
        devices=tuple(without_hidden(each, rows) for each in devices),
        counts=dict(Counter(str(each.state) for each in rows.values())),
        in_line=sum(each.state is JobState.QUEUED and each.reason not in NOT_IN_LINE for each in rows.values()),
        history_away=is_away,
    )


@route(router, "GET /job-places", answer=dict[int, JobPlace])
async def job_places(
    request: Request, ids: Annotated[list[int], Query(alias="id", max_length=MOST_PLACES)]
) -> Response:
    """Return the places of waiting jobs in the queue, and when they may start, as far as it is known."""
    site = site_of(request)

    def work(call: Call) -> tuple[dict[int, JobPlace], bool]:
        call.must_see_jobs()
        seen = _seen(call).of(site.queue_copy.state())
        waiting = [each for each in ids if each in seen and seen[each].state is JobState.QUEUED]
        places = {each: site.places.get(each, call.connection.queue.jobs.why) for each in waiting}
        return {each: place for each, place in places.items() if place is not None}, call.may(Action.SEE_SITE)

    places, sees_site = await site.work(request, work)
    behind = {each: place for each, place in places.items() if sees_site and place.runs}
    if behind:
        runs = {run for place in behind.values() for run in place.runs}
        progress = await progress_of(request, runs, is_first=False)
        places |= {each: _with_progress(place, progress) for each, place in behind.items()}
    return answered(places)


def _with_progress(place: JobPlace, progress: Mapping[int, Progress]) -> JobPlace:
    ends = [each.ends_at for run in place.runs if (each := progress.get(run)) is not None and each.ends_at is not None]
    if len(ends) < len(place.runs):
        return place
    about_at = max(ends)
    return replace(place, about_at=about_at if place.start_at is None else min(about_at, place.start_at))


@route(router, "GET /job-progress", answer=dict[int, Progress])
async def job_progress(
    request: Request, ids: Annotated[list[int], Query(alias="id", max_length=MOST_ROWS)]
) -> Response:
    """Return the progress of running jobs whose output shows it, as far as the caller may read that."""
    return answered(await progress_of(request, ids))


def _seen(call: Call) -> Seen:
    """Return which jobs *call* may see."""
    caller = call.caller
    account = None if caller.uid is None else (caller.account, caller.uid)
    return Seen(account, call.may(Action.SEE_JOBS))


#: Most running members of an array whose metrics are read while they run. All viewers of the array share what was read
#: for REPORTED_S seconds, of MAX_ARRAYS arrays at a time.
MAX_REPORTING, REPORTED_S, MAX_ARRAYS = 64, 1.0, 1000
_member_query = of_fields(
    MemberQuery,
    {
        "states": Query(description="Only members in these states."),
        "axis": Query(
            description="A value of the sweep, for the order by value, or a metric, for the order by metric."
        ),
        "offset": Query(ge=0, le=2**53),
        "limit": Query(ge=0, le=MOST_ROWS),
    },
    names=PARAMETERS,
)


@operation(router, "GET /jobs/{name}/view", answer=JobView)
def view_job(call: Call, request: Request, name: str) -> Response:
    """Return the job with all its runs, its dependencies, what the caller may do, and a verdict on its memory.

    ``If-None-Match`` works as for ``/queue-table``.
    """
    site, view = site_of(request), view_of(call, name, datetime.now(timezone.utc))
    return site.answers.once(request, replace(view, away=view.away and site.without_places(view.away)))


@operation(router, "GET /jobs/{name}/live", answer=LiveJob)
def live_job(call: Call, request: Request, name: str) -> Response:
    """Return what a job does now: its state, its place in the queue, and its use of devices. It may be a second old.

    ``If-None-Match`` works as for ``/queue-table``.
    """
    call.must_see_jobs()
    site = site_of(request)
    return site.answers.once(request, live_of(call, name, site.queue_copy.state(), site.places))


@operation(router, "GET /jobs/{name}/story")
def job_story(call: Call, name: str) -> tuple[StoryStep, ...]:
    """Return what happened to a job, and what it waited for, in words. Without the right to its events: by its runs."""
    return story_for(call, name)


@route(router, "GET /jobs/{name}/members", answer=MemberTable)
async def array_members(request: Request, name: str, query: Annotated[MemberQuery, Depends(_member_query)]) -> Response:
    """Return a part of the members of an array, filtered and sorted, with their values of the sweep and their metrics.

    The metrics need the rights to the arguments and to the output. ``If-None-Match`` works as for ``/queue-table``.
    """
    site = site_of(request)
    reported = await _reported_so_far(request, name)

    def work(call: Call) -> Response:
        call.must_see_jobs()
        job = call.job(call.client.jobs.get(name))
        state = site.queue_copy.state()  # before the history, which gets a member before the queue deletes it
        database = call.connection.database
        rows = [each for each in state.rows.values() if each.array_id == job.id]
        members = Members(
            job=job,
            live={each.id - job.id - 1: each for each in in_words(rows, state.devices)},
            recorded=partial(database.recorded_members, job.id),
            measured=partial(database.member_metrics, job.id) if _sees_metrics(call, job) else None,
            reported=reported,
        )
        return site.answers.once(request, members.table(query, state.at))

    return await site.work(request, work, is_first=False)


def _sees_metrics(call: Call, job: Job) -> bool:
    owner = job.spec.account
    return call.may(Action.SEE_ARGUMENTS, owner) and call.may(Action.SEE_LOGS, owner)


async def _reported_so_far(request: Request, name: str) -> dict[int, dict[str, float]]:
    """Return the last values that the running members of an array have reported, by their indexes.

    The store is asked once for all of them, and each host once for each of its runs.
    """
    site = site_of(request)

    def work(call: Call) -> dict[int, dict[str, float]] | tuple[int, dict[int, RunFigures | Wanted | None]]:
        call.must_see_jobs()
        job = call.client.jobs.get(name)
        if not _sees_metrics(call, job):
            return {}
        read_s, values = site.reported.get(job.id, (-inf, {}))
        if time.monotonic() - read_s < REPORTED_S:
            return values
        rows = (each for each in site.queue_copy.state().rows.values() if each.array_id == job.id)
        running = [*islice((each.id for each in rows if each.state is JobState.RUNNING), MAX_REPORTING)]
        records = call.connection.queue.jobs.records(running) if running else ()
        going = [each for each in records if each.job.state is JobState.RUNNING]
        return job.id, {each.job.id - job.id - 1: running_figures(site.settings, each) for each in going}

    async def known(found: RunFigures | Wanted | None) -> dict[str, float]:
        figures = await site.relays.figures(found.run) if isinstance(found, Wanted) else found
        values = figures.values if figures is not None else None
        return {} if values is None else {key: value for key, value in values.last().items() if isfinite(value)}

    found = await site.work(request, work)
    if not isinstance(found, tuple):
        return found
    array_id, figures = found
    values = dict(zip(figures, await asyncio.gather(*map(known, figures.values())), strict=True))
    if len(site.reported) >= MAX_ARRAYS:
        site.reported.clear()
    if values:
        site.reported[array_id] = time.monotonic(), values
    return values
