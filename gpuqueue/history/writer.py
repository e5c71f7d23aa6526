"""Writes a batch of events completely or not at all, and only once, even with several recorders.

An event that the database refuses becomes a dead letter: it must not block the events after it, and must not get lost.
"""

from __future__ import annotations

import json
import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

from gpuqueue.codec.request import shown_request
from gpuqueue.errors import Unreachable
from gpuqueue.history import bulk, environments, text_index
from gpuqueue.history.columns import Row, ending_columns, event_row
from gpuqueue.history.connect import check_revision, reason, writing
from gpuqueue.history.fold import Batch, DeviceKey, fold, move_job, run_key, sum_up
from gpuqueue.history.members import with_requests
from gpuqueue.history.records import parts
from gpuqueue.history.tables import (
    dead_letters,
    job_events,
    job_tags,
    jobs,
    notifications,
    outbox_cursor,
    run_curves,
    run_devices,
    run_metrics,
    run_timelines,
    runs,
)
from gpuqueue.model.event import Act, Cursor, Event
from gpuqueue.model.notification import FIRST_BEFORE_END
from gpuqueue.model.run import Ended, Ending

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

log = logging.getLogger(__name__)

#: Errors that no event causes. The batch is retried unchanged.
NOT_OF_THE_ROW = (Unreachable, MemoryError, OSError)
#: Largest number that every integer column takes, in every database.
_MOST = 2**31 - 1


def apply(
    engine: sa.Engine, events: Sequence[Event], *, expected: Cursor | None, epoch: str, keep_secrets: bool = False
) -> bool:
    """Write *events* and move the cursor from *expected* to the last event, in one transaction.

    The secrets of jobs that have ended are removed in the same transaction, unless *keep_secrets* is set.

    Returns:
        False if the cursor is not at *expected*: another recorder was faster. Nothing is changed then.
    """
    if not events:
        return True
    batch = fold(with_requests(engine, events), epoch=epoch)
    if keep_secrets:
        batch.ended.clear()
    return _apply(engine, batch, expected, Cursor(epoch=epoch, last_id=events[-1].id))


def set_aside(engine: sa.Engine, event: Event, why: str, *, expected: Cursor | None, epoch: str) -> bool:
    """Store *event* as a dead letter, with the reason *why*.

    The state of the job after the event is written as well, if possible: otherwise the job could be shown as running
    for ever.

    Returns:
        False if the cursor is not at *expected*: another recorder was faster. Nothing is changed then.
    """
    to = Cursor(epoch=epoch, last_id=event.id)
    try:
        return _apply(engine, dead_letter(event, why, epoch=epoch), expected, to)
    except NOT_OF_THE_ROW:
        raise
    except Exception as error:  # noqa: BLE001 - a driver may raise any error for a row
        log.warning("the state of job %s after the event cannot be written either: %s", event.job_id, reason(error))
        return _apply(engine, whole_event(event, why, epoch=epoch), expected, to)


def _apply(engine: sa.Engine, batch: Batch, expected: Cursor | None, to: Cursor) -> bool:
    with writing(engine) as connection:
        check_revision(connection)  # another process may have upgraded the database
        if not move_cursor(connection, expected, to):
            return False
        write(connection, batch)
    return True


def turn_to(engine: sa.Engine, epoch: str, *, expected: Cursor | None) -> bool:
    """Move the cursor from *expected* to the start of the outbox of *epoch*. Return False if it is elsewhere."""
    with writing(engine) as connection:
        return move_cursor(connection, expected, Cursor(epoch=epoch))


def move_cursor(connection: sa.Connection, expected: Cursor | None, to: Cursor) -> bool:
    """Move the cursor from *expected* to *to*. Return False if it is not at *expected*.

    A second recorder waits here for the first one's transaction, and then sees the new cursor.
    """
    row = {"id": 1, "epoch": to.epoch, "last_id": to.last_id}
    statement: sa.Insert | sa.Update
    if expected is None:
        statement = _insert(connection, outbox_cursor).values(row)
    else:
        there = (outbox_cursor.c.epoch == expected.epoch, outbox_cursor.c.last_id == expected.last_id)
        statement = sa.update(outbox_cursor).where(outbox_cursor.c.id == 1, *there).values(row)
    # SQLAlchemy may add a RETURNING to an INSERT, which would lose the row count.
    return connection.execute(statement, execution_options={"preserve_rowcount": True}).rowcount == 1


def write(connection: sa.Connection, batch: Batch) -> None:
    """Write the rows of *batch*.

    New rows of jobs and runs replace existing ones: the outbox is newer than what was restored.
    """
    if connection.dialect.name == "sqlite" and not text_index.known_to_sqlite():
        text_index.drop(connection)  # its triggers would block writes; gpuqueue db upgrade restores it
    bulk.put(connection, jobs, [row for _, row in sorted(batch.new_jobs.items())])
    environments.write(connection, batch.environments, batch.ended)
    if batch.released:
        gone = sa.delete(runs).where(
            runs.c.job_id == sa.bindparam("gone_id"), runs.c.token == sa.bindparam("gone_token")
        )
        connection.execute(gone, [{"gone_id": job_id, "gone_token": token} for job_id, token in batch.released])
    known = _known(connection, {key[0] for key in batch.new_runs} - {key[0] for key in batch.new_jobs})
    known.update(key[0] for key in batch.new_jobs)
    _write_tags(connection, batch)
    bulk.put(connection, runs, [row for key, row in batch.new_runs.items() if key[0] in known])
    bulk.put(connection, run_devices, [row for key, row in batch.new_devices.items() if key[0] in known])
    _update_all(connection, jobs, ("id",), batch.moved_jobs)
    _update_all(connection, runs, ("job_id", "attempt", "token"), batch.moved_runs)
    _update_all(connection, run_devices, ("job_id", "attempt", "device_uuid"), batch.moved_devices)
    there = _known_devices(connection, {key[0] for key in batch.timelines})
    bulk.insert(connection, run_timelines, [row for key, row in batch.timelines.items() if key in there])
    begun = _known_runs(connection, {key[0] for key in batch.metrics})
    for table, rows in ((run_metrics, batch.metrics), (run_curves, batch.curves)):
        bulk.insert(connection, table, [row for key, row in rows.items() if key[:2] in begun])
    _write_notifications(connection, batch)
    _forget_earlier_hold(connection, batch.held)
    _notify_before_end(connection, batch.marked | {(job_id, FIRST_BEFORE_END) for job_id in batch.held})
    bulk.insert(connection, job_events, batch.events)
    bulk.insert(connection, dead_letters, batch.dead_letters)


def _write_tags(connection: sa.Connection, batch: Batch) -> None:
    """Write the changes of tags. Writing the same changes twice has no further effect."""
    if batch.retagged:
        anew = sa.delete(job_tags).where(job_tags.c.job_id == sa.bindparam("anew_id"))
        connection.execute(anew, [{"anew_id": job_id} for job_id in batch.retagged])
    gone = [{"gone_id": job_id, "gone_tag": tag} for (job_id, tag), is_one in batch.tags.items() if not is_one]
    if gone:
        here = job_tags.c.job_id == sa.bindparam("gone_id"), job_tags.c.tag == sa.bindparam("gone_tag")
        connection.execute(sa.delete(job_tags).where(*here), gone)
    added = [(job_id, tag) for (job_id, tag), is_one in batch.tags.items() if is_one]
    there = _known(connection, {job_id for job_id, _ in added})
    bulk.insert(connection, job_tags, [{"job_id": job_id, "tag": tag} for job_id, tag in added if job_id in there])


def _write_notifications(connection: sa.Connection, batch: Batch) -> None:
    """Write a row for each target of new jobs. Of edited ones those that nobody has tried to reach are written anew."""
    for some in parts(batch.renotified):
        untried = (
            notifications.c.number < FIRST_BEFORE_END,
            notifications.c.tries == 0,
            notifications.c.outcome.is_(None),
        )
        connection.execute(sa.delete(notifications).where(notifications.c.job_id.in_(some), *untried))
    job_ids = _known(connection, batch.notifications) if batch.renotified else batch.notifications
    rows = [
        {"job_id": job_id, "number": number, "tries": 0}
        for job_id in job_ids
        for number in range(batch.notifications[job_id])
    ]
    bulk.insert(connection, notifications, rows)


def _forget_earlier_hold(connection: sa.Connection, array_ids: Iterable[int]) -> None:
    """Delete the notifications about an earlier hold of *array_ids* that have an outcome: this hold gets its own."""
    for some in parts(array_ids):
        before_end = notifications.c.job_id.in_(some), notifications.c.number >= FIRST_BEFORE_END
        connection.execute(sa.delete(notifications).where(*before_end, notifications.c.outcome.is_not(None)))


def _notify_before_end(connection: sa.Connection, news: Iterable[tuple[int, int]]) -> None:
    """Add a notification for each target of a marked or held job. One that there is already is not added again.

    *news* are jobs with the number of the first notification of each.
    """
    jobs_of: dict[int, list[int]] = {}
    for job_id, first in sorted(news):
        jobs_of.setdefault(first, []).append(job_id)
    for first, job_ids in jobs_of.items():
        number = (notifications.c.number + first).label("number")
        for some in parts(job_ids):
            of_the_end = notifications.c.job_id.in_(some), notifications.c.number < FIRST_BEFORE_END
            rows = sa.select(notifications.c.job_id, number, sa.literal_column("0")).where(*of_the_end)
            connection.execute(_insert(connection, notifications).from_select(["job_id", "number", "tries"], rows))


def _known(connection: sa.Connection, job_ids: Iterable[int]) -> set[int]:
    """Return those of *job_ids* that have a row: a run cannot refer to a missing job."""
    return {
        job_id
        for some in parts(job_ids)
        for job_id in connection.scalars(sa.select(jobs.c.id).where(jobs.c.id.in_(some)))
    }


def _known_devices(connection: sa.Connection, job_ids: Iterable[int]) -> set[DeviceKey]:
    """Return the devices of all runs of *job_ids* that have a row, by job, attempt and UUID."""
    columns = run_devices.c.job_id, run_devices.c.attempt, run_devices.c.device_uuid
    return {
        (job_id, attempt, uuid)
        for some in parts(job_ids)
        for job_id, attempt, uuid in connection.execute(sa.select(*columns).where(run_devices.c.job_id.in_(some)))
    }


def _known_runs(connection: sa.Connection, job_ids: Iterable[int]) -> set[tuple[int, int]]:
    """Return the runs of *job_ids* that have a row, by job and attempt."""
    return {
        (job_id, attempt)
        for some in parts(job_ids)
        for job_id, attempt in connection.execute(
            sa.select(runs.c.job_id, runs.c.attempt).where(runs.c.job_id.in_(some))
        )
    }


def _insert(connection: sa.Connection, table: sa.Table) -> sa.Insert:
    """Return an INSERT that skips rows that exist already."""
    if connection.dialect.name == "postgresql":
        return postgresql.insert(table).on_conflict_do_nothing()
    return sqlite.insert(table).on_conflict_do_nothing()


def _update_all(
    connection: sa.Connection, table: sa.Table, keys: tuple[str, ...], moved: Mapping[tuple[Any, ...], Row]
) -> None:
    """Update *moved* with one statement for each set of columns. There are few such sets."""
    groups: dict[tuple[str, ...], list[Row]] = {}
    for key, row in moved.items():
        groups.setdefault(tuple(sorted(row)), []).append({**dict(zip(keys, key, strict=True)), **row})
    for rows in groups.values():
        bulk.update(connection, table, keys, rows)


def dead_letter(event: Event, why: str, *, epoch: str) -> Batch:
    """Return the rows that store *event* as a dead letter and set the state of its job and its run."""
    batch = whole_event(event, why, epoch=epoch)
    within = _within(event)
    move_job(batch, within)
    if event.act in {Act.FINISH, Act.LOSE} and "token" in event.fields:
        ending = Ending.lost(f"the history refused the report of its end: {why}")
        batch.run(run_key(within)).update(ended_at=event.at, **ending_columns(ending))
        sum_up(batch, within, Ended(ending=ending, duration_s=None, devices=()))
    return batch


def whole_event(event: Event, why: str, *, epoch: str) -> Batch:
    """Return the rows that store *event* as a dead letter and list it in ``job_events``.

    A dead letter stays for ever, so it has no environment.
    """
    within = _within(event)
    whole = {"job": event.job_id, "attempt": event.attempt, "losses": event.losses, **event.fields}
    if "spec" in whole:
        whole["spec"] = shown_request(whole["spec"])
    row = {
        "epoch": epoch,
        "event_id": event.id,
        "job_id": within.job_id,
        "act": event.act.value,
        "at": event.at,
        "error": why,
        "fields": json.dumps(whole),  # ASCII, with NUL and lone surrogates as escapes: every database accepts that
    }
    return Batch(events=[event_row(within, epoch=epoch, detail=None)], dead_letters=[row])


def _within(event: Event) -> Event:
    """Return *event* with its numbers limited to what every column takes."""
    numbers = {name: max(0, min(getattr(event, name), _MOST)) for name in ("job_id", "attempt", "losses")}
    return replace(event, **numbers)
