"""The ``Client`` class: one object with a group of functions for each kind of thing."""

from __future__ import annotations

from functools import cached_property
from types import TracebackType
from typing import TYPE_CHECKING

from gpuqueue.client.connection import Connection
from gpuqueue.model.job import Account
from gpuqueue.settings.settings import Settings

if TYPE_CHECKING:
    from typing import TypeVar

    from gpuqueue.client.access import Access
    from gpuqueue.client.devices import Devices
    from gpuqueue.client.estimate import Estimator
    from gpuqueue.client.history import History
    from gpuqueue.client.jobs import Jobs
    from gpuqueue.client.logs import Logs
    from gpuqueue.history.database import HistoryDatabase
    from gpuqueue.queue.jobqueue import JobQueue

    _Self = TypeVar("_Self", bound="Client")


class Client:
    """A client of one queue, for one user. Every call may raise StoreUnreachable or HistoryUnreachable.

    Each group is imported on first use, because a command needs one or two of them.
    """

    def __init__(self, settings: Settings | None = None) -> None:
        self._connection = Connection(settings)
        self.settings = self._connection.settings

    @cached_property
    def jobs(self) -> Jobs:
        """Submits, reads, selects, changes and awaits jobs."""
        from gpuqueue.client.jobs import Jobs  # noqa: PLC0415 - lazy import for startup time

        return Jobs(self._connection)

    @cached_property
    def history(self) -> History:
        """Searches recorded jobs and computes statistics."""
        from gpuqueue.client.history import History  # noqa: PLC0415 - lazy import for startup time

        return History(self._connection)

    @cached_property
    def devices(self) -> Devices:
        """Lists, drains and resumes devices, and reads the limits of their use."""
        from gpuqueue.client.devices import Devices  # noqa: PLC0415 - lazy import for startup time

        return Devices(self._connection)

    @cached_property
    def logs(self) -> Logs:
        """Reads the logs of jobs that are on this machine."""
        from gpuqueue.client.logs import Logs  # noqa: PLC0415 - lazy import for startup time

        return Logs(self._connection)

    @cached_property
    def access(self) -> Access:
        """Who the caller is, access tokens, and the audit log."""
        from gpuqueue.client.access import Access  # noqa: PLC0415 - lazy import for startup time

        return Access(self._connection)

    @cached_property
    def estimate(self) -> Estimator:
        """Estimates the memory of a script: ``client.estimate("train.py")``."""
        from gpuqueue.client.estimate import Estimator  # noqa: PLC0415 - lazy import for startup time

        return Estimator(self.account, self.history)

    @property
    def account(self) -> Account:
        """The account of this process."""
        return self._connection.account

    @property
    def queue(self) -> JobQueue:
        """The queue, for the programs of a site. Connected on first use."""
        return self._connection.queue

    @property
    def database(self) -> HistoryDatabase:
        """The history database, for the programs of a site. Connected on first use."""
        return self._connection.database

    def close(self) -> None:
        """Close the connections."""
        self._connection.close()

    def __enter__(self: _Self) -> _Self:  # noqa: PYI019 - typing.Self needs Python 3.11
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
