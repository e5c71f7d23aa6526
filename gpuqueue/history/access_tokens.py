"""Access tokens in the history database."""

from __future__ import annotations

from typing import TYPE_CHECKING

import sqlalchemy as sa

from gpuqueue.history.tables import access_tokens
from gpuqueue.model.access_token import AccessToken
from gpuqueue.model.caller import CallerKind, Scope

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from datetime import datetime


def add(connection: sa.Connection, token: AccessToken, digest: str) -> None:
    """Store a new token with the *digest* of its secret."""
    values = {name: getattr(token, name) for name in AccessToken.__slots__}
    values |= {"kind": token.kind.value, "scopes": " ".join(sorted(map(str, token.scopes)))}
    connection.execute(sa.insert(access_tokens).values(digest=digest, **values))


def find(connection: sa.Connection, token_id: str) -> tuple[AccessToken, str] | None:
    """Return the token with this id and the digest of its secret, or None. One read by the primary key."""
    row = connection.execute(sa.select(access_tokens).where(access_tokens.c.id == token_id)).first()
    return None if row is None else (_token(row), row.digest)


def valid(connection: sa.Connection, token_ids: Collection[str], *, at: datetime) -> set[str]:
    """Return those of *token_ids* that are valid *at* a time, in one read."""
    wanted = sa.select(access_tokens).where(access_tokens.c.id.in_(token_ids))
    return {row.id for row in connection.execute(wanted) if _token(row).not_valid(at) is None}


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
    values = {name: getattr(row, name) for name in AccessToken.__slots__}
    return AccessToken(**{**values, "kind": CallerKind(row.kind), "scopes": frozenset(map(Scope, row.scopes.split()))})
