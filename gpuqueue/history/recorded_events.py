"""Reads what was recorded since the last read, for counters. Each read takes a bounded number of events, in order."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

import sqlalchemy as sa

from gpuqueue.history import queries
from gpuqueue.history.tables import job_events, jobs, runs
from gpuqueue.lazy.frozen import dataclass
from gpuqueue.model.event import Act, Cursor, place
from gpuqueue.model.run import EndingKind, StartKind

if TYPE_CHECKING:
    from collections.abc import Sequence

#: The events that are counted.
ACTS = (Act.SUBMIT, Act.CLAIM, Act.RELEASE_CLAIM, Act.STARTED, Act.PREEMPT, Act.FINISH, Act.LOSE)
#: Numbers of event ids from here on belong to events that a rebuild has written again (refill.py).
_AGAIN = 10**9


@dataclass(frozen=True, kw_only=True, slots=True)
class RecordedEvent:
    """An event with what its job and its run have now. ``wait_s`` is known for the first start of a job."""

    act: Act
    start_kind: StartKind | None = None
    wait_s: float | None = None
    ending: EndingKind | None = None
    exit_code: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Position:
    """How far a reader has read. ``seen`` are the ids of the last millisecond, which may have more events later."""

    cursor: Cursor
    seen: frozenset[str] = frozenset()


def position(connection: sa.Connection) -> Position:
    """Return the position behind all recorded events."""
    cursor = queries.cursor(connection) or Cursor(epoch="")
    seen = connection.scalars(sa.select(job_events.c.event_id).where(*_after(cursor))) if cursor.epoch else ()
    return Position(cursor=cursor, seen=frozenset(seen))


def recorded_events(
    connection: sa.Connection, after: Position, most: int
) -> tuple[Sequence[RecordedEvent], Position, bool]:
    """Return at most *most* events behind *after*, the new position, and whether there may be more.

    After a rebuild of the store its events are read from their beginning. What the rebuild wrote again is left out.
    """
    newest = queries.cursor(connection)
    if newest is None:
        return (), after, False
    if newest.epoch != after.cursor.epoch:
        after = Position(cursor=Cursor(epoch=newest.epoch))
    limit = most + len(after.seen)
    rows = connection.execute(_wanted().where(*_after(after.cursor)).order_by(job_events.c.event_id).limit(limit)).all()
    new = [row for row in rows if row.event_id not in after.seen][:most]
    if not new:
        return (), after, False
    last_ms = place(new[-1].event_id)[0]
    before = after.seen if last_ms == place(after.cursor.last_id)[0] else frozenset()
    reached = Position(
        cursor=Cursor(epoch=newest.epoch, last_id=f"{last_ms}-0"),
        seen=before.union(row.event_id for row in new if place(row.event_id)[0] == last_ms),
    )
    counted = [_event(row) for row in new if row.act in ACTS and place(row.event_id)[1] < _AGAIN]
    return counted, reached, len(rows) == limit


def _after(cursor: Cursor) -> list[sa.ColumnElement[bool]]:
    """Return the conditions for the events from the millisecond of *cursor* on. As text ``…-10`` precedes ``…-9``."""
    ms, _ = place(cursor.last_id)
    return [job_events.c.epoch == cursor.epoch, job_events.c.event_id >= (f"{ms}-" if ms else "")]


def _wanted() -> sa.Select[tuple[object, ...]]:
    of_run = (runs.c.job_id == job_events.c.job_id) & (runs.c.attempt == job_events.c.attempt)
    source = job_events.outerjoin(jobs, jobs.c.id == job_events.c.job_id).outerjoin(runs, of_run)
    columns = (
        *(job_events.c.event_id, job_events.c.act, job_events.c.at, job_events.c.attempt, jobs.c.submitted_at),
        *(runs.c.start_kind, runs.c.ending, runs.c.exit_code),
    )
    return sa.select(*columns).select_from(source)


def _event(row: sa.Row[tuple[object, ...]]) -> RecordedEvent:
    at, submitted_at = row.at, row.submitted_at
    is_first = row.act == Act.STARTED and row.attempt == 1
    known = is_first and isinstance(at, datetime) and isinstance(submitted_at, datetime)
    return RecordedEvent(
        act=Act(row.act),
        start_kind=StartKind.known(row.start_kind),
        wait_s=max(0.0, (at - submitted_at).total_seconds()) if known else None,
        ending=EndingKind(row.ending) if row.ending else None,
        exit_code=row.exit_code,
    )
