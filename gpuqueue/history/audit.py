"""The audit log in the history database."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from gpuqueue.history import bulk
from gpuqueue.history.tables import audit_entries
from gpuqueue.model.audit import AuditEntry, AuditOutcome, AuditQuery

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence
    from datetime import datetime

#: Most entries that one transaction removes.
_AT_ONCE = 1000


def write(connection: sa.Connection, entries: Sequence[AuditEntry]) -> None:
    """Write *entries*. An entry that is there already is replaced, except that an outcome stays.

    Therefore the same entries may be written again after a crash, and an outcome may come in a later call.
    """
    bulk.insert(connection, audit_entries, [_row(entry) for entry in entries if entry.outcome is None])
    bulk.put(connection, audit_entries, [_row(entry) for entry in entries if entry.outcome is not None])


def drop(connection: sa.Connection, entry_ids: Collection[str]) -> None:
    """Remove these entries, which have no outcome: they are counted in another one."""
    gone = audit_entries.c.id.in_(entry_ids), audit_entries.c.outcome.is_(None)
    connection.execute(sa.delete(audit_entries).where(*gone))


def search(connection: sa.Connection, query: AuditQuery) -> list[AuditEntry]:
    """Return the entries that match *query*, the newest first."""
    wanted = sa.select(audit_entries).order_by(audit_entries.c.at.desc(), audit_entries.c.id.desc())
    if query.since is not None:
        wanted = wanted.where(audit_entries.c.at >= query.since)
    if query.account is not None:
        wanted = wanted.where(audit_entries.c.account == query.account)
    if query.action is not None:
        wanted = wanted.where(audit_entries.c.action == query.action)
    return [_entry(row) for row in connection.execute(wanted.limit(query.limit))]


def forget(connection: sa.Connection, before: datetime) -> int:
    """Remove entries from before this time. Return the number, which is 0 when none is left."""
    some = sa.select(audit_entries.c.id).where(audit_entries.c.at < before).limit(_AT_ONCE)
    return connection.execute(sa.delete(audit_entries).where(audit_entries.c.id.in_(some.scalar_subquery()))).rowcount


def _row(entry: AuditEntry) -> dict[str, Any]:
    return {
        **{name: getattr(entry, name) for name in AuditEntry.__slots__},
        "jobs": " ".join(entry.jobs),
        "detail": json.dumps(entry.detail, sort_keys=True) if entry.detail else None,
        "outcome": None if entry.outcome is None else entry.outcome.value,
    }


def _entry(row: Any) -> AuditEntry:
    values = {name: getattr(row, name) for name in AuditEntry.__slots__}
    values |= {"jobs": tuple(row.jobs.split()), "detail": json.loads(row.detail) if row.detail else {}}
    return AuditEntry(**{**values, "outcome": None if row.outcome is None else AuditOutcome(row.outcome)})
