"""Who the caller is, access tokens and the audit log, of a site that is reached without the service."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING

from gpuqueue.client.connection import Connection
from gpuqueue.clock import SystemClock, to_epoch_ms
from gpuqueue.errors import GpuQueueError, Refused
from gpuqueue.lazy.imports import later
from gpuqueue.model import times, validation
from gpuqueue.model.access import AccessPolicy, Action, Me, may
from gpuqueue.model.access_token import AccessToken, MadeToken, TokenRequest
from gpuqueue.model.api import SignInCode
from gpuqueue.model.audit import AuditEntry, AuditOutcome, AuditQuery, entry_of
from gpuqueue.model.caller import ALL_SCOPES, Caller, Via
from gpuqueue.system.account import SUPERUSER, groups_of

if TYPE_CHECKING:
    from gpuqueue.client import tokens
else:
    tokens = later("gpuqueue.client.tokens")

#: Entries of the audit log that are returned without a limit.
USUAL_LIMIT = 100


class Access:
    """Identity at one site. Tokens are for its service; the changes to them are in the audit log."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._clock = SystemClock()

    @property
    def _policy(self) -> AccessPolicy:
        settings = self._connection.settings
        return AccessPolicy.parse(settings.admins, settings.access)

    @property
    def _caller(self) -> Caller:
        account = self._connection.account
        return Caller(
            account=account.name,
            uid=account.uid,
            via=Via.DIRECT,
            groups=groups_of(account.name) if self._policy.admin_groups else frozenset(),
            scopes=ALL_SCOPES,
            superuser=self._connection.user == SUPERUSER,
            address=f"pid {os.getpid()}",
        )

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
            return tokens.make(self._connection.database, caller, self._policy, wanted, now=now)

    def tokens(self, account: str | None = None, *, everybody: bool = False) -> Sequence[AccessToken]:
        """Return the caller's access tokens, the newest first.

        Raises:
            Refused: they are of another account or of *everybody*, and the caller is no admin.

        """
        return tokens.listed(
            self._connection.database, self._caller, self._policy, account=account, everybody=everybody
        )

    def revoke_token(self, token_id: str) -> AccessToken:
        """Revoke an access token for good.

        Raises:
            Refused: it is no token of the caller, who is no admin.

        """
        with self._audited("token-revoke", {"token": token_id}) as (caller, now):
            return tokens.revoke(self._connection.database, caller, self._policy, token_id, now=now)

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
