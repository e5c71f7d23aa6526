"""The two connections of a client, each opened on first use. A submit never touches SQL."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from gpuqueue.errors import HistoryUnreachable
from gpuqueue.model.job_spec import Account
from gpuqueue.settings.settings import Settings
from gpuqueue.system.account import SUPERUSER, current_account, is_superuser

if TYPE_CHECKING:
    from gpuqueue.client.past_runs import PastRuns
    from gpuqueue.client.signing import Signer
    from gpuqueue.history.database import HistoryDatabase
    from gpuqueue.model.run import Record
    from gpuqueue.queue.jobqueue import JobQueue
    from gpuqueue.queue.wakeup import Subscriber


class Connection:
    """The store and the history of one user's settings. Every call may raise StoreUnreachable or HistoryUnreachable."""

    def __init__(
        self,
        settings: Settings | None = None,
        *,
        database: HistoryDatabase | None = None,
        signer: Signer | None = None,
    ) -> None:
        self.settings = settings or Settings.load()
        #: Signs the jobs that are submitted and edited here. Only a service in system mode has one.
        self.signer = signer
        self._queue: JobQueue | None = None
        self._database = database
        self._past_runs: PastRuns | None = None
        self._account: Account | None = None
        self._user: str | None = None

    def acting_for(self, account: Account, user: str) -> Connection:
        """Return a connection over the same sockets that submits as *account* and asks for changes as *user*.

        The service uses it: it has authenticated the account. *user* is SUPERUSER for an admin.
        """
        other = Connection(self.settings, signer=self.signer)
        other._queue, other._database, other._past_runs = self.queue, self.database, self.past_runs
        other._account, other._user = account, user
        return other

    @property
    def queue(self) -> JobQueue:
        """Return the queue, connected on first use."""
        if self._queue is None:
            from gpuqueue.queue.connect import connect_at_once  # noqa: PLC0415 - lazy import for startup time
            from gpuqueue.queue.jobqueue import JobQueue  # noqa: PLC0415 - lazy import for startup time

            self._queue = JobQueue.of(self.settings, by=connect_at_once)
        return self._queue

    @property
    def database(self) -> HistoryDatabase:
        """Return the history, connected on first use.

        Raises:
            HistoryUnreachable: this host has none, because it has joined a service.

        """
        if self._database is None:
            if not self.settings.has_history:
                raise HistoryUnreachable("this host records no history (setting record)", "ask the service")
            from gpuqueue.history.database import HistoryDatabase  # noqa: PLC0415 - lazy import: sqlalchemy is slow to import

            self._database = HistoryDatabase(self.settings.database_url)
        return self._database

    @property
    def past_runs(self) -> PastRuns:
        """Return the earlier runs of programs."""
        if self._past_runs is None:
            from gpuqueue.client.past_runs import PastRuns  # noqa: PLC0415 - lazy import for startup time

            self._past_runs = PastRuns(
                self.settings.database_url, lambda: self.database, is_open=lambda: self._database is not None
            )
        return self._past_runs

    def recorded(self, job_id: int) -> Record | None:
        """Return a job's record from the history, or None. Uses the SQLite reader, which imports fast, if it can."""
        if self._database is None:
            from gpuqueue.history import sqlite_reader  # noqa: PLC0415 - lazy import for startup time

            with suppress(sqlite_reader.Shut):
                return sqlite_reader.record(self.settings.database_url, job_id)
        return self.database.get(job_id)

    def ends(self) -> Subscriber:
        """Return a subscription to the ends of jobs, to be used as a context manager."""
        from gpuqueue.queue import keys  # noqa: PLC0415 - lazy import for startup time
        from gpuqueue.queue.connect import connect_at_once  # noqa: PLC0415 - lazy import for startup time
        from gpuqueue.queue.wakeup import Subscriber  # noqa: PLC0415 - lazy import for startup time

        return Subscriber(self.settings.redis_url, keys.END, by=connect_at_once, why_away=self.queue.store.why_away)

    @property
    def account(self) -> Account:
        """Return the account of this process. docs/explanation/identity.md explains what the account proves."""
        return self._account or current_account(self.settings.host)

    @property
    def user(self) -> str:
        """Return the user name under which changes are requested; SUPERUSER for root on the machine of the store.

        Over a network anybody can be root of some machine, so there ``root`` is an account like any other.
        """
        if self._user is not None:
            return self._user
        account, is_on_this_machine = self.account, self.settings.store_is_here
        return SUPERUSER if is_on_this_machine and is_superuser(account) else account.name

    def close(self) -> None:
        """Close the connections."""
        if self._queue is not None:
            self._queue.close()
        if self._database is not None:
            self._database.close()
