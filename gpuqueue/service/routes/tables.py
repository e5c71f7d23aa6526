"""Routes with what the web page shows: the queue, the devices, the places of waiting jobs, and all of one job."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from datetime import datetime, timezone
from functools import partial
from typing import Annotated

from starlette.requests import Request
from starlette.responses import Response

from gpuqueue.model.access import Action
from gpuqueue.model.job import JobState
from gpuqueue.model.page import JobPlace, JobView, LiveJob, MemberTable, Overview, QueueTable, StoryStep
from gpuqueue.model.progress import Progress
from gpuqueue.model.queue_query import PARAMETERS, QueueQuery
from gpuqueue.service.call import Call
from gpuqueue.service.routes.described import Depends, Operations, Query, of_fields, operation, route
from gpuqueue.service.routes.logs import progress_of
from gpuqueue.service.site import answered, site_of
from gpuqueue.service.web.job_view import live_of, story_for, view_of
from gpuqueue.service.web.members import MemberQuery, Members
from gpuqueue.service.web.queue_reader import QueueState
from gpuqueue.service.web.rows import device_view, without_hidden
from gpuqueue.service.web.table import Filters, Seen

router = Operations("page")
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
        history_away=is_away,
    )


@operation(router, "GET /job-places")
def job_places(
    call: Call, request: Request, ids: Annotated[list[int], Query(alias="id", max_length=MOST_PLACES)]
) -> dict[int, JobPlace]:
    """Return the places of waiting jobs in the queue, and when they may start, as far as it is known."""
    call.must_see_jobs()
    site = site_of(request)
    seen = _seen(call).of(site.queue_copy.state())
    waiting = [each for each in ids if each in seen and seen[each].state is JobState.QUEUED]
    places = {each: site.places.get(each, call.connection.queue.jobs.why) for each in waiting}
    return {each: place for each, place in places.items() if place is not None}


@route(router, "GET /job-progress", answer=dict[int, Progress])
async def job_progress(
    request: Request, ids: Annotated[list[int], Query(alias="id", max_length=MOST_ROWS)]
) -> Response:
    """Return the progress of running jobs that report it in their logs, as far as the caller may read these."""
    return answered(await progress_of(request, ids))


def _seen(call: Call) -> Seen:
    """Return which jobs *call* may see."""
    caller = call.caller
    account = None if caller.uid is None else (caller.account, caller.uid)
    return Seen(account, call.may(Action.SEE_JOBS))


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


@operation(router, "GET /jobs/{name}/story")
def job_story(call: Call, name: str) -> tuple[StoryStep, ...]:
    """Return what happened to a job, and what it waited for, in words. Without the right to its events: by its runs."""
    return story_for(call, name)


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
