"""The functions of ``client.jobs``, as an interface. The other groups are in groups.py."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Protocol

from gpuqueue.client.fields import from_fields, then_from_fields
from gpuqueue.lazy.imports import later

if TYPE_CHECKING:
    from gpuqueue.client.changes import Change
    from gpuqueue.client.selection import Chosen, StateFilter, Which
    from gpuqueue.client.why import Why
    from gpuqueue.errors import Unreachable
    from gpuqueue.model import job_edit, job_request
    from gpuqueue.model.event import Event
    from gpuqueue.model.job import Job, JobState
    from gpuqueue.model.job_edit import JobEdit
    from gpuqueue.model.job_request import JobRequest
    from gpuqueue.model.job_spec import JobSpec
    from gpuqueue.model.run import Listing, Record
    from gpuqueue.queue.sender import Sender
else:
    job_edit = later("gpuqueue.model.job_edit")
    job_request = later("gpuqueue.model.job_request")


class JobsGroup(Protocol):
    """The group ``client.jobs``."""

    @from_fields(lambda: job_request.JobRequest)
    def submit(self, request: JobRequest) -> Job:
        """Submit a job and return it."""

    def submit_request(
        self,
        request: JobRequest,
        *,
        found: Callable[[Job], None] | None = None,
        note: Callable[[str], None] | None = None,
    ) -> Job:
        """Submit *request*. *found* is called with a job that has its *dedupe* key, *note* with a line on its code."""

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

    def spec_again(
        self,
        job: int | str,
        *,
        args: Sequence[str] | None = None,
        env: Mapping[str, str] | Sequence[str] | None = None,
        warn: Callable[[str], None] | None = None,
        **changes: Any,
    ) -> JobSpec:
        """Return what :meth:`retry` would submit, with the same arguments and errors."""

    def submit_spec(self, spec: JobSpec, *, found: Callable[[Job], None] | None = None) -> Job:
        """Submit the *spec* of :meth:`spec_again`."""

    def get(self, job: int | str) -> Job:
        """Return the current state of a job."""

    def show(self, job: int | str, *, away: Callable[[Unreachable], None] | None = None) -> Record:
        """Return the job with all its runs."""

    def newest(self, job: int | str) -> Record:
        """Return the job with at least its newest run."""

    def list(self, **filters: Any) -> list[Job]:
        """Return the jobs of :meth:`listing`."""

    def listing(
        self,
        *,
        user: str | None = None,
        limit: int | None = None,
        states: Sequence[JobState | str] = (),
        name: str | None = None,
        tags: Sequence[str] = (),
        pool: str | None = None,
        after: int = 0,
    ) -> Listing:
        """Return jobs that have not ended, in the order of their ids, with what the queue knows about the running ones.

        ``Listing.after`` is the last id if there may be more jobs.
        """

    def labels(self, jobs: Iterable[int]) -> Mapping[int, str]:
        """Return the names of those *jobs*, ids, that the queue knows as members of arrays, such as ``"17_2"``."""

    def events(self, job: int | str) -> tuple[Event, ...]:
        """Return all events of the job that the history has, in order."""

    def why(self, job: int | str) -> Why:
        """Return why a job waits: what blocks it on each device, its place in the order, when it may start."""

    def senders(self) -> Sequence[Sender]:
        """Return the running senders of notifications, and what each can send."""

    def nobody_sends(self) -> str | None:
        """Return why no notification can be sent now, or None if no reason is known."""

    def choose(
        self,
        *,
        user: str | None = None,
        name: str | None = None,
        state: StateFilter | str | None = None,
        tag: str | None = None,
    ) -> Sequence[Chosen]:
        """Return the jobs that have not ended and match all criteria."""

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

    def named(self, word: str, *, which: Which | str = "waits or runs") -> Sequence[str]:
        """Return the names of the jobs that *word* means, in order of their ids."""

    def must_own(self, user: str) -> None:
        """Check that this account may change the jobs of *user*."""

    def cancel(self, job: int | str) -> Change:
        """End the job. Its new state is CANCELLED, or CANCELLING until its processes are gone."""

    def hold(self, job: int | str) -> Change:
        """Hold a waiting job, or the waiting members of an array or of a part, so that none starts."""

    def release(self, job: int | str) -> Change:
        """Release a held job, or the held members of an array or of a part, so that they can start."""

    def move(self, job: int | str, *, front: bool = True) -> JobState:
        """Move a waiting job before all other jobs of its user, or back to its place by arrival; return its state."""

    @then_from_fields(lambda: job_edit.JobEdit)
    def edit(self, job: int | str, wanted: JobEdit) -> Job:
        """Change the request of a waiting job or of a whole array, and return the job. It keeps its place."""

    def tag(self, job: int | str, *words: str, remove: bool = False) -> None:
        """Add *words* to the tags of a job, or remove them. The job may have ended."""

    def note(self, job: int | str, text: str) -> None:
        """Set the note of a job to *text*; an empty text removes the note. The job may have ended."""

    def wait(
        self,
        job: int | str,
        *,
        timeout_s: float | None = None,
        held: Callable[[Job], None] | None = None,
        away: Callable[[Unreachable], None] | None = None,
    ) -> Record:
        """Wait until the job, the array or the member has ended, and return it with its runs."""

    def ends(
        self,
        jobs: Iterable[int | str],
        *,
        timeout_s: float | None = None,
        held: Callable[[Job], None] | None = None,
        away: Callable[[Unreachable], None] | None = None,
    ) -> Iterator[tuple[int | str, Job]]:
        """Yield the name and the ended job for each of *jobs*, in the order of their ends."""

    def watch(self, job: int | str, *, away: Callable[[Unreachable], None] | None = None) -> Iterator[Job]:
        """Yield the job's current state at least once a second until it has ended."""

    def recorded(self, job: Job) -> Record:
        """Return the ended *job* from the history, or without its runs if the history does not have it in time."""
