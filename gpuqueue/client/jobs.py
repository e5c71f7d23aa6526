"""The group ``client.jobs``: submits, reads, selects, changes and awaits jobs.

Each method calls a function of the module that is named by what it holds: ``submit``, ``retry``, ``changes``, ``edit``,
``marks``, ``reads``. A module is imported when it is first used.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from gpuqueue.client.connection import Connection
from gpuqueue.client.fields import from_fields, then_from_fields
from gpuqueue.lazy.imports import later
from gpuqueue.model.job import Job, JobState
from gpuqueue.model.job_spec import JobSpec

if TYPE_CHECKING:
    from datetime import datetime

    from gpuqueue.client import (
        changes,
        edit,
        listing,
        memory,
        notifications,
        reads,
        retry,
        retry_selection,
        second_command,
        selection,
        submit,
        wait,
        why,
    )
    from gpuqueue.client import forward as forwards
    from gpuqueue.client.changes import Change
    from gpuqueue.client.forward import Forward
    from gpuqueue.client.second_command import JobCommand
    from gpuqueue.client.selection import Chosen, StateFilter, Which
    from gpuqueue.client.why import Why
    from gpuqueue.errors import GpuQueueError, Unreachable
    from gpuqueue.model import api, job_request, queue_query
    from gpuqueue.model.event import Event
    from gpuqueue.model.job_request import JobEdit, JobRequest
    from gpuqueue.model.queue_query import QueueQuery
    from gpuqueue.model.run import Listing, Record
    from gpuqueue.model.terminal_size import Window
    from gpuqueue.queue.senders import Sender
else:
    api = later("gpuqueue.model.api")
    changes = later("gpuqueue.client.changes")
    edit = later("gpuqueue.client.edit")
    forwards = later("gpuqueue.client.forward")
    job_request = later("gpuqueue.model.job_request")
    listing = later("gpuqueue.client.listing")
    memory = later("gpuqueue.client.memory")
    notifications = later("gpuqueue.client.notifications")
    queue_query = later("gpuqueue.model.queue_query")
    reads = later("gpuqueue.client.reads")
    retry = later("gpuqueue.client.retry")
    retry_selection = later("gpuqueue.client.retry_selection")
    second_command = later("gpuqueue.client.second_command")
    selection = later("gpuqueue.client.selection")
    submit = later("gpuqueue.client.submit")
    wait = later("gpuqueue.client.wait")
    why = later("gpuqueue.client.why")


class Jobs:
    """The jobs of one queue, for one user.

    A ``job`` is an id (17), or text: ``"17"``, a member of an array (``"17_2"``), and where several jobs can be changed
    at once a part of an array (``"17_5-9"``). A method raises JobNotFound if the job does not exist, Refused if the job
    belongs to another user, and BadRequest if an argument is malformed.
    """

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
        record = reads.show(self._connection, job, away=away)
        return memory.with_advice(self._connection, record) if record.shows_memory else record

    def newest(self, job: int | str) -> Record:
        """Return the job with at least its newest run. This is faster than :meth:`show`."""
        return reads.newest(self._connection, job)

    def list(self, **filters: Any) -> list[Job]:
        """Return the jobs of :meth:`listing`."""
        return [*self.listing(**filters).jobs]

    @from_fields(lambda: queue_query.QueueQuery.of)
    def listing(self, query: QueueQuery) -> Listing:
        """Return jobs that have not ended, in the order of their ids, with what the queue knows about the running ones.

        The arguments are those of ``QueueQuery.of``, with its errors. ``Listing.after`` is the last id if there may be
        more jobs.
        """
        return listing.listing(self._connection, query)

    def labels(self, jobs: Iterable[int]) -> Mapping[int, str]:
        """Return the names of those *jobs*, ids, that the queue knows as members of arrays, such as ``"17_2"``."""
        return self._connection.queue.jobs.called(jobs)

    def events(self, job: int | str) -> tuple[Event, ...]:
        """Return all events of the job that the history has, in order."""
        return reads.events(self._connection, job)

    def retries(self, job: int | str) -> tuple[int, ...]:
        """Return the ids of the jobs that run *job* again, or members of it, the oldest first."""
        return reads.retries(self._connection, job)

    def why(self, job: int | str) -> Why:
        """Return why a job waits: what blocks it on each device, its place in the order, when it may start."""
        return why.why(self._connection, job)

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

    def forward(
        self,
        job: int | str,
        port: int,
        *,
        address: str = "127.0.0.1",
        local_port: int = 0,
        report: Callable[[GpuQueueError], None] | None = None,
    ) -> Forward:
        """Return a port of this machine whose connections go to *port* of a running job, until it is closed.

        It listens at *address*, on *local_port* or with 0 on any free one, and connects to 127.0.0.1 of the job's host.
        Only a port at which only processes of the job listen is reached, of a job of this account. Each connection
        finds the run of the job anew. *report* is called from a thread with the reason if connections do not reach it.

        Raises:
            Refused: the job does not run, or is another account's; without a service, it runs on another host.

        """
        name, number = forwards.job_and_port(job, port)
        way = forwards.DirectWay(self._connection, name, number)
        return forwards.Forward(way, address, local_port, report)

    @from_fields(lambda: job_request.JobRequest)
    def submit(self, request: JobRequest) -> Job:
        """Submit a job and return it. The arguments are the fields of JobRequest.

        Raises:
            BadRequest: an argument is malformed, or the script does not exist.
            JobNotFound: a dependency does not exist.
            Impossible: no known device could ever run the job, or a dependency ended so that it is never satisfied.
            Refused: a limit forbids the job, now or ever, or the site accepts no URLs.

        """
        return self.submit_request(request)

    def submit_many(self, requests: Sequence[JobRequest]) -> Sequence[Job]:
        """Submit the jobs of a list, at most 1000, in their order and in one round trip; return them.

        The list has one idempotency key: a lost answer makes no job twice. Nothing is submitted if a request is
        malformed. Then each job is queued or refused for itself, as if it were submitted alone.

        Raises:
            BadRequest: a request is malformed, or a script does not exist.
            SubmittedInPart: some jobs were refused, and the others are queued. It names them.
            Unreachable: nothing answers. The jobs may be queued all the same if it says so.

        """
        specs = submit.prepared(lambda each: (submit.spec_of(self._connection, each), None), requests)
        return submit.all_queued(submit.queued_many(self._connection, [spec for spec, _ in specs]))

    def submit_request(
        self,
        request: JobRequest,
        *,
        found: Callable[[Job], None] | None = None,
        note: Callable[[str], None] | None = None,
    ) -> Job:
        """Submit *request* as :meth:`submit` does.

        *found* is called with a job that has its *dedupe* key, and *note* with lines about the script and its code.
        """
        return submit.queued(self._connection, submit.spec_of(self._connection, request, note), found, note=note)

    def spec_of(self, request: JobRequest, *, note: Callable[[str], None] | None = None) -> JobSpec:
        """Return what :meth:`submit_request` would submit, with the same arguments and errors. Nothing is submitted."""
        return submit.spec_of(self._connection, request, note, dry=True)

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
        """Submit the request of an ended job as a new job, and return the new job.

        The new job has the command, directory and environment of the first submission, and belongs to this account.
        It has no dependencies and no earliest start, unless *after* or *begin* gives new ones. For an array, or a part
        of one, the new job is an array of the members that failed or were lost. *args* replace the arguments of the
        script, and *env* is added to the environment. The other arguments are fields of JobEdit, such as
        *mem*. *found* is that of :meth:`submit_request`.

        Secrets are removed when a job has ended, and the environment some time later. The new job then gets them from
        this process, and *warn* is called with a line that says so and names the secrets that are missing.

        Raises:
            Refused: the job has not ended, no member failed, or a limit forbids the new job.
            BadRequest: *args* are given for a job that runs no script, or a change is malformed.
            Unreadable: the job's request cannot be read any more.
            Impossible: see :meth:`submit`.

        """
        return self.submit_spec(self.spec_again(job, args=args, env=env, warn=warn, **changes), found=found)

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
        return retry.spec_again(self._connection, job, job_request.JobEdit(**changes), args=args, env=env, warn=warn)

    def submit_spec(self, spec: JobSpec, *, found: Callable[[Job], None] | None = None) -> Job:
        """Submit the *spec* of :meth:`spec_again`."""
        return submit.queued(self._connection, spec, found)

    def cancel(self, job: int | str) -> Change:
        """End the job. Its new state is CANCELLED, or CANCELLING until its processes are gone.

        Raises:
            Refused: the job has ended already, in another state than CANCELLED.

        """
        return changes.cancel(self._connection, job)

    def hold(self, job: int | str) -> Change:
        """Hold a waiting job, or the waiting members of an array or of a part, so that none starts.

        Raises:
            Refused: the job does not wait.

        """
        return changes.hold_or_release(self._connection, "hold", job)

    def release(self, job: int | str) -> Change:
        """Release a held job, or the held members of an array or of a part, so that they can start.

        Raises:
            Refused: the job is not held and does not wait.

        """
        return changes.hold_or_release(self._connection, "release", job)

    def move(self, job: int | str, *, front: bool = True) -> JobState:
        """Move a waiting job before all other jobs of its user, or back to its place by arrival; return its state.

        The order among users does not change. An array moves as a whole.

        Raises:
            Refused: the job runs or has ended.
            BadRequest: the job is a member that waits with its array. Members start in the order of the array.

        """
        return changes.move(self._connection, job, front=front)

    @then_from_fields(lambda: job_request.JobEdit)
    def edit(self, job: int | str, wanted: JobEdit) -> Job:
        """Change the request of a waiting job or of a whole array, and return the job. It keeps its place in the queue.

        The arguments after *job* are the fields of JobEdit.

        Raises:
            Refused: the job runs or has ended, or waits for a retry that the change removes.
            BadRequest: an argument is malformed, no change was named, or the job would depend on itself.
            Impossible: no known device could ever run the changed job. Nothing was changed.

        """
        return edit.edit(self._connection, job, wanted)

    def exec(
        self, job: int | str, argv: Sequence[str], *, window: Window | None = None, stdin: bool = False
    ) -> JobCommand:
        """Run a second command in a running job of this account, with the job's account, environment and directory.

        The command ends with the run of the job, and when the result is closed. With *window* it has a terminal of that
        size; without one it has a standard input only with *stdin*.

        Raises:
            Refused: the job does not run, is another account's, or runs in a container or an engine.

        """
        command = api.SecondCommand(argv=tuple(argv), window=window, has_input=stdin)
        return second_command.begun(self._connection, job, command)

    def extend(self, job: int | str, time: str | float) -> Job:
        """Raise the time limit of a job that waits or runs by *time*, and return the job. Its run goes on at once.

        *time* is seconds, or a duration such as ``"2h"``.

        Raises:
            Refused: the job has no time limit, has ended, is an array or a member of one, or is another's; or it runs,
                and its owner adds more than the site permits.
            BadRequest: the time is malformed, or the new limit is out of range.

        """
        return edit.extend(self._connection, job, time)

    def tag(self, job: int | str, *words: str, remove: bool = False) -> None:
        """Add *words* to the tags of a job, or remove them. The job may have ended.

        Unclaimed members of an array have the tags that the array was submitted with.

        Raises:
            BadRequest: a word is not a tag, there are too many tags, or the job is a member that waits with its array.

        """
        changes.tag(self._connection, job, words, remove=remove)

    def note(self, job: int | str, text: str) -> None:
        """Set the note of a job to *text*; an empty text removes the note. The job may have ended."""
        changes.note(self._connection, job, text)
