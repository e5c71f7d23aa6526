"""Routes of the group ``client.jobs`` that make or read jobs."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from typing import Annotated

from starlette.requests import Request
from starlette.responses import Response

from gpuqueue.client.listing import listing
from gpuqueue.client.remote.link import PARTIAL_ERROR, PARTIAL_ERROR_DETAIL
from gpuqueue.client.selection import Chosen, StateFilter, Which
from gpuqueue.client.wait import RECORD_S, recorded_now
from gpuqueue.client.why import Why
from gpuqueue.errors import Refused, Unreachable
from gpuqueue.model.access import Action
from gpuqueue.model.api import ManyJobs, NewJob, NewJobs, Outcome, RetryRequest, Whether
from gpuqueue.model.environment import is_secret
from gpuqueue.model.event import Event
from gpuqueue.model.job import Job, JobState
from gpuqueue.model.job_spec import JobSpec
from gpuqueue.model.queue_query import PARAMETERS, QueueQuery
from gpuqueue.model.run import Listing, Record
from gpuqueue.queue.senders import Sender
from gpuqueue.service.batches import Steps
from gpuqueue.service.call import Call
from gpuqueue.service.new_jobs import KeyedRequest, retried, spec_of, spec_of_retry, submitted, submitted_many
from gpuqueue.service.responses import header, problem_of
from gpuqueue.service.routes.described import Depends, Header, Operations, Query, of_fields, operation, route
from gpuqueue.service.routes.logs import progress_elsewhere
from gpuqueue.service.site import BODY, answered, body_of, site_of, with_warnings
from gpuqueue.system.environment import travelling
from gpuqueue.text.sanitize import plain
from gpuqueue.words.values import in_zone
from gpuqueue.words.why.sentences import sentences

router = Operations("jobs")
#: Most jobs in one page of a listing.
MOST_JOBS = 2000
#: Pause before the history is asked again for an ended job, in seconds.
LAG_S = 0.02

Key = Annotated[
    str | None,
    Header(
        alias="Idempotency-Key",
        description="The same key with the same request yields the same job, for 10 minutes. With another body or path "
        "it is another key.",
    ),
]


@route(router, "POST /jobs", answer=Job, status=201, body=NewJob)
async def submit(request: Request, key: Key = None) -> Response:
    """Submit a job. The status is 200 if a job with its dedupe key waits or runs already: the answer is that job."""
    body = await body_of(request, NewJob)

    def steps(call: Call) -> Steps[Response]:
        job = yield from submitted(call, body, keyed_request(request, key), call.warnings.append)
        return with_warnings(call, new_job_answer(call, *job))

    return await site_of(request).submit(request, steps)


@operation(router, "POST /jobs/many")
def submit_many(call: Call, request: Request, body: NewJobs, key: Key = None) -> ManyJobs:
    """Submit the jobs of a list in their order. Each is queued or refused for itself, as if it were submitted alone.

    If a job is malformed, nothing is submitted. The key is that of the whole list.
    """
    outcomes = submitted_many(call, body, keyed_request(request, key), call.warnings.append)
    return ManyJobs(
        outcomes=tuple(
            Outcome(job=call.job(each, whole=True)) if isinstance(each, Job) else Outcome(problem=problem_of(each))
            for each in outcomes
        )
    )


@operation(router, "POST /job-specs", may=Action.SUBMIT)
def job_spec(call: Call, body: NewJob) -> JobSpec:
    """Return what a submit would submit, without its environment and notifications. Nothing is submitted."""
    call.must_run()
    spec = spec_of(call, body, call.warnings.append)
    return replace(spec, env={}, notifications=(), ticket=None)


@operation(router, "POST /jobs/{name}/retry", answer=Job, status=201)
def retry(call: Call, request: Request, name: str, body: RetryRequest, key: Key = None) -> Response:
    """Submit the request of an ended job as a new job of the caller."""
    return new_job_answer(call, *retried(call, name, body, keyed_request(request, key), call.warnings.append))


def keyed_request(request: Request, key: str | None) -> KeyedRequest | None:
    """Return *request*, whose body was read, with its key, None if it has none."""
    return None if key is None else KeyedRequest.of(key, request.url.path, request.scope[BODY])


@operation(router, "POST /jobs/{name}/retry-spec")
def retry_spec(call: Call, name: str, body: RetryRequest) -> JobSpec:
    """Return what a retry would submit. Nothing is submitted."""
    spec = spec_of_retry(call, name, body, call.warnings.append)
    call.note_read(Action.SEE_ENVIRONMENT, call.owner_of(name), name)
    own = {**travelling(body.fallback_env), **body.env}
    shown = {
        each: own[each] if is_secret(each) else value
        for each, value in spec.env.items()
        if not is_secret(each) or each in own
    }
    missing = [plain(each) for each in spec.env if each not in shown]
    if missing:
        call.warnings.append(f"the service shows no secrets of job {name}: give with --env: {', '.join(missing)}")
    return replace(spec, env=shown, ticket=None)


def new_job_answer(call: Call, job: Job, is_new: bool) -> Response:  # noqa: FBT001 - the second part of a pair
    """Return the answer with a submitted job."""
    made = answered(call.job(job, whole=True), 201 if is_new else 200)
    made.headers["Location"] = f"/api/v1/jobs/{job.id}"
    return made


Filters = Annotated[
    QueueQuery,
    Depends(
        of_fields(
            QueueQuery,
            {"after": Query(ge=0, le=2**53)},
            names=PARAMETERS,
            without={"limit"},
            make=QueueQuery.of,
        )
    ),
]


@operation(router, "GET /jobs")
def list_jobs(call: Call, query: Filters, limit: Annotated[int, Query(ge=1, le=MOST_JOBS)] = 500) -> Listing:
    """List the jobs that have not ended, by id. For the next page, give the field ``after`` of this one."""
    call.must_see_jobs()
    return call.listing(listing(call.connection, replace(query, limit=limit)))


@operation(router, "jobs.get")
def get_job(call: Call, name: str) -> Job:
    """Return the current state of a job, or of a member of an array such as ``17_2``."""
    return call.job(call.client.jobs.get(name), whole=True)


@operation(router, "GET /jobs/{name}/record", answer=Record)
def show_job(call: Call, name: str, *, tolerant: bool = False) -> Response:
    """Return the job with all its runs. If *tolerant*, the history answers alone while the store is away."""
    absences: list[Unreachable] = []
    record = call.client.jobs.show(name, away=absences.append if tolerant else None)
    answer = answered(call.record(record, whole=True))
    for each in absences:
        answer.headers[PARTIAL_ERROR], answer.headers[PARTIAL_ERROR_DETAIL] = problem_of(each).error, header(str(each))
    return answer


@operation(router, "jobs.newest")
def newest_run(call: Call, name: str) -> Record:
    """Return the job with at least its newest run."""
    return call.record(call.client.jobs.newest(name))


@route(router, "GET /jobs/{name}/ended", answer=Record)
async def ended_job(request: Request, name: str) -> Response:
    """Return an ended job with its runs. The answer waits some seconds for the history, if that lags."""
    site, until = site_of(request), time.monotonic() + RECORD_S

    def work(call: Call) -> Record | None:
        job = call.client.jobs.get(name)
        if not job.state.is_end:
            raise Refused(f"job {name} has not ended: it is {job.state}")
        found = recorded_now(call.connection, job, is_last=time.monotonic() >= until or site.closing.is_set())
        return found and call.record(found)

    record = await site.work(request, work)
    while record is None:
        await asyncio.sleep(LAG_S)  # no thread waits: they serve all callers
        record = await site.work(request, work, is_first=False)
    return answered(record)


@operation(router, "jobs.events")
def job_events(call: Call, name: str) -> tuple[Event, ...]:
    """Return all events of the job that the history has, in order."""
    owner = call.owner_of(name)
    call.must(Action.SEE_ARGUMENTS, owner)
    return call.events(call.client.jobs.events(name), owner)


@operation(router, "jobs.retries")
def retries_of_job(call: Call, name: str) -> tuple[int, ...]:
    """Return the ids of the jobs that run a job again, or members of an array, the oldest first."""
    call.must(Action.SEE_JOBS, call.owner_of(name))
    return call.client.jobs.retries(name)


#: The largest distance of a time zone from UTC, in minutes.
MOST_OFFSET_MIN = 24 * 60 - 1
Offset = Annotated[
    int | None,
    Query(
        alias="utc_offset_min",
        ge=-MOST_OFFSET_MIN,
        le=MOST_OFFSET_MIN,
        description="How far the clock of the reader is ahead of UTC, in minutes, for times in sentences. Without it, "
        "they are in the time zone of the service.",
    ),
]


@route(router, "jobs.why", answer=Why)
async def why_job(request: Request, name: str, offset: Offset = None) -> Response:
    """Return why a job waits, also in sentences."""
    zone, site = None if offset is None else timezone(timedelta(minutes=offset)), site_of(request)

    def work(call: Call) -> tuple[Why, list[Job]]:
        seen = call.why(call.client.jobs.why(name))
        runs = () if seen.explanation is None else seen.explanation.runs_in_the_way
        far = [seen.others[each] for each in runs if each in seen.others and each not in seen.progress]
        return seen, [job for job in far if job.host != site.settings.own_host and call.reads_log_of(job)]

    seen, far = await site.work(request, work)
    progress = {**seen.progress, **await progress_elsewhere(request, far)}
    seen = replace(seen, progress=site.foreseen.settled(progress))
    with in_zone(zone):
        return answered(replace(seen, sentences=sentences(seen)))  # of what the caller may see


@operation(router, "GET /job-labels", may=Action.SEE_SITE)
def job_labels(call: Call, ids: Annotated[list[int], Query(alias="id", max_length=5000)]) -> dict[int, str]:
    """Return the names of those jobs that are members of arrays, such as ``17_2``."""
    return dict(call.client.jobs.labels(ids))


@operation(router, "jobs.choose")
def choose_jobs(
    call: Call,
    user: str | None = None,
    name: str | None = None,
    state: StateFilter | None = None,
    tag: str | None = None,
) -> tuple[Chosen, ...]:
    """Return the jobs that have not ended and match all criteria. Without *user*, those of the caller."""
    call.must_see_jobs()
    return _seen(call, call.client.jobs.choose(user=user, name=name, state=state, tag=tag))


@operation(router, "jobs.choose_ended")
def choose_ended_jobs(
    call: Call,
    user: str | None = None,
    name: str | None = None,
    state: Annotated[list[JobState] | None, Query()] = None,
    tag: str | None = None,
    since: datetime | None = None,
) -> tuple[Chosen, ...]:
    """Return the ended jobs that match all criteria and were not retried yet. Without *user*, those of the caller."""
    call.must_see_jobs()
    found = call.client.jobs.choose_ended(user=user, name=name, states=state or (), tag=tag, since=since)
    return _seen(call, found)


def _seen(call: Call, found: Sequence[Chosen]) -> tuple[Chosen, ...]:
    return tuple(Chosen(each.name, call.job(each.job)) for each in found if call.sees(each.job))


@operation(router, "jobs.named", may=Action.SEE_SITE)
def name_jobs(call: Call, word: str, which: Which = Which.LIVE) -> tuple[str, ...]:
    """Return the names of the jobs that *word* means, such as ``12-19``."""
    return tuple(call.client.jobs.named(word, which=which))


@operation(router, "jobs.senders", may=Action.SEE_SITE)
def notification_senders(call: Call) -> tuple[Sender, ...]:
    """Return the senders of notifications, and what each can send."""
    return tuple(call.client.jobs.senders())


@operation(router, "jobs.nobody_sends", may=Action.SEE_SITE)
def notification_trouble(call: Call) -> Whether:
    """Return whether notifications can be sent as far as is known, and why not."""
    why = call.client.jobs.nobody_sends()
    return Whether(answer=why is None, why=why)
