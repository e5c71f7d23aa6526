"""Routes of the group ``client.access``."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timezone
from typing import Annotated

from starlette.requests import Request
from starlette.responses import Response

from gpuqueue.client import tokens
from gpuqueue.model.access import Action
from gpuqueue.model.access_token import AccessToken, MadeToken, TokenRequest
from gpuqueue.model.audit import AuditEntry, AuditQuery
from gpuqueue.service.call import Call
from gpuqueue.service.routes.described import Operations, Query, route
from gpuqueue.service.site import body_of, site_of

router = Operations("access")
#: Most entries of the audit log in one answer.
MOST = 10**6


@route(router, "POST", "/tokens", answer=MadeToken, body=TokenRequest)
async def make_token(request: Request) -> Response:
    """Make an access token. Only a caller on the unix socket may."""
    wanted = await body_of(request, TokenRequest)

    def work(call: Call) -> MadeToken:
        asked = {"name": wanted.name, "scopes": " ".join(sorted(map(str, wanted.scopes)))}
        asked |= {"host": wanted.host} if wanted.host else {"account": wanted.account or call.caller.account}
        with call.recorded("token-create", detail=asked) as change:
            database, now = call.connection.database, datetime.now(timezone.utc)
            made = tokens.make(database, call.caller, call.policy, wanted, now=now)
            change.add_detail(token=made.token.id)
            return made

    return await site_of(request).answer(request, work)


@route(router, "GET", "/tokens", answer=tuple[AccessToken, ...])
async def list_tokens(request: Request, account: str | None = None, *, everybody: bool = False) -> Response:
    """List access tokens, without their secrets: those of the caller, of an account, or of everybody."""

    def work(call: Call) -> Sequence[AccessToken]:
        database = call.connection.database
        return tokens.listed(database, call.caller, call.policy, account=account, everybody=everybody)

    return await site_of(request).answer(request, work)


@route(router, "DELETE", "/tokens/{token_id}", answer=AccessToken)
async def revoke_token(request: Request, token_id: str) -> Response:
    """Revoke an access token for good."""
    site = site_of(request)

    def work(call: Call) -> AccessToken:
        with call.recorded("token-revoke", detail={"token": token_id}):
            database, now = call.connection.database, datetime.now(timezone.utc)
            was = tokens.revoke(database, call.caller, call.policy, token_id, now=now)
        site.identity.forget(token_id)
        return was

    return await site.answer(request, work)


@route(router, "GET", "/audit", answer=tuple[AuditEntry, ...])
async def audit(
    request: Request,
    since: datetime | None = None,
    user: str | None = None,
    action: str | None = None,
    limit: Annotated[int, Query(ge=0, le=MOST)] = 100,
) -> Response:
    """Return the newest entries of the audit log. Only admins may."""

    def work(call: Call) -> Sequence[AuditEntry]:
        call.must(Action.SEE_AUDIT)
        query = AuditQuery(since=since, account=user, action=action, limit=limit)
        return call.connection.database.audit_entries(query)

    return await site_of(request).answer(request, work)
