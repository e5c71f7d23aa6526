"""Access tokens in the history database."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from gpuqueue.history import bulk
from gpuqueue.history.tables import access_tokens, audit_entries
from gpuqueue.model.access_token import AccessToken
from gpuqueue.model.audit import AuditEntry, AuditOutcome, AuditQuery
from gpuqueue.model.caller import CallerKind, Scope

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence
    from datetime import datetime

#: Most entries that one transaction removes.
_AT_ONCE = 1000


def add(connection: sa.Connection, token: AccessToken, digest: str) -> None:
    """Store a new token with the *digest* of its secret."""
    connection.execute(
        sa.insert(access_tokens).values(
            id=token.id,
            digest=digest,
            kind=token.kind.value,
            account=token.account,
            uid=token.uid,
            scopes=" ".join(sorted(map(str, token.scopes))),
            name=token.name,
            made_by=token.made_by,
            made_at=token.made_at,
            expires_at=token.expires_at,
        )
    )


def find(connection: sa.Connection, token_id: str) -> tuple[AccessToken, str] | None:
    """Return the token with this id and the digest of its secret, or None. One read by the primary key."""
    row = connection.execute(sa.select(access_tokens).where(access_tokens.c.id == token_id)).first()
    return None if row is None else (_token(row), row.digest)


def listed(connection: sa.Connection, account: str | None = None) -> list[AccessToken]:
    """Return the tokens of *account*, or of all accounts and hosts, the newest first."""
    wanted = sa.select(access_tokens).order_by(access_tokens.c.made_at.desc(), access_tokens.c.id)
    if account is not None:
        wanted = wanted.where(access_tokens.c.account == account, access_tokens.c.kind == CallerKind.PERSON.value)
    return [_token(row) for row in connection.execute(wanted)]


def revoke(connection: sa.Connection, token_id: str, *, at: datetime) -> bool:
    """Revoke a token. Return False if there is none, or it was revoked already."""
    here = access_tokens.c.id == token_id, access_tokens.c.revoked_at.is_(None)
    return connection.execute(sa.update(access_tokens).where(*here).values(revoked_at=at)).rowcount == 1


def note_uses(connection: sa.Connection, uses: Mapping[str, datetime]) -> None:
    """Store when each token was last used. A later time that is stored already stays."""
    for token_id, at in uses.items():
        earlier = sa.or_(access_tokens.c.last_used_at.is_(None), access_tokens.c.last_used_at < at)
        connection.execute(
            sa.update(access_tokens).where(access_tokens.c.id == token_id, earlier).values(last_used_at=at)
        )


def _token(row: sa.Row[tuple[object, ...]]) -> AccessToken:
    return AccessToken(
        id=row.id,
        kind=CallerKind(row.kind),
        account=row.account,
        uid=row.uid,
        scopes=frozenset(map(Scope, row.scopes.split())),
        name=row.name,
        made_by=row.made_by,
        made_at=row.made_at,
        expires_at=row.expires_at,
        last_used_at=row.last_used_at,
        revoked_at=row.revoked_at,
    )


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
        "id": entry.id,
        "at": entry.at,
        "account": entry.account,
        "uid": entry.uid,
        "via": entry.via,
        "token_id": entry.token_id,
        "address": entry.address,
        "action": entry.action,
        "jobs": " ".join(entry.jobs),
        "detail": json.dumps(entry.detail, sort_keys=True) if entry.detail else None,
        "outcome": None if entry.outcome is None else entry.outcome.value,
        "reason": entry.reason,
    }


def _entry(row: Any) -> AuditEntry:
    return AuditEntry(
        id=row.id,
        at=row.at,
        account=row.account,
        uid=row.uid,
        via=row.via,
        token_id=row.token_id,
        address=row.address,
        action=row.action,
        jobs=tuple(row.jobs.split()),
        detail=json.loads(row.detail) if row.detail else {},
        outcome=None if row.outcome is None else AuditOutcome(row.outcome),
        reason=row.reason,
    )
