"""Routes of the group ``client.access``."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Annotated

from starlette.requests import Request

from gpuqueue.client import access
from gpuqueue.model.access import Action
from gpuqueue.model.access_token import AccessToken, MadeToken, TokenRequest
from gpuqueue.model.audit import AuditEntry, AuditQuery
from gpuqueue.service.call import Call
from gpuqueue.service.routes.described import Operations, Query, operation
from gpuqueue.service.site import site_of

router = Operations("access")
#: Most entries of the audit log in one answer.
MOST = 10**6


@operation(router, "POST /tokens")
def make_token(call: Call, body: TokenRequest) -> MadeToken:
    """Make an access token. Only a caller on the unix socket may."""
    asked = {"name": body.name, "scopes": " ".join(sorted(map(str, body.scopes)))}
    asked |= {"host": body.host} if body.host else {"account": body.account or call.caller.account}
    with call.recorded("token-create", detail=asked) as change:
        database, now = call.connection.database, datetime.now(timezone.utc)
        made = access.make_token(database, call.caller, call.policy, body, now=now)
        change.add_detail(token=made.token.id)
        return made


@operation(router, "access.tokens")
def list_tokens(call: Call, account: str | None = None, *, everybody: bool = False) -> tuple[AccessToken, ...]:
    """List access tokens, without their secrets: those of the caller, of an account, or of everybody."""
    database = call.connection.database
    return tuple(access.listed_tokens(database, call.caller, call.policy, account=account, everybody=everybody))


@operation(router, "access.revoke_token")
def revoke_token(call: Call, request: Request, token_id: str) -> AccessToken:
    """Revoke an access token for good."""
    with call.recorded("token-revoke", detail={"token": token_id}):
        database, now = call.connection.database, datetime.now(timezone.utc)
        was = access.revoke_token(database, call.caller, call.policy, token_id, now=now)
    site_of(request).identity.forget(token_id)
    return was


@operation(router, "access.audit", may=Action.SEE_AUDIT)
def audit(
    call: Call,
    since: datetime | None = None,
    user: str | None = None,
    action: str | None = None,
    limit: Annotated[int, Query(ge=0, le=MOST)] = 100,
) -> tuple[AuditEntry, ...]:
    """Return the newest entries of the audit log. Only admins may."""
    query = AuditQuery(since=since, account=user, action=action, limit=limit)
    return tuple(call.connection.database.audit_entries(query))
