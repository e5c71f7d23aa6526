"""The groups of functions of a client, as interfaces: each has a direct implementation and one over the service.

The group ``client.jobs`` is in job_group.py. The direct implementations (``jobs.py`` with ``job_reads.py``,
``history.py``, ``devices.py``, ``logs.py``, ``files.py``) describe arguments and errors. A test
(``tests/contract/test_client_connections.py``) holds both implementations to these methods.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from gpuqueue.client.log_places import Tail
    from gpuqueue.client.terminal import JobTerminal
    from gpuqueue.errors import Unreachable
    from gpuqueue.model.access import Me
    from gpuqueue.model.access_token import AccessToken, MadeToken, TokenRequest
    from gpuqueue.model.api import SignInCode
    from gpuqueue.model.array import Indexes
    from gpuqueue.model.audit import AuditEntry
    from gpuqueue.model.code_snapshot import DeletedSnapshot, StoredSnapshot
    from gpuqueue.model.history_query import FoldedRow, Sort
    from gpuqueue.model.job import Job, JobState
    from gpuqueue.model.learning_report import LearningReport
    from gpuqueue.model.limits import LimitsInUse
    from gpuqueue.model.progress import Progress
    from gpuqueue.model.run import EndingKind, Record, Run
    from gpuqueue.model.statistics import By, Course, Statistics
    from gpuqueue.queue.lease import DeviceStatus


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

    def learning(
        self,
        *,
        since: str | datetime | None = None,
        until: str | datetime | None = None,
        user: str | None = None,
    ) -> LearningReport:
        """Return how learned memory would have done over the jobs that ended in a period, beside simple rules."""


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

    def tail(self, *, stderr: bool = False, warn: Callable[[str], None] | None = None) -> Tail:
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

    def sign_in_code(self) -> SignInCode:
        """Make a one-time code with which a browser signs in as the caller."""

    def audit(
        self,
        *,
        since: str | datetime | None = None,
        user: str | None = None,
        action: str | None = None,
        limit: int = 100,
    ) -> Sequence[AuditEntry]:
        """Return the newest *limit* entries of the audit log."""


class SnapshotsGroup(Protocol):
    """The group ``client.snapshots``."""

    def list(self) -> Sequence[StoredSnapshot]:
        """Return the snapshots of this account, the last used first."""

    def delete(self, address: str) -> DeletedSnapshot:
        """Delete a snapshot of this account that no job needs. The first digits of the address are enough."""

    def diff(self, job: int | str) -> bytes:
        """Return how the code of a job differs from the commit that it was taken from."""
