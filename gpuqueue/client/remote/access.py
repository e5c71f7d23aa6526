"""The group ``client.access`` over the service. The methods are those of :class:`gpuqueue.client.access.Access`."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING

from gpuqueue.client.remote.link import Link, segment
from gpuqueue.model import times, validation
from gpuqueue.model.access import Me
from gpuqueue.model.access_token import AccessToken, MadeToken, TokenRequest
from gpuqueue.model.api import SignInCode
from gpuqueue.model.audit import AuditEntry

if TYPE_CHECKING:
    from gpuqueue.client.access import Access as Direct
else:
    Direct = object


class RemoteAccess(Direct):
    """Identity at the site of a service."""

    def __init__(self, link: Link) -> None:
        self._link = link

    def whoami(self) -> Me:
        """Return who the service takes the caller for."""
        return self._link.get(Me, "/me")

    def make_token(self, wanted: TokenRequest | None = None) -> MadeToken:
        """Make an access token. Its text is in the answer and nowhere else."""
        return self._link.send("POST", "/tokens", wanted or TokenRequest(), kind=MadeToken)

    def tokens(self, account: str | None = None, *, everybody: bool = False) -> Sequence[AccessToken]:
        """Return the caller's access tokens, the newest first."""
        query = {"account": account, "everybody": everybody}
        return self._link.get(tuple[AccessToken, ...], "/tokens", query)

    def revoke_token(self, token_id: str) -> AccessToken:
        """Revoke an access token for good."""
        return self._link.send("DELETE", f"/tokens/{segment(token_id)}", kind=AccessToken)

    def sign_in_code(self) -> SignInCode:
        """Make a one-time code with which a browser signs in as the caller."""
        return self._link.send("POST", "/web/codes", kind=SignInCode)

    def audit(
        self,
        *,
        since: str | datetime | None = None,
        user: str | None = None,
        action: str | None = None,
        limit: int = 100,
    ) -> Sequence[AuditEntry]:
        """Return the newest *limit* entries of the audit log."""
        query = {
            "since": times.moment("since", since),
            "user": validation.text_or_none("user", user),
            "action": validation.text_or_none("action", action),
            "limit": validation.count("limit", limit),
        }
        return self._link.get(tuple[AuditEntry, ...], "/audit", query)
