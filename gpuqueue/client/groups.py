"""The groups of functions of a client, as interfaces: each has a direct implementation and one over the service.

The direct implementations (``jobs.py``, ``history.py``, ``devices.py``, ``logs.py``) describe arguments and errors. A
test (``tests/contract/test_client_connections.py``) holds both implementations to these methods.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from gpuqueue.client.fields import from_fields, then_from_fields
from gpuqueue.lazy.imports import later

if TYPE_CHECKING:
    from gpuqueue.client.changes import Change
    from gpuqueue.client.log_places import Tail
    from gpuqueue.client.selection import Chosen, StateFilter, Which
    from gpuqueue.client.terminal import JobTerminal
    from gpuqueue.client.why import Why
    from gpuqueue.errors import Unreachable
    from gpuqueue.model import job_edit, job_request
    from gpuqueue.model.access import Me
    from gpuqueue.model.access_token import AccessToken, MadeToken, TokenRequest
    from gpuqueue.model.array import Indexes
    from gpuqueue.model.audit import AuditEntry
    from gpuqueue.model.event import Event
    from gpuqueue.model.history_query import FoldedRow, Sort
    from gpuqueue.model.job import Job, JobSpec, JobState
    from gpuqueue.model.job_edit import JobEdit
    from gpuqueue.model.job_page import Listing
    from gpuqueue.model.job_request import JobRequest
    from gpuqueue.model.limits import LimitsInUse
    from gpuqueue.model.progress import Progress
    from gpuqueue.model.run import EndingKind, Record, Run
    from gpuqueue.model.statistics import By, Course, Statistics
    from gpuqueue.queue.lease import DeviceStatus
    from gpuqueue.queue.sender import Sender
else:
    job_edit = later("gpuqueue.model.job_edit")
    job_request = later("gpuqueue.model.job_request")


class JobsGroup(Protocol):
    """The group ``client.jobs``."""

    @from_fields(lambda: job_request.JobRequest)
    def submit(self, request: JobRequest) -> Job:
        """Submit a job and return it."""

    def submit_request(self, request: JobRequest, *, found: Callable[[Job], None] | None = None) -> Job:
        """Submit *request*. *found* is called with a job that has its *dedupe* key."""

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


class HistoryGroup(Protocol):
    """The group ``client.history``."""

    def search(  # noqa: PLR0913 - one argument for each search criterion
        self,
        *,
        user: str | None = None,
        name: str | None = None,
        states: Sequence[JobState | str] = (),
        endings: Sequence[EndingKind | str] = (),
        exit_code: int | None = None,
        array: int | None = None,
        tags: Sequence[str] = (),
        since: str | datetime | None = None,
        until: str | datetime | None = None,
        device: str | None = None,
        model: str | None = None,
        host: str | None = None,
        min_peak: str | int | None = None,
        min_duration: str | float | None = None,
        max_duration: str | float | None = None,
        text: str | None = None,
        sort: Sort | str = "id",
        reverse: bool = False,
        limit: int = 50,
        before_id: int | None = None,
        after_id: int | None = None,
    ) -> list[Record]:
        """Return the first *limit* jobs that match all criteria, with their runs, in the order of *sort*."""

    def folded(self, **asked: Any) -> list[FoldedRow]:
        """Return the jobs of :meth:`search`, with the members of each array folded into one row."""

    def params(self, records: Sequence[Record]) -> dict[int, dict[str, str]]:
        """Return the values of the sweep of each of *records* that is a member of one, by the id of the job."""

    def has(self, job: int) -> bool:
        """Return whether the history has the job with this id."""

    def never_began(self, array: int) -> Indexes:
        """Return the members of an array that were cancelled before any worker claimed them."""

    def stats(
        self,
        by: By | str = "user",
        *,
        since: str | datetime | None = None,
        until: str | datetime | None = None,
        user: str | None = None,
    ) -> Statistics:
        """Return statistics of the runs in a period, grouped by user, device, host or local day of the service."""

    def course(
        self,
        *,
        since: str | datetime | None = None,
        until: str | datetime | None = None,
        steps: int = 30,
        user: str | None = None,
    ) -> Course:
        """Return statistics of a period as a time series of *steps* equal intervals."""


class DevicesGroup(Protocol):
    """The group ``client.devices``."""

    def list(self) -> list[DeviceStatus]:
        """Return all devices that workers have announced."""

    def are_known(self) -> bool:
        """Return whether any worker has announced a device."""

    def drain(self, *devices: str, reason: str = "", all_here: bool = False) -> Sequence[DeviceStatus]:
        """Drain devices and return their status. A bare index, and *all_here*, mean devices of this host."""

    def resume(self, *devices: str, all_here: bool = False) -> Sequence[DeviceStatus]:
        """Resume devices that a person drained, or that were drained after early failures; return their status."""

    def lost(self, host: str) -> Mapping[int, JobState]:
        """Declare a silent host lost: end its runs as lost, and queue their jobs again. Return the jobs' states."""

    def limits(self) -> LimitsInUse:
        """Return the limits of users, groups and pools, and the current use by users and groups."""


class LogsGroup(Protocol):
    """The group ``client.logs``."""

    def path(self, job: int | str, *, run: int | None = None) -> Path:
        """Refuse: only the direct client knows the path of a log."""

    def path_in(self, record: Record, *, run: int | None = None) -> Path:
        """Refuse, as :meth:`path` does."""

    def path_or_none(self, record: Record) -> Path | None:
        """Return None: no path is known."""

    def tail(self, *, stderr: bool = False) -> Tail:
        """Return a reader of a job's output, or of its standard error if that is separate. It has no log yet."""

    def turn(self, tail: Tail, record: Record, *, run: int | None = None) -> None:
        """Point *tail* to the log of run number *run* in *record*, by default the newest."""

    def end(self, record: Record, most_bytes: int, *, stderr: bool = False) -> bytes:
        """Return at most the last *most_bytes* of the newest run's output, or nothing if it cannot be read."""

    def progress(self, jobs: Iterable[Job], logs: Mapping[int, str] | None = None) -> dict[int, Progress]:
        """Return the progress of the running jobs of *jobs* that report it in their logs, by job id."""

    def follow(
        self,
        job: int | str,
        tail: Tail | None = None,
        *,
        held: Callable[[Job], None] | None = None,
        seen: Callable[[Job], None] | None = None,
        again: Callable[[Run], None] | None = None,
        away: Callable[[Unreachable], None] | None = None,
        whole: bool = False,
    ) -> Iterator[bytes]:
        """Yield the job's output while it is written, from its newest run through all later runs to the job's end."""

    def terminal(self, job: int | str, tail: Tail) -> JobTerminal | None:
        """Return the terminal of the running job whose log *tail* reads, or None if it has none any more."""


class AccessGroup(Protocol):
    """The group ``client.access``."""

    def whoami(self) -> Me:
        """Return who the site takes the caller for."""

    def make_token(self, wanted: TokenRequest | None = None) -> MadeToken:
        """Make an access token. Its text is in the answer and nowhere else."""

    def tokens(self, account: str | None = None, *, everybody: bool = False) -> Sequence[AccessToken]:
        """Return the caller's access tokens, the newest first."""

    def revoke_token(self, token_id: str) -> AccessToken:
        """Revoke an access token for good."""

    def audit(
        self,
        *,
        since: str | datetime | None = None,
        user: str | None = None,
        action: str | None = None,
        limit: int = 100,
    ) -> Sequence[AuditEntry]:
        """Return the newest *limit* entries of the audit log."""
