"""The group ``client.jobs`` over the service."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from gpuqueue.client.fields import from_fields, then_from_fields
from gpuqueue.client.jobs import Jobs
from gpuqueue.client.patience import ABSENCES, Patience
from gpuqueue.client.remote.link import ANSWER_S, PARTIAL_ERROR, PARTIAL_ERROR_DETAIL, Link, error_of, segment
from gpuqueue.client.remote.operations import asking
from gpuqueue.errors import GpuQueueError, Unreachable, WaitTimeout
from gpuqueue.lazy.imports import later
from gpuqueue.model import api, job_ref, validation
from gpuqueue.model.job import Job
from gpuqueue.model.job_spec import JobSpec
from gpuqueue.model.run import Record

if TYPE_CHECKING:
    from gpuqueue.client import forward as forwards
    from gpuqueue.client import listing as listings
    from gpuqueue.client.forward import Forward
    from gpuqueue.client.remote import forward as ways
    from gpuqueue.client.remote import second_command, submit
    from gpuqueue.client.second_command import JobCommand
    from gpuqueue.model import job_request, queue_query
    from gpuqueue.model import run as runs
    from gpuqueue.model.job_request import JobRequest
    from gpuqueue.model.queue_query import QueueQuery
    from gpuqueue.model.terminal_size import Window
else:
    forwards = later("gpuqueue.client.forward")
    ways = later("gpuqueue.client.remote.forward")
    job_request = later("gpuqueue.model.job_request")
    listings = later("gpuqueue.client.listing")
    queue_query = later("gpuqueue.model.queue_query")
    runs = later("gpuqueue.model.run")
    second_command = later("gpuqueue.client.remote.second_command")
    submit = later("gpuqueue.client.remote.submit")

#: Jobs in one page of a listing.
PAGE = 2000
#: Longest time that the service may hold one request, in seconds.
HOLD_S = 25.0
#: Interval between two states of :func:`watch`, in seconds.
WATCH_S = 1.0


@asking("jobs")
class RemoteJobs(Jobs):
    """The jobs of the queue behind a service, for the account that the service sees."""

    def __init__(self, link: Link) -> None:
        self._link = link

    def submit_many(self, requests: Sequence[JobRequest]) -> Sequence[Job]:
        """Submit the jobs of a list, at most 1000, in their order and in one request; return them."""
        return submit.submit_many(self._link, requests)

    def exec(
        self, job: int | str, argv: Sequence[str], *, window: Window | None = None, stdin: bool = False
    ) -> JobCommand:
        """Run a second command in a running job, as :meth:`Jobs.exec` does, on whatever host the job runs."""
        command = api.SecondCommand(argv=tuple(argv), window=window, has_input=stdin)
        return second_command.begun(self._link, segment(job_ref.one_job(job)), command)

    def submit_request(
        self,
        request: JobRequest,
        *,
        found: Callable[[Job], None] | None = None,
        note: Callable[[str], None] | None = None,
    ) -> Job:
        """Submit *request*. *found* is called with a job that has its *dedupe* key, *note* with a line on its code."""
        return submit.submit_request(self._link, request, found, note)

    def spec_of(self, request: JobRequest, *, note: Callable[[str], None] | None = None) -> JobSpec:
        """Return what :meth:`submit_request` would submit. Nothing is submitted, and no code is sent."""
        return submit.spec_of(self._link, request, note)

    def retry(
        self,
        job: int | str,
        *,
        args: Sequence[str] | None = None,
        env: Mapping[str, str] | Sequence[str] | None = None,
        found: Callable[[Job], None] | None = None,
        warn: Callable[[str], None] | None = None,
        **changes: Any,
    ) -> Job:
        """Submit the request of an ended job as a new job, and return the new job."""
        body = submit.retry_body(self._link, args, env, changes)
        return submit.post_job(self._link, f"/jobs/{_whole(job)}/retry", body, found, warn)

    def spec_again(
        self,
        job: int | str,
        *,
        args: Sequence[str] | None = None,
        env: Mapping[str, str] | Sequence[str] | None = None,
        warn: Callable[[str], None] | None = None,
        **changes: Any,
    ) -> JobSpec:
        """Return what :meth:`retry` would submit, with the same arguments and errors.

        The service shows no secrets: the spec has those of this process, also where the queue still has the first ones.
        """
        body = submit.retry_body(self._link, args, env, changes)
        spec, answer = self._link.answered("POST", f"/jobs/{_whole(job)}/retry-spec", body, kind=JobSpec)
        submit.warn_from(answer, warn)
        return spec

    def submit_spec(self, spec: JobSpec, *, found: Callable[[Job], None] | None = None) -> Job:
        """Submit the *spec* of :meth:`spec_again`."""
        return submit.submit_spec(self._link, spec, found)

    def forward(
        self,
        job: int | str,
        port: int,
        *,
        address: str = "127.0.0.1",
        local_port: int = 0,
        report: Callable[[GpuQueueError], None] | None = None,
    ) -> Forward:
        """Return a port of this machine whose connections go to *port* of a running job, through the service."""
        name, number = forwards.job_and_port(job, port)
        return forwards.Forward(ways.RemoteWay(self._link, name, number), address, local_port, report)

    def show(self, job: int | str, *, away: Callable[[Unreachable], None] | None = None) -> Record:
        """Return the job with all its runs."""
        path = f"/jobs/{segment(job_ref.one_job(job))}/record"
        record, answer = self._link.answered("GET", path, kind=runs.Record, query={"tolerant": away is not None})
        name = answer.headers.get(PARTIAL_ERROR)
        if away is not None and name is not None:
            error = error_of(name, answer.headers.get(PARTIAL_ERROR_DETAIL, ""), Unreachable.exit_code)
            away(error if isinstance(error, Unreachable) else Unreachable(str(error)))
        return record

    @from_fields(lambda: queue_query.QueueQuery.of)
    def listing(self, query: QueueQuery) -> runs.Listing:
        """Return jobs that have not ended, in the order of their ids, with what the queue knows about running ones."""
        pages: list[runs.Listing] = []
        most, count, last = query.limit, 0, query.after
        while not pages or (last and (most is None or count < most)):
            size = PAGE if most is None else max(1, min(PAGE, most - count))
            page = self._link.get(runs.Listing, "/jobs", {**query.parameters(), "limit": size, "after": last})
            pages.append(page)
            count, last = count + len(page.jobs), page.after or 0
        jobs = tuple(listings.with_states([job for page in pages for job in page.jobs]))
        return listings.merged(pages, jobs=jobs[:most], after=last or None)

    def labels(self, jobs: Iterable[int]) -> Mapping[int, str]:
        """Return the names of those *jobs*, ids, that the queue knows as members of arrays, such as ``"17_2"``."""
        ids, found = sorted(set(jobs)), dict[int, str]()
        for first in range(0, len(ids), PAGE):  # a URL has at most 64 KiB
            found |= self._link.get(dict[int, str], "/job-labels", {"id": ids[first : first + PAGE]})
        return found

    @then_from_fields(lambda: job_request.JobEdit)
    def edit(self, job: int | str, wanted: job_request.JobEdit) -> Job:
        """Change the request of a waiting job or of a whole array, and return the job. It keeps its place."""
        body = submit.edit_body(self._link, wanted)
        return self._link.send("PATCH", f"/jobs/{segment(job_ref.whole_job(job))}", body, kind=Job)

    def ends(
        self,
        jobs: Iterable[int | str],
        *,
        timeout_s: float | None = None,
        held: Callable[[Job], None] | None = None,
        away: Callable[[Unreachable], None] | None = None,
    ) -> Iterator[tuple[int | str, Job]]:
        """Yield the name and the ended job for each of *jobs*, in the order of their ends."""
        return ends(self._link, jobs, timeout_s=timeout_s, held=held, away=away)

    def watch(self, job: int | str, *, away: Callable[[Unreachable], None] | None = None) -> Iterator[Job]:
        """Yield the job's current state at least once a second until it has ended."""
        return watch(self._link, job, away=away)

    def recorded(self, job: Job) -> Record:
        """Return the ended *job* from the history, or without its runs if the history does not have it in time."""
        return recorded(self._link, job)


def _whole(job: int | str) -> str:
    return segment(job_ref.job_name(job))


def ends(
    link: Link,
    jobs: Iterable[int | str],
    *,
    timeout_s: float | None,
    held: Callable[[Job], None] | None,
    away: Callable[[Unreachable], None] | None,
) -> Iterator[tuple[int | str, Job]]:
    """Yield the name and the ended job for each of *jobs*, in the order of their ends."""
    from gpuqueue.client.wait import still_open  # noqa: PLC0415 - only after the time is over

    validation.seconds_or_none("timeout_s", timeout_s)
    deadline = math.inf if timeout_s is None else time.monotonic() + timeout_s
    names = {str(job_ref.one_job(name)): name for name in jobs}
    patience, known_held, left_s = Patience(away), frozenset[str](), 0.0  # the first answer comes at once
    while names:
        try:
            waited = _waited(link, tuple(names), tuple(known_held & names.keys()), left_s)
        except ABSENCES as error:
            patience.bear(error)
        else:
            patience.answered()
            for each in waited.held:
                if held is not None and each.name not in known_held:
                    held(each.job)
            known_held = frozenset(each.name for each in waited.held)
            for each in waited.ended:
                yield names.pop(each.name), each.job
        left_s = deadline - time.monotonic()
        if names and time.monotonic() >= deadline:
            raise WaitTimeout(still_open([*names.values()], timeout_s or 0.0))


def watch(link: Link, job: int | str, *, away: Callable[[Unreachable], None] | None) -> Iterator[Job]:
    """Yield the job's current state at least once a second until it has ended."""
    patience, path = Patience(away), f"/jobs/{segment(job_ref.one_job(job))}"
    while True:
        try:
            seen = link.get(Job, path)
            patience.answered()
            yield seen
            if seen.state.is_end:
                return
            _waited(link, (str(job_ref.one_job(job)),), (), WATCH_S)
        except ABSENCES as error:
            patience.bear(error)


def recorded(link: Link, job: Job) -> Record:
    """Return the ended *job* from the history, or with what the service knows if the history lags."""
    return link.get(Record, f"/jobs/{segment(job.label)}/ended")


def _waited(link: Link, jobs: tuple[str, ...], held: tuple[str, ...], left_s: float) -> api.Waited:
    hold_s = max(0.0, min(left_s, HOLD_S))
    body = api.WaitRequest(jobs=jobs, timeout_s=hold_s, held=held)
    return link.send("POST", "/jobs/wait", body, kind=api.Waited, timeout_s=hold_s + ANSWER_S)
