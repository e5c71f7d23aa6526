"""The face of the room: one object for everything that is asked of the book."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import sqlalchemy as sa

from gpuqueue.errors import BookUnreachable
from gpuqueue.history import durations, members, notifications, queries, refill, statistics, writer
from gpuqueue.history.connect import check_revision, open_engine, reading, writing

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Sequence
    from datetime import datetime

    from gpuqueue.history.notifications import Due
    from gpuqueue.model.array import Indexes, Member
    from gpuqueue.model.event import Cursor, Event
    from gpuqueue.model.history_query import HistoryQuery
    from gpuqueue.model.job import JobState
    from gpuqueue.model.notification import Outcome
    from gpuqueue.model.run import Record, Survivor
    from gpuqueue.model.statistics import By, Course, Statistics


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

    def apply(self, events: Sequence[Event], *, expected: Cursor | None, epoch: str) -> bool:
        """Write *events* of the store of *epoch* down, if the cursor still stands at *expected*.

        Returns:
            False, and nothing is changed, if another recorder was faster.

        Raises:
            BookUnreachable: see the class; nothing was changed.

        """
        with self._trusted():
            return writer.apply(self._engine, events, expected=expected, epoch=epoch)

    def set_aside(self, event: Event, why: str, *, expected: Cursor | None, epoch: str) -> bool:
        """Keep *event* whole beside the tables that cannot take it because of *why*, and move on as after ``apply``.

        Returns:
            False, and nothing is changed, if another recorder was faster.

        Raises:
            BookUnreachable: see the class; nothing was changed.

        """
        with self._trusted():
            return writer.set_aside(self._engine, event, why, expected=expected, epoch=epoch)

    def turn_to(self, epoch: str, *, expected: Cursor | None) -> bool:
        """Read the store of *epoch* from now on, and no other, if the cursor still stands at *expected*.

        Whoever still holds events of the store before cannot write them any more.

        Returns:
            False, and nothing is changed, if somebody else moved the cursor.

        Raises:
            BookUnreachable: see the class; nothing was changed.

        """
        with self._trusted():
            return writer.turn_to(self._engine, epoch, expected=expected)

    def rebase(
        self,
        pages: Iterable[list[Survivor]],
        *,
        expected: Cursor | None,
        to: Cursor,
        last_given: int,
        at: datetime,
    ) -> int | None:
        """Record again what the store still knows (see ``refill.py``); return how many jobs.

        Raises:
            BookUnreachable: see the class; nothing was changed.

        """
        with self._trusted():
            return refill.rebase(self._engine, pages, expected=expected, to=to, last_given=last_given, at=at)

    def survivors(self) -> Iterator[list[Survivor]]:
        """Yield every job that has not ended, in pages, in the order of their ids; one that cannot be read is left out.

        Raises:
            BookUnreachable: see the class.

        """
        with self._reading() as connection:
            yield from queries.survivors(connection)

    def history(self, query: HistoryQuery) -> list[Record]:
        """Return the jobs that match *query* with all their runs, in its order.

        Raises:
            BookUnreachable: see the class.
            JobNotFound: the job to go on after is not in the book.

        """
        with self._reading() as connection:
            return queries.history(connection, query)

    def statistics(self, *, by: By, since: datetime, until: datetime, user: str | None = None) -> Statistics:
        """Return what the runs from *since* to *until* come to, of *user* or of all, grouped.

        Raises:
            BookUnreachable: see the class.

        """
        with self._reading() as connection:
            return statistics.statistics(connection, by=by, since=since, until=until, user=user)

    def course(self, *, since: datetime, until: datetime, count: int, user: str | None = None) -> Course:
        """Return how the time from *since* to *until* went, in *count* equal steps.

        Raises:
            BookUnreachable: see the class.

        """
        with self._reading() as connection:
            return statistics.course(connection, since=since, until=until, count=count, user=user)

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

    def states(self, job_ids: Collection[int]) -> dict[int, JobState]:
        """Return where each of *job_ids* stands that the book knows.

        Raises:
            BookUnreachable: see the class.

        """
        with self._reading() as connection:
            return queries.states(connection, job_ids)

    def members_among(self, job_ids: Collection[int]) -> list[Member]:
        """Return those of *job_ids* that are members of arrays, as far as the book knows them.

        Raises:
            BookUnreachable: see the class.

        """
        with self._reading() as connection:
            return members.among(connection, job_ids)

    def never_began(self, array_id: int) -> Indexes:
        """Return which members of an array were cancelled before any device took them: they are in no history.

        Raises:
            BookUnreachable: see the class.
            Unreadable: what the array asked for makes no sense.

        """
        with self._reading() as connection:
            return members.never_began(connection, array_id)

    def durations_s(self, *, user: str, name: str) -> list[float]:
        """Return how long *user*'s newest runs of jobs called *name* took, in seconds.

        Raises:
            BookUnreachable: see the class.

        """
        with self._reading() as connection:
            return durations.durations_s(connection, user=user, name=name)

    def due_notices(self, *, now: datetime, most: int) -> list[Due]:
        """Return up to *most* messages about ended jobs that may be sent at *now*, the oldest ends first.

        Raises:
            BookUnreachable: see the class.

        """
        with self._reading() as connection:
            return notifications.due(connection, now=now, most=most)

    def take_notice(self, due: Due, *, until: datetime) -> bool:
        """Begin to send *due*, which nobody else does before *until*; return False if somebody was faster.

        Raises:
            BookUnreachable: see the class; nothing was changed.

        """
        with self._writing() as connection:
            return notifications.take(connection, due, until=until)

    def settle_notice(self, due: Due, outcome: Outcome, *, at: datetime, trouble: str | None = None) -> None:
        """Note what became of a message for good.

        Raises:
            BookUnreachable: see the class; nothing was changed.

        """
        with self._writing() as connection:
            notifications.settle(connection, due, outcome, at=at, trouble=trouble)

    def put_off_notice(self, due: Due, *, until: datetime, trouble: str | None) -> None:
        """Note why a message could not be sent, and that it is tried again at *until*.

        Raises:
            BookUnreachable: see the class; nothing was changed.

        """
        with self._writing() as connection:
            notifications.put_off(connection, due, until=until, trouble=trouble)

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
        with self._trusted(), reading(self._engine) as connection:
            yield connection

    @contextmanager
    def _writing(self) -> Iterator[sa.Connection]:
        with self._trusted(), writing(self._engine) as connection:
            check_revision(connection)
            yield connection

    @contextmanager
    def _trusted(self) -> Iterator[None]:
        """Use the tables, once they are known to be ours; after any trouble it may be another database that answers."""
        self._check()
        try:
            yield
        except BookUnreachable:
            self._checked = False
            raise

    def _check(self) -> None:
        """Refuse tables of another version. Asked until the answer is good, and then not before the next trouble."""
        if not self._checked:
            with reading(self._engine) as connection:
                check_revision(connection)
            self._checked = True
