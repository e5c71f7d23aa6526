"""The two connections of a client, each made when it is first needed: a submit never touches SQL."""

from __future__ import annotations

from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, TypeVar

from gpuqueue.model.job import Account
from gpuqueue.settings.settings import Settings
from gpuqueue.system.account import ROOT, current_account

if TYPE_CHECKING:
    from gpuqueue.history.database import Book
    from gpuqueue.model.run import Record
    from gpuqueue.queue.jobqueue import JobQueue


_Self = TypeVar("_Self", bound="Connection")


class Connection:
    """A store and a book, by one user's settings. Every method may raise StoreUnreachable or BookUnreachable."""

    def __init__(self, settings: Settings | None = None) -> None:
        self.settings = settings or Settings.load()
        self._queue: JobQueue | None = None
        self._book: Book | None = None

    @property
    def queue(self) -> JobQueue:
        """Return the store's side, connected when first used."""
        if self._queue is None:
            from gpuqueue.queue.connect import connect_at_once  # noqa: PLC0415 - imports are what users wait for
            from gpuqueue.queue.jobqueue import JobQueue  # noqa: PLC0415 - as above

            self._queue = JobQueue(self.settings.redis_url, by=connect_at_once)
        return self._queue

    @property
    def book(self) -> Book:
        """Return the history's side, connected when first used."""
        if self._book is None:
            from gpuqueue.history.database import Book  # noqa: PLC0415 - as above: sqlalchemy

            self._book = Book(self.settings.database_url)
        return self._book

    def _written(self, job_id: int) -> Record | None:
        """Return what the book has of a job, None if it has nothing: by its small door where that is open."""
        if self._book is None:
            from gpuqueue.history import sqlite_reader  # noqa: PLC0415 - as above

            with suppress(sqlite_reader.Shut):
                return sqlite_reader.record(self.settings.database_url, job_id)
        return self.book.get(job_id)

    @property
    def account(self) -> Account:
        """Return who asks: the account of this process. docs/explanation/identity.md says what that proves."""
        return current_account(self.settings.host)

    @property
    def _by(self) -> str:
        """Return by which name the queue knows who asks for a change; root may change any job, whatever its name."""
        account = self.account
        return ROOT if account.uid == 0 else account.name

    def close(self) -> None:
        """Close the connections."""
        if self._queue is not None:
            self._queue.close()
        if self._book is not None:
            self._book.close()

    def __enter__(self: _Self) -> _Self:  # noqa: PYI019 - typing.Self is of 3.11
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
