"""The ``Client`` class: one object with a group of functions for each kind of thing."""

from __future__ import annotations

from functools import cached_property
from types import TracebackType
from typing import TYPE_CHECKING

from gpuqueue.client.connection import Connection
from gpuqueue.errors import Refused
from gpuqueue.model.job_spec import Account
from gpuqueue.settings.settings import Settings

if TYPE_CHECKING:
    from typing import TypeVar

    from gpuqueue.client.access import Access
    from gpuqueue.client.devices import Devices
    from gpuqueue.client.estimate import Estimator
    from gpuqueue.client.fetching import RunFiles
    from gpuqueue.client.history import History
    from gpuqueue.client.jobs import Jobs
    from gpuqueue.client.logs import Logs
    from gpuqueue.client.remote.link import Link
    from gpuqueue.client.repeating import Cron
    from gpuqueue.client.stored_snapshots import Snapshots
    from gpuqueue.history.database import HistoryDatabase
    from gpuqueue.queue.jobqueue import JobQueue

    _Self = TypeVar("_Self", bound="Client")


class Client:
    """A client of one queue, for one user. Every call may raise an error of the kind Unreachable.

    It uses the HTTP service that the settings name (``url``), or else the store and the history directly. The groups
    have the same methods and errors either way. The history is asked through the server of this account's own queue, if
    one answers (docs/internals/adr/0022). Each group is imported on first use, because a command needs one or two of
    them. *connection* is for the service itself, which acts for others.
    """

    def __init__(self, settings: Settings | None = None, *, connection: Connection | None = None) -> None:
        self.settings = connection.settings if connection is not None else settings or Settings.load()
        self._link: Link | None = None
        url = self.settings.client_url if connection is None else None
        if url is not None:
            from gpuqueue.client.remote.link import Link  # noqa: PLC0415 - lazy import for startup time

            self._link = Link(self.settings, url)
        self._connection = connection or Connection(self.settings)
        #: Whether this is no client of the service itself.
        self._is_for_commands = connection is None
        #: The server of this account's own queue, once the history has been asked for and it answered.
        self._own_server: Link | None = None

    @property
    def service(self) -> str | None:
        """Return the URL of the service that this client uses, or None if it uses the store directly."""
        return None if self._link is None else self._link.url

    @cached_property
    def jobs(self) -> Jobs:
        """Submits, reads, selects, changes and awaits jobs."""
        if self._link is not None:
            from gpuqueue.client.remote.jobs import RemoteJobs  # noqa: PLC0415 - lazy import for startup time

            return RemoteJobs(self._link)
        from gpuqueue.client.jobs import Jobs  # noqa: PLC0415 - lazy import for startup time

        return Jobs(self._connection)

    @cached_property
    def history(self) -> History:
        """Searches recorded jobs and computes statistics."""
        link = self._link or self._link_to_own_server()
        if link is not None:
            from gpuqueue.client.remote.history import RemoteHistory  # noqa: PLC0415 - lazy import for startup time

            return RemoteHistory(link)
        from gpuqueue.client.history import History  # noqa: PLC0415 - lazy import for startup time

        return History(self._connection)

    @cached_property
    def cron(self) -> Cron:
        """Adds, lists and changes repeating jobs."""
        link = self._link or self._link_to_own_server()
        if link is not None:
            from gpuqueue.client.remote.repeating import RemoteCron  # noqa: PLC0415 - lazy import for startup time

            return RemoteCron(link)
        from gpuqueue.client.repeating import Cron  # noqa: PLC0415 - lazy import for startup time

        return Cron(self._connection)

    @cached_property
    def devices(self) -> Devices:
        """Lists, drains and resumes devices, and reads the limits of their use."""
        if self._link is not None:
            from gpuqueue.client.remote.devices import RemoteDevices  # noqa: PLC0415 - lazy import for startup time

            return RemoteDevices(self._link)
        from gpuqueue.client.devices import Devices  # noqa: PLC0415 - lazy import for startup time

        return Devices(self._connection)

    @cached_property
    def logs(self) -> Logs:
        """Reads the logs of jobs: those on this machine, or those that the service can read."""
        if self._link is not None:
            from gpuqueue.client.remote.logs import RemoteLogs  # noqa: PLC0415 - lazy import for startup time

            return RemoteLogs(self._link)
        from gpuqueue.client.logs import Logs  # noqa: PLC0415 - lazy import for startup time

        return Logs(self._connection)

    @cached_property
    def files(self) -> RunFiles:
        """Lists and fetches the files of jobs whose code travelled: those on this machine, or those of the service."""
        if self._link is not None:
            from gpuqueue.client.remote.files import RemoteFiles  # noqa: PLC0415 - lazy import for startup time

            return RemoteFiles(self._link)
        from gpuqueue.client.files import Files  # noqa: PLC0415 - lazy import for startup time

        return Files(self._connection)

    @cached_property
    def snapshots(self) -> Snapshots:
        """Lists and deletes the snapshots of code of this account, and says how one differs from its commit."""
        if self._link is not None:
            from gpuqueue.client.remote.stored_snapshots import (  # noqa: PLC0415 - lazy import for startup time
                RemoteSnapshots,
            )

            return RemoteSnapshots(self._link)
        from gpuqueue.client.stored_snapshots import Snapshots  # noqa: PLC0415 - lazy import for startup time

        return Snapshots(self._connection)

    @cached_property
    def access(self) -> Access:
        """Who the caller is, access tokens, and the audit log."""
        if self._link is not None:
            from gpuqueue.client.remote.access import RemoteAccess  # noqa: PLC0415 - lazy import for startup time

            return RemoteAccess(self._link)
        from gpuqueue.client.access import Access  # noqa: PLC0415 - lazy import for startup time

        return Access(self._connection)

    @cached_property
    def estimate(self) -> Estimator:
        """Estimates the memory of a script: ``client.estimate("train.py")``."""
        from gpuqueue.client.estimate import Estimator  # noqa: PLC0415 - lazy import for startup time

        return Estimator(self.account, self.history, self.devices, self.settings.headroom_bytes)

    @property
    def account(self) -> Account:
        """The account of this process; through a service, the one that the service sees."""
        if self._link is None or self._link.url.startswith("unix:"):
            return self._connection.account
        me = self.access.whoami()
        return Account(name=me.account, uid=-1 if me.uid is None else me.uid, host=self.settings.host)

    @property
    def queue(self) -> JobQueue:
        """The queue, for the programs of a site. Connected on first use.

        Raises:
            Refused: this client uses a service, which lets nobody reach the store.

        """
        self._must_be_direct("store")
        return self._connection.queue

    @property
    def database(self) -> HistoryDatabase:
        """The history database, for the programs of a site. Connected on first use.

        Raises:
            Refused: this client uses a service, which lets nobody reach the database.

        """
        self._must_be_direct("history database")
        return self._connection.database

    def _link_to_own_server(self) -> Link | None:
        """Return a link to the server of this account's own queue, or None if none answers.

        The server has SQLAlchemy in memory, whose import takes most of the time of a question to the history.
        """
        path = self.settings.server_socket if self._is_for_commands else None
        if path is None:
            return None
        from gpuqueue.client.remote.http import answers  # noqa: PLC0415 - lazy import for startup time
        from gpuqueue.client.remote.link import Link  # noqa: PLC0415 - lazy import for startup time

        if answers(path):
            self._own_server = Link(self.settings, f"unix://{str(path).replace('%', '%25')}")
        return self._own_server

    def _must_be_direct(self, what: str) -> None:
        if self._link is not None:
            raise Refused(f"the {what} cannot be reached through the service at {self._link.url}")

    def close(self) -> None:
        """Close the connections."""
        for link in (self._link, self._own_server):
            if link is not None:
                link.close()
        self._connection.close()

    def __enter__(self: _Self) -> _Self:  # noqa: PYI019 - typing.Self needs Python 3.11
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
