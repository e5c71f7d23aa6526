"""The group ``client.jobs`` over the service. The methods are those of :class:`gpuqueue.client.jobs.Jobs`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from gpuqueue.client.fields import from_fields, then_from_fields
from gpuqueue.client.remote.link import PARTIAL_ERROR, PARTIAL_ERROR_DETAIL, Link, error_of, segment
from gpuqueue.errors import Unreachable
from gpuqueue.lazy.imports import later
from gpuqueue.model import job_ref, times, validation
from gpuqueue.model.job import Job, JobState
from gpuqueue.model.job_spec import JobSpec

if TYPE_CHECKING:
    from datetime import datetime

    from gpuqueue.client import changes, selection, why
    from gpuqueue.client import listing as listings
    from gpuqueue.client.changes import Change
    from gpuqueue.client.jobs import Jobs as Direct
    from gpuqueue.client.remote import submit, wait
    from gpuqueue.client.selection import Chosen, StateFilter, Which
    from gpuqueue.client.why import Why
    from gpuqueue.model import api, event, job_edit, job_request, queue_query
    from gpuqueue.model import run as runs
    from gpuqueue.model.job_request import JobRequest
    from gpuqueue.model.queue_query import QueueQuery
    from gpuqueue.model.run import Record
    from gpuqueue.queue import sender as sending
else:
    Direct = object
    api = later("gpuqueue.model.api")
    changes = later("gpuqueue.client.changes")
    event = later("gpuqueue.model.event")
    job_edit = later("gpuqueue.model.job_edit")
    job_request = later("gpuqueue.model.job_request")
    listings = later("gpuqueue.client.listing")
    queue_query = later("gpuqueue.model.queue_query")
    runs = later("gpuqueue.model.run")
    selection = later("gpuqueue.client.selection")
    sending = later("gpuqueue.queue.sender")
    submit = later("gpuqueue.client.remote.submit")
    wait = later("gpuqueue.client.remote.wait")
    why = later("gpuqueue.client.why")

#: Jobs in one page of a listing.
PAGE = 2000


class RemoteJobs(Direct):
    """The jobs of the queue behind a service, for the account that the service sees."""

    def __init__(self, link: Link) -> None:
        self._link = link

    @from_fields(lambda: job_request.JobRequest)
    def submit(self, request: JobRequest) -> Job:
        """Submit a job and return it."""
        return self.submit_request(request)

    def submit_request(
        self,
        request: JobRequest,
        *,
        found: Callable[[Job], None] | None = None,
        note: Callable[[str], None] | None = None,
    ) -> Job:
        """Submit *request*. *found* is called with a job that has its *dedupe* key, *note* with a line on its code."""
        return submit.submit_request(self._link, request, found, note)

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

    def get(self, job: int | str) -> Job:
        """Return the current state of a job."""
        return self._link.get(Job, f"/jobs/{_one(job)}")

    def show(self, job: int | str, *, away: Callable[[Unreachable], None] | None = None) -> Record:
        """Return the job with all its runs."""
        query = {"tolerant": away is not None}
        record, answer = self._link.answered("GET", f"/jobs/{_one(job)}/record", kind=runs.Record, query=query)
        name = answer.headers.get(PARTIAL_ERROR)
        if away is not None and name is not None:
            error = error_of(name, answer.headers.get(PARTIAL_ERROR_DETAIL, ""), Unreachable.exit_code)
            away(error if isinstance(error, Unreachable) else Unreachable(str(error)))
        return record

    def newest(self, job: int | str) -> Record:
        """Return the job with at least its newest run."""
        return self._link.get(runs.Record, f"/jobs/{_one(job)}/newest")

    def list(self, **filters: Any) -> list[Job]:
        """Return the jobs of :meth:`listing`."""
        return [*self.listing(**filters).jobs]

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

    def events(self, job: int | str) -> tuple[event.Event, ...]:
        """Return all events of the job that the history has, in order."""
        return self._link.get(tuple[event.Event, ...], f"/jobs/{_one(job)}/events")

    def why(self, job: int | str) -> Why:
        """Return why a job waits: what blocks it on each device, its place in the order, when it may start."""
        return self._link.get(why.Why, f"/jobs/{_one(job)}/why")

    def senders(self) -> Sequence[sending.Sender]:
        """Return the running senders of notifications, and what each can send."""
        return self._link.get(tuple[sending.Sender, ...], "/notification-senders")

    def nobody_sends(self) -> str | None:
        """Return why no notification can be sent now, or None if no reason is known."""
        return self._link.get(api.Whether, "/notification-trouble").why

    def choose(
        self,
        *,
        user: str | None = None,
        name: str | None = None,
        state: StateFilter | str | None = None,
        tag: str | None = None,
    ) -> Sequence[Chosen]:
        """Return the jobs that have not ended and match all criteria."""
        query = {
            "user": validation.text_or_none("user", user),
            "name": validation.text_or_none("name", name),
            "state": None if state is None else validation.word("state", state, selection.StateFilter),
            "tag": validation.text_or_none("tag", tag),
        }
        return self._link.get(tuple[selection.Chosen, ...], "/job-choice", query)

    def choose_ended(
        self,
        *,
        user: str | None = None,
        name: str | None = None,
        states: Sequence[JobState | str] = ("failed", "lost"),
        tag: str | None = None,
        since: str | datetime | None = None,
    ) -> Sequence[Chosen]:
        """Return the ended jobs that match all criteria and were not retried yet, for :meth:`retry`."""
        query = {
            "user": validation.text_or_none("user", user),
            "name": validation.text_or_none("name", name),
            "state": validation.words_of("states", states, JobState),
            "tag": validation.text_or_none("tag", tag),
            "since": times.moment("since", since),
        }
        return self._link.get(tuple[selection.Chosen, ...], "/ended-job-choice", query)

    def named(self, word: str, *, which: Which | str = "waits or runs") -> Sequence[str]:
        """Return the names of the jobs that *word* means, in order of their ids."""
        query = {"word": word, "which": validation.word("which", which, selection.Which)}
        return self._link.get(tuple[str, ...], "/job-names", query)

    def must_own(self, user: str) -> None:
        """Check that this account may change the jobs of *user*."""
        self._link.get(api.Whether, "/me/may-change", {"user": user})

    def cancel(self, job: int | str) -> Change:
        """End the job. Its new state is CANCELLED, or CANCELLING until its processes are gone."""
        return self._changed(job, "cancel")

    def hold(self, job: int | str) -> Change:
        """Hold a waiting job, or the waiting members of an array or of a part, so that none starts."""
        return self._changed(job, "hold")

    def release(self, job: int | str) -> Change:
        """Release a held job, or the held members of an array or of a part, so that they can start."""
        return self._changed(job, "release")

    def _changed(self, job: int | str, act: str) -> Change:
        return self._link.send("POST", f"/jobs/{_whole(job)}/{act}", kind=changes.Change)

    def move(self, job: int | str, *, front: bool = True) -> JobState:
        """Move a waiting job before all other jobs of its user, or back to its place by arrival; return its state."""
        return self._link.send("POST", f"/jobs/{_one(job)}/move", api.MoveRequest(front=front), kind=api.Moved).state

    @then_from_fields(lambda: job_edit.JobEdit)
    def edit(self, job: int | str, wanted: job_edit.JobEdit) -> Job:
        """Change the request of a waiting job or of a whole array, and return the job. It keeps its place."""
        body = submit.edit_body(self._link, wanted)
        return self._link.send("PATCH", f"/jobs/{segment(job_ref.whole_job(job))}", body, kind=Job)

    def tag(self, job: int | str, *words: str, remove: bool = False) -> None:
        """Add *words* to the tags of a job, or remove them. The job may have ended."""
        body = api.TagRequest(words=validation.words("tags", words), remove=remove)
        self._link.send("POST", f"/jobs/{_one(job)}/tags", body)

    def note(self, job: int | str, text: str) -> None:
        """Set the note of a job to *text*; an empty text removes the note. The job may have ended."""
        message = validation.text_or_none("a note", text)
        self._link.send("PUT", f"/jobs/{_one(job)}/note", api.NoteRequest(text=message or ""))

    def wait(
        self,
        job: int | str,
        *,
        timeout_s: float | None = None,
        held: Callable[[Job], None] | None = None,
        away: Callable[[Unreachable], None] | None = None,
    ) -> Record:
        """Wait until the job, the array or the member has ended, and return it with its runs."""
        _, ended = next(self.ends([job], timeout_s=timeout_s, held=held, away=away))
        return self.recorded(ended)

    def ends(
        self,
        jobs: Iterable[int | str],
        *,
        timeout_s: float | None = None,
        held: Callable[[Job], None] | None = None,
        away: Callable[[Unreachable], None] | None = None,
    ) -> Iterator[tuple[int | str, Job]]:
        """Yield the name and the ended job for each of *jobs*, in the order of their ends."""
        return wait.ends(self._link, jobs, timeout_s=timeout_s, held=held, away=away)

    def watch(self, job: int | str, *, away: Callable[[Unreachable], None] | None = None) -> Iterator[Job]:
        """Yield the job's current state at least once a second until it has ended."""
        return wait.watch(self._link, job, away=away)

    def recorded(self, job: Job) -> Record:
        """Return the ended *job* from the history, or without its runs if the history does not have it in time."""
        return wait.recorded(self._link, job)


def _one(job: int | str) -> str:
    return segment(job_ref.one_job(job))


def _whole(job: int | str) -> str:
    return segment(job_ref.job_name(job))
