"""Routes of the group ``client.history``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from typing import Annotated, Any

from starlette.requests import Request
from starlette.responses import Response

from gpuqueue.client.groups import HistoryGroup
from gpuqueue.client.history import History
from gpuqueue.model.access import Action
from gpuqueue.model.api import FoldedPage, HistoryPage, NeverBegan, Whether
from gpuqueue.model.history_query import Sort
from gpuqueue.model.job import JobState
from gpuqueue.model.learning_report import LearningReport
from gpuqueue.model.run import EndingKind
from gpuqueue.model.statistics import By, Course, Statistics
from gpuqueue.service.call import Call
from gpuqueue.service.routes.described import Depends, Operations, Query, route
from gpuqueue.service.site import site_of

router = Operations("history")
#: Most jobs in one page.
MOST = 500

JobId = Annotated[int | None, Query(ge=1, le=2**53)]
_TEXT = "A part of the command or of the note. Only jobs whose command the caller may see match."
Seconds = Annotated[float | None, Query(ge=0)]


def _matching(  # noqa: PLR0913 - one parameter for each search criterion
    *,
    user: str | None = None,
    name: str | None = None,
    state: Annotated[list[JobState] | None, Query()] = None,
    ending: Annotated[list[EndingKind] | None, Query()] = None,
    exit_code: Annotated[int | None, Query(ge=0, le=255)] = None,
    tag: Annotated[list[str] | None, Query()] = None,
    since: datetime | None = None,
    until: datetime | None = None,
    device: str | None = None,
    model: str | None = None,
    host: str | None = None,
    min_peak_bytes: Annotated[int | None, Query(ge=0)] = None,
    min_duration_s: Seconds = None,
    max_duration_s: Seconds = None,
    text: Annotated[str | None, Query(description=_TEXT)] = None,
    sort: Sort = Sort.ID,
    reverse: bool = False,
    before_id: JobId = None,
    after_id: JobId = None,
) -> dict[str, Any]:
    """Return the arguments of a search that the parameters of a request make, less the number of jobs."""
    return {
        "user": user,
        "name": name,
        "states": state or (),
        "endings": ending or (),
        "exit_code": exit_code,
        "tags": tag or (),
        "since": since,
        "until": until,
        "device": device,
        "model": model,
        "host": host,
        "min_peak": min_peak_bytes,
        "min_duration": min_duration_s,
        "max_duration": max_duration_s,
        "text": text,
        "sort": sort,
        "reverse": reverse,
        "before_id": before_id,
        "after_id": after_id,
    }


Matching = Annotated[dict[str, Any], Depends(_matching)]


def _criteria(matching: Matching, limit: Annotated[int, Query(ge=0, le=MOST)] = 50) -> dict[str, Any]:
    """Return the arguments of a search for a page."""
    return {**matching, "limit": limit}


Criteria = Annotated[dict[str, Any], Depends(_criteria)]


def history_of(call: Call, asked: Mapping[str, Any]) -> HistoryGroup:
    """Return the history that may answer *asked*. A search by a text gets only jobs whose command the caller may see.

    Otherwise the answers would give away the commands of others, letter by letter.

    Raises:
        NotAuthenticated: the caller has no account, and so no jobs of its own.

    """
    call.must(Action.SEE_SITE)
    if asked["text"] is None or call.may(Action.SEE_ARGUMENTS):  # of every owner
        return call.client.history
    call.must(Action.SEE_ARGUMENTS, call.account)
    return History(call.connection, owner=call.account)


@route(router, "GET", "/history", answer=HistoryPage)
async def search(request: Request, asked: Criteria, array: JobId = None) -> Response:
    """Return the jobs that match all criteria, with their runs. For the next page, give the field ``after_id``."""

    def work(call: Call) -> HistoryPage:
        found = history_of(call, asked).search(**asked, array=array)
        last = found[-1].job.id if found and len(found) == asked["limit"] else None
        return HistoryPage(records=tuple(call.record(each) for each in found if call.sees(each.job)), after_id=last)

    return await site_of(request).answer(request, work)


@route(router, "GET", "/history/folded", answer=FoldedPage)
async def search_folded(request: Request, asked: Criteria) -> Response:
    """Return the jobs that match all criteria, with the members of each array folded into one row."""

    def work(call: Call) -> FoldedPage:
        found = history_of(call, asked).folded(**asked)
        last = found[-1].last_id if found and len(found) == asked["limit"] else None
        rows = tuple(replace(each, record=call.record(each.record)) for each in found if call.sees(each.record.job))
        return FoldedPage(rows=rows, after_id=last)

    return await site_of(request).answer(request, work)


@route(router, "GET", "/history/{job_id}/known", answer=Whether)
async def is_known(request: Request, job_id: int) -> Response:
    """Return whether the history has the job."""

    def work(call: Call) -> Whether:
        call.must(Action.SEE_SITE)
        return Whether(answer=call.client.history.has(job_id))

    return await site_of(request).answer(request, work)


@route(router, "GET", "/history/{job_id}/never-began", answer=NeverBegan)
async def never_began(request: Request, job_id: int) -> Response:
    """Return the members of an array that were cancelled before any worker claimed them."""

    def work(call: Call) -> NeverBegan:
        call.must(Action.SEE_SITE)
        return NeverBegan(indexes=call.client.history.never_began(job_id))

    return await site_of(request).answer(request, work)


@route(router, "GET", "/stats", answer=Statistics)
async def stats(
    request: Request,
    by: By = By.USER,
    since: datetime | None = None,
    until: datetime | None = None,
    user: str | None = None,
) -> Response:
    """Return statistics of the runs in a period, by default the last thirty days."""

    def work(call: Call) -> Statistics:
        call.must(Action.SEE_SITE)
        return call.client.history.stats(by, since=since, until=until, user=user)

    return await site_of(request).answer(request, work)


@route(router, "GET", "/stats/course", answer=Course)
async def course(
    request: Request,
    since: datetime | None = None,
    until: datetime | None = None,
    steps: int = 30,
    user: str | None = None,
) -> Response:
    """Return statistics of a period as a time series."""

    def work(call: Call) -> Course:
        call.must(Action.SEE_SITE)
        return call.client.history.course(since=since, until=until, steps=steps, user=user)

    return await site_of(request).answer(request, work)


@route(router, "GET", "/stats/learning", answer=LearningReport)
async def learning(
    request: Request,
    since: datetime | None = None,
    until: datetime | None = None,
    user: str | None = None,
) -> Response:
    """Return how learned memory would have done over the newest jobs that ended in a period, beside simple rules."""

    def work(call: Call) -> LearningReport:
        call.must(Action.SEE_SITE)
        return call.client.history.learning(since=since, until=until, user=user)

    site = site_of(request)
    give_back = site.replays.take("")
    try:
        return await site.answer(request, work)
    finally:
        give_back()
