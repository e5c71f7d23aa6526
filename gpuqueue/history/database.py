"""The package's interface: one object with all operations on the history database."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import sqlalchemy as sa

from gpuqueue.errors import HistoryUnreachable
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


class HistoryDatabase:
    """The history of jobs and runs, in a SQL database. Threads may share an instance.

    Every method raises ``HistoryUnreachable`` when the database does not answer or does not have the tables of this
    version. A method that writes has changed nothing then.
    """

    def __init__(self, url: str) -> None:
        """Create the engine. It does not connect yet.

        Raises:
            HistoryUnreachable: *url* is no database URL, or the driver for it is not installed.

        """
        self._engine = open_engine(url)
        self._checked = False

    def cursor(self) -> Cursor | None:
        """Return the cursor in the outbox, or None if no event was ever read."""
        with self._reading() as connection:
            return queries.cursor(connection)

    def apply(self, events: Sequence[Event], *, expected: Cursor | None, epoch: str) -> bool:
        """Write *events* of the store with *epoch*, if the cursor is still at *expected*.

        Returns:
            False if another recorder was faster; nothing is changed then.
        """
        with self._trusted():
            return writer.apply(self._engine, events, expected=expected, epoch=epoch)

    def set_aside(self, event: Event, why: str, *, expected: Cursor | None, epoch: str) -> bool:
        """Store *event* as a dead letter with the reason *why*, and move the cursor as ``apply`` does.

        Returns:
            False if another recorder was faster; nothing is changed then.
        """
        with self._trusted():
            return writer.set_aside(self._engine, event, why, expected=expected, epoch=epoch)

    def turn_to(self, epoch: str, *, expected: Cursor | None) -> bool:
        """Read only the store with *epoch* from now on, if the cursor is still at *expected*.

        A recorder that holds events of the previous store can no longer write them.

        Returns:
            False if another process moved the cursor; nothing is changed then.
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
        """Record again the jobs that the store still knows. See ``refill.py``.

        Returns:
            The number of jobs. None if the cursor is not at *expected*; nothing is changed then.
        """
        with self._trusted():
            return refill.rebase(self._engine, pages, expected=expected, to=to, last_given=last_given, at=at)

    def survivors(self) -> Iterator[list[Survivor]]:
        """Yield all jobs that have not ended, in pages, in the order of their ids.

        A job whose request cannot be read is included.
        """
        with self._reading() as connection:
            yield from queries.survivors(connection)

    def history(self, query: HistoryQuery) -> list[Record]:
        """Return the jobs that match *query*, with all their runs, in the order of the query.

        Raises:
            JobNotFound: the query continues after a job that is not in the history database.

        """
        with self._reading() as connection:
            return queries.history(connection, query)

    def statistics(self, *, by: By, since: datetime, until: datetime, user: str | None = None) -> Statistics:
        """Return statistics of the runs from *since* to *until*, grouped, for *user* or for all users."""
        with self._reading() as connection:
            return statistics.statistics(connection, by=by, since=since, until=until, user=user)

    def course(self, *, since: datetime, until: datetime, count: int, user: str | None = None) -> Course:
        """Return the figures of *count* equal steps from *since* to *until*."""
        with self._reading() as connection:
            return statistics.course(connection, since=since, until=until, count=count, user=user)

    def get(self, job_id: int) -> Record | None:
        """Return the job with all its runs, or None if it is not in the history database."""
        with self._reading() as connection:
            return queries.get(connection, job_id)

    def events(self, job_id: int) -> tuple[Event, ...]:
        """Return the events of the job in order. ``fields`` omits the payloads that the job's record contains."""
        with self._reading() as connection:
            return queries.events(connection, job_id)

    def states(self, job_ids: Collection[int]) -> dict[int, JobState]:
        """Return the state of each of *job_ids* that is in the history database."""
        with self._reading() as connection:
            return queries.states(connection, job_ids)

    def members_among(self, job_ids: Collection[int]) -> list[Member]:
        """Return those of *job_ids* that the history database has as members of arrays."""
        with self._reading() as connection:
            return members.among(connection, job_ids)

    def never_began(self, array_id: int) -> Indexes:
        """Return the members of an array that were cancelled before a device took them. They have no rows.

        Raises:
            Unreadable: the request of the array cannot be read.

        """
        with self._reading() as connection:
            return members.never_began(connection, array_id)

    def durations_s(self, *, user: str, name: str) -> list[float]:
        """Return the durations of *user*'s newest runs of jobs called *name*, in seconds."""
        with self._reading() as connection:
            return durations.durations_s(connection, user=user, name=name)

    def due_notifications(self, *, now: datetime, most: int) -> list[Due]:
        """Return up to *most* notifications of ended jobs that may be sent at *now*, the oldest ends first."""
        with self._reading() as connection:
            return notifications.due(connection, now=now, most=most)

    def take_notification(self, due: Due, *, until: datetime) -> bool:
        """Take *due* for sending, exclusively until *until*. Return False if another sender was faster."""
        with self._writing() as connection:
            return notifications.take(connection, due, until=until)

    def settle_notification(self, due: Due, outcome: Outcome, *, at: datetime, trouble: str | None = None) -> None:
        """Record the final outcome of a notification."""
        with self._writing() as connection:
            notifications.settle(connection, due, outcome, at=at, trouble=trouble)

    def put_off_notification(self, due: Due, *, until: datetime, trouble: str | None) -> None:
        """Record why a notification could not be sent, and that it is retried at *until*."""
        with self._writing() as connection:
            notifications.put_off(connection, due, until=until, trouble=trouble)

    def max_job_id(self) -> int | None:
        """Return the highest job id in the history database, or None if it has none."""
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
        """Check the tables before their use. After an error check again: another database may answer then."""
        self._check()
        try:
            yield
        except HistoryUnreachable:
            self._checked = False
            raise

    def _check(self) -> None:
        """Check that the tables are of this version. A good result is valid until the next error."""
        if not self._checked:
            with reading(self._engine) as connection:
                check_revision(connection)
            self._checked = True
