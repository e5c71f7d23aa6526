"""The interface of the service to the package that identifies callers and records their changes."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Protocol

from gpuqueue.lazy.frozen import dataclass
from gpuqueue.model.caller import Caller
from gpuqueue.model.job_spec import Account
from gpuqueue.service.identity.audit_journal import Change
from gpuqueue.service.identity.browser_sessions import NewSession


@dataclass(frozen=True, kw_only=True, slots=True)
class Peer:
    """The process at the other end of a unix socket when it connected, as the kernel reports it."""

    pid: int
    uid: int
    gid: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Credentials:
    """The proof of identity of a request: the peer of a unix socket, an ``Authorization`` header, or a session.

    ``session`` is the id of a browser's session. It counts only without the other two.
    """

    peer: Peer | None
    authorization: str | None
    address: str
    session: str | None = None


class Identity(Protocol):
    """Identifies callers, and records their changes."""

    def caller(self, credentials: Credentials, *, is_new: bool = True, stale_s: float = 0.0) -> Caller:
        """Return the caller, and count the request if it *is_new*.

        While the history is away, a token that was read up to *stale_s* seconds before is accepted.

        Raises:
            NotAuthenticated: the caller cannot be identified.

        """

    def must_run(self, account: Account) -> None:
        """Check that jobs of *account* can start at this site.

        Raises:
            Refused: no launcher would start them.

        """

    def received(self, caller: Caller, body_bytes: int) -> None:
        """Count the size of a request's body.

        Raises:
            TooManyRequests: the account sends too much.

        """

    def change(
        self, caller: Caller, action: str, jobs: tuple[str, ...], detail: Mapping[str, str]
    ) -> AbstractContextManager[Change]:
        """Return a context in which *caller* changes *jobs*; it is recorded with its outcome."""

    def refused(self, caller: Caller, action: str, reason: str, jobs: tuple[str, ...]) -> None:
        """Record a change that *caller* has no right to."""

    def noted(self, caller: Caller, action: str, jobs: tuple[str, ...]) -> None:
        """Record what *caller* is about to read or to send; what repeats within minutes is counted."""

    def forget(self, token_id: str) -> None:
        """Stop accepting a token that was just revoked."""

    def new_code(self, caller: Caller) -> str:
        """Return a one-time code with which a browser signs in as *caller*.

        Raises:
            Forbidden: the caller is no person, or is itself a browser.

        """

    def sign_in(self, code_or_token: str, address: str) -> NewSession:
        """Begin a session of a browser, and return its secret.

        Raises:
            NotAuthenticated: the code or the token is not valid.

        """

    def sign_out(self, session: str) -> None:
        """End a session of a browser."""

    def new_download(self, session: str, target: str) -> str:
        """Return a one-time code with which a session of a browser downloads *target*, a path with its query.

        Raises:
            NotAuthenticated: the session has ended.

        """

    def session_of_download(self, code: str, target: str) -> str | None:
        """Return the session of a code for a download of *target*, and forget the code; None if it is not valid."""

    def start(self) -> None:
        """Begin to move records to the history."""

    def close(self) -> None:
        """Move the last records to the history."""
