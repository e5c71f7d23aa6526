"""The face of the room: one object for everything that is asked of the book."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import sqlalchemy as sa

from gpuqueue.book import queries, writer
from gpuqueue.book.connect import open_engine, reading, shown
from gpuqueue.book.tables import REVISION
from gpuqueue.errors import BookUnreachable

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from gpuqueue.book.queries import HistoryQuery
    from gpuqueue.event import Cursor, Event
    from gpuqueue.run import Record


class Book:
    """What has happened, in a SQL database. It may be shared between threads.

    Every method raises :class:`~gpuqueue.errors.BookUnreachable` when the database does not answer or does not have
    the tables of this version.
    """

    def __init__(self, url: str) -> None:
        """Connect to nothing yet.

        Raises:
            BookUnreachable: *url* is no database URL, or the driver for it is not installed.

        """
        self._engine = open_engine(url)
        self._checked = False

    def cursor(self) -> Cursor | None:
        """Return how far the outbox is read, or None if nothing was ever read.

        Raises:
            BookUnreachable: see the class.

        """
        with self._reading() as connection:
            return queries.cursor(connection)

    def apply(self, events: Sequence[Event], *, expected: Cursor | None, epoch: str, bare: bool = False) -> bool:
        """Write *events* of the store of *epoch* down, if the cursor still stands at *expected*.

        With *bare* only that they were: for an event whose content no row can take.

        Returns:
            False, and nothing is changed, if another recorder was faster.

        Raises:
            BookUnreachable: see the class; nothing was changed.

        """
        self._check()
        return writer.apply(self._engine, events, expected=expected, epoch=epoch, bare=bare)

    def history(self, query: HistoryQuery) -> list[Record]:
        """Return the jobs that match *query* with all their runs, newest first.

        Raises:
            BookUnreachable: see the class.

        """
        with self._reading() as connection:
            return queries.history(connection, query)

    def get(self, job_id: int) -> Record | None:
        """Return the job with all its runs, or None if the book does not know it.

        Raises:
            BookUnreachable: see the class.

        """
        with self._reading() as connection:
            return queries.get(connection, job_id)

    def events(self, job_id: int) -> tuple[Event, ...]:
        """Return every step of the job in order; payloads that are in its record are left out of ``fields``.

        Raises:
            BookUnreachable: see the class.

        """
        with self._reading() as connection:
            return queries.events(connection, job_id)

    def max_job_id(self) -> int | None:
        """Return the highest job id that the book has seen, or None if it has seen none.

        Raises:
            BookUnreachable: see the class.

        """
        with self._reading() as connection:
            return queries.max_job_id(connection)

    def close(self) -> None:
        """Close every connection."""
        self._engine.dispose()

    @contextmanager
    def _reading(self) -> Iterator[sa.Connection]:
        self._check()
        with reading(self._engine) as connection:
            yield connection

    def _check(self) -> None:
        """Refuse tables of another version. Asked until the answer is good, then never again."""
        if self._checked:
            return
        with reading(self._engine) as connection:
            revision = connection.scalar(sa.text("SELECT version_num FROM alembic_version"))
        where = f"the book at {shown(self._engine.url)}"
        if revision is None:
            raise BookUnreachable(f"{where} has no tables yet: run gpuqueue up, or gpuqueue db upgrade")
        if revision < REVISION:
            raise BookUnreachable(f"{where} is older ({revision}) than this gpuqueue: run gpuqueue db upgrade")
        if revision > REVISION:
            raise BookUnreachable(f"{where} is newer ({revision}) than this gpuqueue: upgrade gpuqueue")
        self._checked = True
