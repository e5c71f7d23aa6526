"""Routes of the group ``client.history``, also as CSV files: the same as those of the command line."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import Annotated, Any

from starlette.requests import Request
from starlette.responses import Response

from gpuqueue.codec.csv_text import csv_of_records, csv_of_statistics, csv_text
from gpuqueue.lazy.frozen import dataclass
from gpuqueue.model.access import Action
from gpuqueue.model.api import FoldedPage, HistoryPage, NeverBegan, Whether
from gpuqueue.model.history_query import ARGUMENTS, PARAMETERS, HistoryQuery
from gpuqueue.model.learning_report import LearningReport
from gpuqueue.model.run import VALUES
from gpuqueue.model.statistics import By, Course, Statistics
from gpuqueue.service.call import Call
from gpuqueue.service.responses import StreamedFile
from gpuqueue.service.routes.described import Depends, Download, Operations, Query, of_fields, operation, route
from gpuqueue.service.site import site_of

router = Operations("history")
#: Most jobs in one page, and in one CSV file.
MOST, MOST_LINES = 500, 100_000
CSV = "text/csv"

_ID = Query(ge=1, le=2**53)
_SECONDS = Query(ge=0)
#: What is known of a parameter of a search beside its type, by the field of the query.
_ABOUT: Mapping[str, Query] = {
    "exit_code": Query(ge=0, le=255),
    "min_peak_bytes": Query(ge=0),
    "min_duration_s": _SECONDS,
    "max_duration_s": _SECONDS,
    "text": Query(
        description="A part of the command or of the note. Only jobs whose command the caller may see match."
    ),
    "metric": Query(
        description="Order by the last value of this metric, the largest first, in place of *sort*. Only jobs whose "
        "command the caller may see match."
    ),
    "array_id": _ID,
    "before_id": _ID,
    "after_id": _ID,
    "limit": Query(ge=0, le=MOST),
}


def query_of(*without: str) -> Callable[..., HistoryQuery]:
    """Return a function that makes a query of parameters: one for each of its fields, less those *without*."""

    def made(**values: Any) -> HistoryQuery:
        return HistoryQuery.of(**{ARGUMENTS.get(name, name): value for name, value in values.items()})

    return of_fields(HistoryQuery, _ABOUT, names=PARAMETERS, without={"owner", *without}, make=made)


Criteria = Annotated[HistoryQuery, Depends(query_of())]
CriteriaOfRows = Annotated[HistoryQuery, Depends(query_of("array_id", "metric"))]


def visible(call: Call, query: HistoryQuery) -> HistoryQuery:
    """Return *query* for those jobs that it may find.

    A search by a text, or in the order of a metric, finds only jobs whose command may be seen. Otherwise the answers
    would give away the commands of others, letter by letter, and their values.

    Raises:
        NotAuthenticated: the caller has no account, and so no jobs of its own.

    """
    call.must(Action.SEE_SITE)
    if (query.text is None and query.metric is None) or call.may(Action.SEE_ARGUMENTS):  # of every owner
        return query
    call.must(Action.SEE_ARGUMENTS, call.account)
    return replace(query, owner=call.account)


@operation(router, "GET /history")
def search(call: Call, query: Criteria) -> HistoryPage:
    """Return the jobs that match all criteria, with their runs. For the next page, give the field ``after_id``."""
    found = call.client.history.records_of(visible(call, query))
    last = found[-1].job.id if found and len(found) == query.limit else None
    return HistoryPage(records=tuple(call.record(each) for each in found if call.sees(each.job)), after_id=last)


@operation(router, "GET /history/folded")
def search_folded(call: Call, query: CriteriaOfRows) -> FoldedPage:
    """Return the jobs that match all criteria, with the members of each array folded into one row."""
    found = call.client.history.rows_of(visible(call, query))
    last = found[-1].last_id if found and len(found) == query.limit else None
    rows = tuple(replace(each, record=call.record(each.record)) for each in found if call.sees(each.record.job))
    return FoldedPage(rows=rows, after_id=last)


@operation(router, "history.has", may=Action.SEE_SITE)
def is_known(call: Call, job_id: int) -> Whether:
    """Return whether the history has the job."""
    return Whether(answer=call.client.history.has(job_id))


@operation(router, "history.never_began", may=Action.SEE_SITE)
def never_began(call: Call, job_id: int) -> NeverBegan:
    """Return the members of an array that were cancelled before any worker claimed them."""
    return NeverBegan(indexes=call.client.history.never_began(job_id))


@operation(router, "history.stats", may=Action.SEE_SITE)
def stats(
    call: Call,
    by: By = By.USER,
    since: datetime | None = None,
    until: datetime | None = None,
    user: str | None = None,
) -> Statistics:
    """Return statistics of the runs in a period, by default the last thirty days."""
    return call.client.history.stats(by, since=since, until=until, user=user)


@operation(router, "history.course", may=Action.SEE_SITE)
def course(
    call: Call,
    since: datetime | None = None,
    until: datetime | None = None,
    steps: int = 30,
    user: str | None = None,
) -> Course:
    """Return statistics of a period as a time series."""
    return call.client.history.course(since=since, until=until, steps=steps, user=user)


@route(router, "history.learning", answer=LearningReport)
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


@dataclass(frozen=True, kw_only=True, slots=True)
class _Page:
    """The lines of some jobs. ``found`` is the number of jobs that match, of which the caller may see these."""

    text: str
    found: int
    last_id: int | None


@route(router, "GET /history/csv", answer=bytes, media_type=CSV)
async def history_csv(
    request: Request, query: Annotated[HistoryQuery, Depends(query_of("limit"))], _download: Download = None
) -> Response:
    """Return the jobs that match all criteria as CSV, as ``gpuqueue history --csv`` does: at most 100 000 jobs.

    A file without its end was cut short.
    """
    query = replace(query, limit=MOST)
    first = await site_of(request).work(request, partial(_page, query=query))  # an error is an ordinary answer
    lines = _lines(request, query, first)
    return StreamedFile("the CSV of the history was", lines, _headers("history"), f"{CSV}; charset=utf-8")


def _page(call: Call, query: HistoryQuery) -> _Page:
    found = call.client.history.records_of(visible(call, query))
    shown = [call.record(each) for each in found if call.sees(each.job)]
    return _Page(text=csv_of_records(shown), found=len(found), last_id=found[-1].job.id if found else None)


async def _lines(request: Request, query: HistoryQuery, first: _Page) -> AsyncIterator[str]:
    yield csv_text([VALUES]) + first.text
    page, lines = first, first.found
    while page.found == MOST and lines < MOST_LINES:
        further = partial(_page, query=replace(query, after_id=page.last_id))
        page = await site_of(request).work(request, further, is_first=False)
        lines += page.found
        yield page.text


@operation(router, "GET /stats/csv", may=Action.SEE_SITE, answer=bytes, media_type=CSV)
def stats_csv(
    call: Call,
    by: By = By.USER,
    since: datetime | None = None,
    until: datetime | None = None,
    user: str | None = None,
    _download: Download = None,
) -> Response:
    """Return the statistics of a period as CSV, as ``gpuqueue stats --csv`` does: one line for each group."""
    found = call.client.history.stats(by, since=since, until=until, user=user)
    return Response(csv_of_statistics(found), headers=_headers(f"stats-{by}"), media_type=f"{CSV}; charset=utf-8")


def _headers(name: str) -> dict[str, str]:
    return {"Content-Disposition": f'attachment; filename="gpuqueue-{name}.csv"', "Cache-Control": "no-store"}
