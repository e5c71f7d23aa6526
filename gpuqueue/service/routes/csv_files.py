"""Routes with the history and the statistics as CSV files, the same as those of the command line."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import Annotated

from starlette.requests import Request
from starlette.responses import Response

from gpuqueue.codec.csv_text import csv_of_records, csv_of_statistics, csv_text
from gpuqueue.lazy.frozen import dataclass
from gpuqueue.model.access import Action
from gpuqueue.model.history_query import HistoryQuery
from gpuqueue.model.run import VALUES
from gpuqueue.model.statistics import By
from gpuqueue.service.call import Call
from gpuqueue.service.responses import StreamedFile
from gpuqueue.service.routes.described import Depends, Download, Operations, operation, route
from gpuqueue.service.routes.history import MOST, query_of, visible
from gpuqueue.service.site import site_of

router = Operations("history")
CSV = "text/csv"
#: Most jobs in one file.
MOST_LINES = 100_000


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
