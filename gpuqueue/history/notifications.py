"""The queue of notifications in the history database, and their outcomes.

The rows of a job's notifications are written with the job, in the transaction that moves the cursor. Therefore no
notification is sent about an end that is not in the history database, and none is lost. See docs/internals/adr/0009.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import sqlalchemy as sa

from gpuqueue.codec.request import decode_spec
from gpuqueue.errors import Unreadable
from gpuqueue.history.tables import jobs, notifications
from gpuqueue.lazy.frozen import dataclass
from gpuqueue.model.notification import FIRST_BEFORE_END, Outcome, target_number

if TYPE_CHECKING:
    from datetime import datetime

#: Most undelivered notifications that are read. Each needs the spec of its job, and a site may have a million.
MAX_READ = 10_000


@dataclass(frozen=True, kw_only=True, slots=True)
class Due:
    """A notification about an ended job or a marked run, to be sent now. ``tries`` counts the tries begun before."""

    job_id: int
    number: int
    tries: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Undelivered:
    """A notification that is late or was given up."""

    job_id: int
    #: Why the last try failed, None if there was none.
    trouble: str | None
    #: Whether it goes to a URL that the job names, and to no target of the site.
    is_to_url: bool


def due(connection: sa.Connection, *, now: datetime, most: int) -> list[Due]:
    """Return up to *most* notifications that may be sent at *now*, ordered by the ends of their jobs.

    Those about marked runs are sent before the end.
    """
    columns = notifications.c.job_id, notifications.c.number, notifications.c.tries
    is_time = sa.or_(jobs.c.ended_at.is_not(None), notifications.c.number >= FIRST_BEFORE_END)
    wanted = _unsent().where(is_time, sa.or_(notifications.c.next_at.is_(None), notifications.c.next_at <= now))
    wanted = wanted.with_only_columns(*columns).order_by(jobs.c.ended_at, *columns[:2]).limit(most)
    return [Due(job_id=row.job_id, number=row.number, tries=row.tries) for row in connection.execute(wanted)]


def take(connection: sa.Connection, wanted: Due, *, until: datetime) -> bool:
    """Begin a try of *wanted*, exclusively until *until*. Return False if another sender was faster."""
    one = _the(wanted).where(notifications.c.tries == wanted.tries)
    return connection.execute(one.values(tries=wanted.tries + 1, next_at=until)).rowcount == 1


def settle(
    connection: sa.Connection, taken: Due, outcome: Outcome, *, at: datetime, trouble: str | None = None
) -> None:
    """Record the final outcome of a notification."""
    connection.execute(_the(taken).values(outcome=outcome.value, at=at, next_at=None, trouble=trouble))


def put_off(connection: sa.Connection, taken: Due, *, until: datetime, trouble: str | None) -> None:
    """Record that a try failed because of *trouble*, and when the next one may begin."""
    connection.execute(_the(taken).values(next_at=until, trouble=trouble))


def unreported(connection: sa.Connection, *, before: datetime) -> list[Undelivered]:
    """Return the first ``MAX_READ`` unsent notifications of jobs that ended before *before*, ordered by these ends."""
    late = _unsent().where(jobs.c.ended_at < before).order_by(jobs.c.ended_at)
    return _undelivered(connection, late)


def given_up(connection: sa.Connection, *, since: datetime) -> list[Undelivered]:
    """Return the last ``MAX_READ`` notifications given up since *since*, the last one first."""
    gone = (notifications.c.outcome == Outcome.GIVEN_UP.value) & (notifications.c.at >= since)
    return _undelivered(connection, _with_jobs().where(gone).order_by(notifications.c.at.desc()))


def _undelivered(connection: sa.Connection, wanted: sa.Select[tuple[int, ...]]) -> list[Undelivered]:
    columns = notifications.c.job_id, notifications.c.number, notifications.c.trouble, jobs.c.spec
    return [
        Undelivered(job_id=row.job_id, trouble=row.trouble, is_to_url=_is_to_url(row.spec, row.number))
        for row in connection.execute(wanted.with_only_columns(*columns).limit(MAX_READ))
    ]


def _is_to_url(payload: str, number: int) -> bool:
    """Return whether a notification goes to a URL that its job names, and to no target of the site."""
    try:
        return decode_spec(payload).notifications[target_number(number)].target is None
    except (Unreadable, IndexError):
        return False


def _unsent() -> sa.Select[tuple[int, ...]]:
    """Return a query for the unsent notifications, joined with their jobs."""
    return _with_jobs().where(notifications.c.outcome.is_(None))


def _with_jobs() -> sa.Select[tuple[int, ...]]:
    return sa.select(notifications).select_from(notifications.join(jobs, jobs.c.id == notifications.c.job_id))


def _the(one: Due) -> sa.Update:
    """Return an update of *one*, unless it has an outcome: a slow sender must not undo a later sender's outcome."""
    here = (
        notifications.c.job_id == one.job_id,
        notifications.c.number == one.number,
        notifications.c.outcome.is_(None),
    )
    return sa.update(notifications).where(*here)
