"""Makes, lists and revokes access tokens for a caller, and checks that the caller may.

The direct client calls these functions for the account of its process, and the service for its callers.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from gpuqueue.errors import Refused
from gpuqueue.model.access import AccessPolicy, Action, require
from gpuqueue.model.access_token import AccessToken, MadeToken, TokenRequest, digest_of, new_token
from gpuqueue.model.caller import Caller, CallerKind
from gpuqueue.model.job_spec import Account
from gpuqueue.settings.parsers import read_host
from gpuqueue.system.account import uid_of
from gpuqueue.text.sanitize import brief

if TYPE_CHECKING:
    from gpuqueue.history.database import HistoryDatabase


def make(
    database: HistoryDatabase, caller: Caller, policy: AccessPolicy, wanted: TokenRequest, *, now: datetime
) -> MadeToken:
    """Make a token, and return it with its secret.

    Raises:
        Refused: *caller* may not make this token.
        BadRequest: the account does not exist on this machine.

    """
    account = _account_of(caller, wanted)
    require(caller, Action.MAKE_TOKEN, account, policy)
    secret = new_token()
    token = AccessToken(
        id=secret.id,
        kind=CallerKind.HOST if account is None else CallerKind.PERSON,
        account=read_host(wanted.host or "") if account is None else account.name,
        uid=None if account is None else account.uid,
        scopes=frozenset() if account is None else wanted.scopes,
        name=wanted.name,
        made_by=caller.account,
        made_at=now,
        expires_at=None if wanted.lifetime_s is None else now + timedelta(seconds=wanted.lifetime_s),
    )
    database.add_token(token, digest_of(secret.secret))
    return MadeToken(token=token, text=str(secret))


def listed(
    database: HistoryDatabase,
    caller: Caller,
    policy: AccessPolicy,
    *,
    account: str | None = None,
    everybody: bool = False,
) -> list[AccessToken]:
    """Return the tokens of the caller, of *account*, or of *everybody* and the worker hosts, the newest first.

    Raises:
        Refused: *caller* may not see them.

    """
    own = not everybody and account in {None, caller.account}
    require(caller, Action.SEE_TOKENS, _of_caller(caller) if own else None, policy)
    if own:
        return [token for token in database.tokens(caller.account) if token.uid == caller.uid]
    return database.tokens(None if everybody else account)


def revoke(
    database: HistoryDatabase, caller: Caller, policy: AccessPolicy, token_id: str, *, now: datetime
) -> AccessToken:
    """Revoke a token for good, and return it with the time at which it was revoked first.

    Raises:
        Refused: there is no such token, or the caller may not revoke it.

    """
    require(caller, Action.REVOKE_TOKEN, _of_caller(caller), policy)  # before the caller learns which tokens there are
    found = database.find_token(token_id)
    if found is None or not (caller.owns(found[0].owner) or policy.is_admin(caller)):
        raise Refused(f"{brief(token_id)} is no token of yours: see gpuqueue token list")
    require(caller, Action.REVOKE_TOKEN, found[0].owner, policy)
    database.revoke_token(token_id, at=now)
    stored = database.find_token(token_id)
    return found[0] if stored is None else stored[0]


def _account_of(caller: Caller, wanted: TokenRequest) -> Account | None:
    """Return the account of the token that is wanted, None for a worker host."""
    if wanted.host is not None:
        return None
    if wanted.account in {None, caller.account}:
        return _of_caller(caller)
    name = str(wanted.account)
    return Account(name=name, uid=uid_of(name), host="")


def _of_caller(caller: Caller) -> Account | None:
    return None if caller.uid is None else Account(name=caller.account, uid=caller.uid, host="")
