"""Repeating jobs in the history database.

Each change of what is done at a time says what it has read: of two services, or of one that was killed and the next
one, only one makes it.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import sqlalchemy as sa
from sqlalchemy.exc import IntegrityError

from gpuqueue.history.tables import repeating_jobs
from gpuqueue.model.job_spec import Account
from gpuqueue.model.repeating import Repetition

if TYPE_CHECKING:
    from datetime import datetime

    from gpuqueue.model.repeating import Missed

_T = repeating_jobs.c


def add(connection: sa.Connection, made: Repetition) -> bool:
    """Store a repeating job. Return False if its owner has one of this name."""
    values = {name: getattr(made, name) for name in Repetition.__slots__ if name != "owner"}
    owner = {"account": made.owner.name, "uid": made.owner.uid, "host": made.owner.host}
    try:
        with connection.begin_nested():
            connection.execute(sa.insert(repeating_jobs).values(**values, **owner))
    except IntegrityError:
        return False
    return True


def listed(connection: sa.Connection, account: str | None = None) -> list[Repetition]:
    """Return the repeating jobs of *account*, or of all accounts, by account and name."""
    wanted = sa.select(repeating_jobs).order_by(_T.account, _T.name, _T.uid)
    if account is not None:
        wanted = wanted.where(_T.account == account)
    return [_repetition(row) for row in connection.execute(wanted)]


def due(connection: sa.Connection, *, now: datetime, uid: int | None = None) -> list[Repetition]:
    """Return the repeating jobs of which a time has come, or has begun, the earliest first; only those of *uid*."""
    wanted = sa.and_(sa.or_(_T.next_at <= now, _T.begun_job_id.is_not(None)), _of(uid))
    rows = connection.execute(sa.select(repeating_jobs).where(wanted).order_by(_T.next_at, _T.id))
    return [_repetition(row) for row in rows]


def next_due(connection: sa.Connection, *, uid: int | None = None) -> datetime | None:
    """Return the earliest next time of all repeating jobs, or of those of *uid*. None if there is none."""
    earliest = sa.select(sa.func.min(_T.next_at, type_=_T.next_at.type)).where(_of(uid))
    found: datetime | None = connection.execute(earliest).scalar_one()
    return found


def _of(uid: int | None) -> sa.ColumnElement[bool]:
    return sa.true() if uid is None else _T.uid == uid


def begin(connection: sa.Connection, read: Repetition, at: datetime, job_id: int, missed: Missed | None) -> bool:
    """Note that the job of the time *at* is being submitted with *job_id*. Return False if *read* is out of date.

    *missed* are times before it.
    """
    return _change(connection, read, begun_at=at, begun_job_id=job_id, **_missed(missed))


def settle(
    connection: sa.Connection,
    read: Repetition,
    *,
    next_at: datetime | None,
    stopped: str | None = None,
    job_id: int | None = None,
    missed: Missed | None = None,
) -> bool:
    """Note what was done at the times of *read* until now, and the next one. Return False if *read* is out of date.

    *job_id* is the job of the time that has begun. With *stopped*, there is no next time.
    """
    values: dict[str, object] = {"next_at": next_at, "stopped": stopped, "begun_at": None, "begun_job_id": None}
    if job_id is not None:
        values |= {"last_at": read.begun_at, "last_job_id": job_id}
    return _change(connection, read, **values, **_missed(missed))


def remove(connection: sa.Connection, repeating_id: str) -> bool:
    """Remove a repeating job. Return False if there is none."""
    return connection.execute(sa.delete(repeating_jobs).where(_T.id == repeating_id)).rowcount == 1


def stop(connection: sa.Connection, repeating_id: str, why: str) -> None:
    """Stop a repeating job, unless it has stopped."""
    going = _T.id == repeating_id, _T.stopped.is_(None)
    connection.execute(sa.update(repeating_jobs).where(*going).values(next_at=None, stopped=why))


def go_on(connection: sa.Connection, read: Repetition, next_at: datetime) -> bool:
    """Let a job repeat from *next_at* on, with the proof and the seal of *read*. Return False if it is gone."""
    proof = {"token_id": read.token_id, "seal": read.seal}
    here = sa.update(repeating_jobs).where(_T.id == read.id)
    return connection.execute(here.values(next_at=next_at, stopped=None, **proof)).rowcount == 1


def snapshots(connection: sa.Connection) -> list[tuple[Account, str, str]]:
    """Return the owner, the name and the snapshot of code of each repeating job that has one."""
    found = ((each, json.loads(each.request).get("snapshot")) for each in listed(connection))
    return [(each.owner, each.name, snapshot) for each, snapshot in found if snapshot is not None]


def _missed(missed: Missed | None) -> dict[str, object]:
    if missed is None:
        return {}
    return {"missed": _T.missed + missed.count, "missed_at": missed.last_at, "missed_why": missed.why}


def _change(connection: sa.Connection, read: Repetition, **values: object) -> bool:
    """Change a row that is as it was read: the next time, and what has begun."""
    same = (
        _T.id == read.id,
        _T.next_at == read.next_at if read.next_at is not None else _T.next_at.is_(None),
        _T.begun_job_id == read.begun_job_id if read.begun_job_id is not None else _T.begun_job_id.is_(None),
    )
    return connection.execute(sa.update(repeating_jobs).where(*same).values(**values)).rowcount == 1


def _repetition(row: sa.Row[tuple[object, ...]]) -> Repetition:
    values = {name: getattr(row, name) for name in Repetition.__slots__ if name != "owner"}
    return Repetition(**values, owner=Account(name=row.account, uid=row.uid, host=row.host))
