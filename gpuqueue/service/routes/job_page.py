"""Routes with what the web page shows of one job: its story, what it does now, the members of an array."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timezone
from functools import partial
from typing import Annotated

from starlette.requests import Request
from starlette.responses import Response

from gpuqueue.model.page import JobView, LiveJob, MemberTable
from gpuqueue.service.call import Call
from gpuqueue.service.routes.described import Depends, Operations, Query, of_fields, operation
from gpuqueue.service.routes.tables import MOST_ROWS
from gpuqueue.service.site import site_of
from gpuqueue.service.web.job_view import live_of, view_of
from gpuqueue.service.web.members import MemberQuery, Members

router = Operations("page")

_member_query = of_fields(
    MemberQuery,
    {
        "axis": Query(description="A value of the sweep, for the order by value."),
        "offset": Query(ge=0, le=2**53),
        "limit": Query(ge=0, le=MOST_ROWS),
    },
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


@operation(router, "GET /jobs/{name}/members", answer=MemberTable)
def array_members(
    call: Call, request: Request, name: str, query: Annotated[MemberQuery, Depends(_member_query)]
) -> Response:
    """Return a part of the members of an array, sorted, with the values of their sweep.

    ``If-None-Match`` works as for ``/queue-table``.
    """
    call.must_see_jobs()
    site = site_of(request)
    job = call.job(call.client.jobs.get(name))
    state = site.queue_copy.state()  # before the history, which gets a member before the queue deletes it
    live = {each.id - job.id - 1: each for each in state.rows.values() if each.array_id == job.id}
    members = Members(job=job, live=live, recorded=partial(call.connection.database.recorded_members, job.id))
    return site.answers.once(request, members.table(query, state.at))
