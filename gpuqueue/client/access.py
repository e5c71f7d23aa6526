"""Who the caller is, access tokens and the audit log, of a site that is reached without the service."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from gpuqueue.client.connection import Connection
from gpuqueue.clock import SystemClock, to_epoch_ms
from gpuqueue.errors import GpuQueueError, Refused
from gpuqueue.model import times, validation
from gpuqueue.model.access import AccessPolicy, Action, Me, may, require
from gpuqueue.model.access_token import AccessToken, MadeToken, TokenRequest, digest_of, new_token
from gpuqueue.model.api import SignInCode
from gpuqueue.model.audit import AuditEntry, AuditOutcome, AuditQuery, entry_of
from gpuqueue.model.caller import ALL_SCOPES, Caller, CallerKind, Via
from gpuqueue.model.job_spec import Account
from gpuqueue.settings.parsers import read_host
from gpuqueue.system.account import SUPERUSER, groups_of, uid_of
from gpuqueue.text.sanitize import brief

if TYPE_CHECKING:
    from gpuqueue.history.database import HistoryDatabase

#: Entries of the audit log that are returned without a limit.
USUAL_LIMIT = 100


class Access:
    """Identity at one site. Tokens are for its service; the changes to them are in the audit log."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._clock = SystemClock()

    @property
    def _policy(self) -> AccessPolicy:
        return policy_of(self._connection)

    @property
    def _caller(self) -> Caller:
        return caller_of(self._connection)

    def whoami(self) -> Me:
        """Return who the caller is for this site."""
        return Me.of(self._caller, self._policy)

    def make_token(self, wanted: TokenRequest | None = None) -> MadeToken:
        """Make an access token. Its text is in the answer and nowhere else.

        Raises:
            Refused: it is of another account and the caller is not root, or of a host and the caller is no admin.

        """
        wanted = wanted or TokenRequest()
        detail = {
            "account": wanted.account or "",
            "host": wanted.host or "",
            "name": wanted.name,
            "scopes": " ".join(sorted(map(str, wanted.scopes))),
        }
        with self._audited("token-create", detail) as (caller, now):
            return make_token(self._connection.database, caller, self._policy, wanted, now=now)

    def tokens(self, account: str | None = None, *, everybody: bool = False) -> Sequence[AccessToken]:
        """Return the caller's access tokens, the newest first.

        Raises:
            Refused: they are of another account or of *everybody*, and the caller is no admin.

        """
        return listed_tokens(
            self._connection.database, self._caller, self._policy, account=account, everybody=everybody
        )

    def revoke_token(self, token_id: str) -> AccessToken:
        """Revoke an access token for good.

        Raises:
            Refused: it is no token of the caller, who is no admin.

        """
        with self._audited("token-revoke", {"token": token_id}) as (caller, now):
            return revoke_token(self._connection.database, caller, self._policy, token_id, now=now)

    def sign_in_code(self) -> SignInCode:
        """Make a one-time code with which a browser signs in as the caller.

        Raises:
            Refused: always, because the page is served by the service.

        """
        raise Refused(
            "no service runs that could serve the page: start one with gpuqueue up --web, "
            "or with gpuqueue serve --listen HOST:PORT for others"
        )

    def audit(
        self,
        *,
        since: str | datetime | None = None,
        user: str | None = None,
        action: str | None = None,
        limit: int = USUAL_LIMIT,
    ) -> Sequence[AuditEntry]:
        """Return the newest *limit* entries of the audit log.

        Raises:
            Refused: the caller is no admin.

        """
        query = AuditQuery(
            since=times.moment("since", since),
            account=validation.text_or_none("user", user),
            action=validation.text_or_none("action", action),
            limit=validation.count("limit", limit),
        )
        reason = may(self._caller, Action.SEE_AUDIT, None, self._policy)
        if reason is not None:
            raise Refused(reason)
        return self._connection.database.audit_entries(query)

    @contextmanager
    def _audited(self, action: str, detail: Mapping[str, str]) -> Iterator[tuple[Caller, datetime]]:
        """Record a change before and after the body, as the service does, but in the history itself."""
        now, caller, database = self._clock.now(), self._caller, self._connection.database
        entry_id = f"{to_epoch_ms(now):013d}-{os.urandom(6).hex()}"
        entry = entry_of(caller, action, entry_id=entry_id, at=now, jobs=(), detail=detail)
        database.write_audit([entry])
        try:
            yield caller, now
        except GpuQueueError as error:
            database.write_audit([replace(entry, outcome=AuditOutcome.REFUSED, reason=str(error))])
            raise
        database.write_audit([replace(entry, outcome=AuditOutcome.DONE)])


def policy_of(connection: Connection) -> AccessPolicy:
    """Return who may do what, by the settings of this process as they are now."""
    return AccessPolicy.parse(connection.settings.admins, connection.settings.access)


def caller_of(connection: Connection) -> Caller:
    """Return the account of *connection* as a caller."""
    account = connection.account
    return Caller(
        account=account.name,
        uid=account.uid,
        via=Via.DIRECT,
        groups=groups_of(account.name) if policy_of(connection).admin_groups else frozenset(),
        scopes=ALL_SCOPES,
        superuser=connection.user == SUPERUSER,
        address=f"pid {os.getpid()}",
    )


def make_token(
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


def listed_tokens(
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


def revoke_token(
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
