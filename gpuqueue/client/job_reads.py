"""The methods of ``client.jobs`` that read, select and await jobs, and change nothing. The others are in jobs.py.

Each method calls a function of the module that is named by what it holds: ``reads``, ``listing``, ``explain``,
``selection``, ``retry_selection``, ``notifications``, ``wait``. A module is imported when it is first used.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from gpuqueue.client.connection import Connection
from gpuqueue.lazy.imports import later
from gpuqueue.model.job import Job, JobState

if TYPE_CHECKING:
    from datetime import datetime

    from gpuqueue.client import explain, listing, notifications, reads, retry_selection, selection, wait
    from gpuqueue.client.selection import Chosen, StateFilter, Which
    from gpuqueue.client.why import Why
    from gpuqueue.errors import Unreachable
    from gpuqueue.model.event import Event
    from gpuqueue.model.job_page import Listing
    from gpuqueue.model.run import Record
    from gpuqueue.queue.sender import Sender
else:
    explain = later("gpuqueue.client.explain")
    listing = later("gpuqueue.client.listing")
    notifications = later("gpuqueue.client.notifications")
    reads = later("gpuqueue.client.reads")
    retry_selection = later("gpuqueue.client.retry_selection")
    selection = later("gpuqueue.client.selection")
    wait = later("gpuqueue.client.wait")


class JobReads:
    """The methods that change nothing. :class:`gpuqueue.client.jobs.Jobs` describes the argument ``job`` and errors."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def get(self, job: int | str) -> Job:
        """Return the current state of a job."""
        return reads.get(self._connection, job)

    def show(self, job: int | str, *, away: Callable[[Unreachable], None] | None = None) -> Record:
        """Return the job with all its runs: the current state from the queue, the runs from the history.

        If the queue is unreachable, *away* is given and the history has the job, *away* is called with the error, and
        the history's record is returned.
        """
        return reads.show(self._connection, job, away=away)

    def newest(self, job: int | str) -> Record:
        """Return the job with at least its newest run. This is faster than :meth:`show`."""
        return reads.newest(self._connection, job)

    def list(self, **filters: Any) -> list[Job]:
        """Return the jobs of :meth:`listing`."""
        return [*self.listing(**filters).jobs]

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

        Args:
            user: The submitting account.
            limit: The largest number of jobs to return.
            states: The job is in one of these states. An array is in the states of its members that have not started;
                the others are jobs of their own.
            name: The whole name, or a pattern such as ``"train*"``.
            tags: The job has all of these tags.
            pool: The pool that the job asks for.
            after: The job has an id above this one.

        """
        return listing.listing(
            self._connection, user=user, limit=limit, states=states, name=name, tags=tags, pool=pool, after=after
        )

    def labels(self, jobs: Iterable[int]) -> Mapping[int, str]:
        """Return the names of those *jobs*, ids, that the queue knows as members of arrays, such as ``"17_2"``."""
        return self._connection.queue.jobs.called(jobs)

    def events(self, job: int | str) -> tuple[Event, ...]:
        """Return all events of the job that the history has, in order."""
        return reads.events(self._connection, job)

    def why(self, job: int | str) -> Why:
        """Return why a job waits: what blocks it on each device, its place in the order, when it may start."""
        return explain.why(self._connection, job)

    def senders(self) -> Sequence[Sender]:
        """Return the running senders of notifications, and what each can send."""
        return self._connection.queue.senders.all()

    def nobody_sends(self) -> str | None:
        """Return why no notification can be sent now, or None if no reason is known."""
        return notifications.nobody_sends(self._connection)

    def choose(
        self,
        *,
        user: str | None = None,
        name: str | None = None,
        state: StateFilter | str | None = None,
        tag: str | None = None,
    ) -> Sequence[Chosen]:
        """Return the jobs that have not ended and match all criteria.

        Args:
            user: The submitting account. By default this account.
            name: The whole name, or a pattern such as ``"train*"``.
            state: ``"waiting"``, ``"running"``, ``"queued"`` or ``"held"``. Of an array only the members in this state
                are selected.
            tag: One of the job's tags.

        """
        return selection.choose(self._connection, user=user, name=name, state=state, tag=tag)

    def choose_ended(
        self,
        *,
        user: str | None = None,
        name: str | None = None,
        states: Sequence[JobState | str] = ("failed", "lost"),
        tag: str | None = None,
        since: str | datetime | None = None,
    ) -> Sequence[Chosen]:
        """Return the ended jobs that match all criteria and were not retried yet, for :meth:`retry`.

        Args:
            user: The submitting account. By default this account.
            name: The whole name, or a pattern such as ``"train*"``.
            states: The job ended in one of these states.
            tag: One of the job's tags.
            since: The job was submitted at this time or later: a datetime, or a text such as ``"7d"`` (ago).

        """
        return retry_selection.choose(self._connection, user=user, name=name, states=states, tag=tag, since=since)

    def named(self, word: str, *, which: Which | str = "waits or runs") -> Sequence[str]:
        """Return the names of the jobs that *word* means, in order of their ids.

        A word such as ``12-19`` means the jobs of that range that *which* selects. Any other word means itself.

        Raises:
            BadRequest: *word* is not the name of a job.
            JobNotFound: no job of the range exists.
            Refused: jobs of the range exist, and *which* selects none of them.

        """
        return selection.named(self._connection, word, which=which)

    def must_own(self, user: str) -> None:
        """Check that this account may change the jobs of *user*.

        Raises:
            Refused: the account may not change them.

        """
        selection.must_own(self._connection, user)

    def wait(
        self,
        job: int | str,
        *,
        timeout_s: float | None = None,
        held: Callable[[Job], None] | None = None,
        away: Callable[[Unreachable], None] | None = None,
    ) -> Record:
        """Wait until the job, the array or the member has ended, and return it with its runs.

        The other arguments are those of :meth:`ends`, which waits for several jobs.

        Raises:
            WaitTimeout: the job has not ended after *timeout_s*. It continues.

        """
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
        """Yield the name and the ended job for each of *jobs*, in the order of their ends.

        The history is queried only for jobs that the queue has deleted. If the store becomes unreachable during the
        wait, the wait continues for up to ten minutes.

        Args:
            jobs: Ids, or names of array members.
            timeout_s: The longest time to wait, in seconds. None means no limit.
            held: Called with a job each time the job becomes held. A held job waits until a person releases it.
            away: Called with the error when the store becomes unreachable.

        Raises:
            JobNotFound: one of the jobs does not exist. Raised by the first poll.
            WaitTimeout: some jobs have not ended after *timeout_s*. They continue.

        """
        return wait.ends(self._connection, jobs, timeout_s=timeout_s, held=held, away=away)

    def watch(self, job: int | str, *, away: Callable[[Unreachable], None] | None = None) -> Iterator[Job]:
        """Yield the job's current state at least once a second until it has ended. *away* is that of :meth:`ends`."""
        return wait.watch(self._connection, job, away=away)

    def recorded(self, job: Job) -> Record:
        """Return the ended *job* from the history, or without its runs if the history does not have it in time."""
        return wait.recorded(self._connection, job)
