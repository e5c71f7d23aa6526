"""Identifies the callers of one service, limits their requests, and records their changes: all of this package."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

from gpuqueue.clock import Clock, SystemClock
from gpuqueue.errors import HistoryUnreachable, NotAuthenticated, Refused, TooManyRequests
from gpuqueue.history.database import HistoryDatabase
from gpuqueue.model.access import AccessPolicy, Forbidden
from gpuqueue.model.access_token import parts_of
from gpuqueue.model.caller import Caller, CallerKind, Via, anonymous
from gpuqueue.model.job_spec import Account
from gpuqueue.service.identity.audit_journal import EVERY_S, AuditJournal, Change
from gpuqueue.service.identity.authenticate import Authenticator, Workers, caller_of_account, caller_of_peer
from gpuqueue.service.identity.browser_sessions import BrowserSessions, NewSession, Proof
from gpuqueue.service.identity.request_rate import RequestRates
from gpuqueue.settings.parsers import RunAs
from gpuqueue.system.account import users_group
from gpuqueue.system.login_account import AccountRules, NotPermitted, least_uid, permitted

if TYPE_CHECKING:
    from gpuqueue.settings.settings import Settings

log = logging.getLogger(__name__)

#: Requests per second of one address that no account is responsible for.
PER_ADDRESS = 10.0
#: Requests per second of one worker host, which sends what is new in the log of each run that somebody reads.
PER_HOST = 1000.0
#: The message for every fault of a code or a token that a browser signs in with.
NOT_VALID = "this link or token is not valid: type gpuqueue web for a new link, which works once within a minute"
#: Bytes per second that one account may send in the long run, and at once.
BYTES_PER_ACCOUNT, BURST_BYTES = 4.0 * 2**20, 256.0 * 2**20


#: How long the answer about the jobs of an account is used again, in seconds, and for how many accounts.
SUBMITTER_S, MOST_SUBMITTERS = 5.0, 4096
#: The file with the locks of accounts.
SHADOW = "/etc/shadow"


class Peer(Protocol):
    """The process at the other end of a unix socket, as the kernel reports it."""

    @property
    def uid(self) -> int:
        """The uid of its account."""

    @property
    def pid(self) -> int:
        """Its process id when it connected."""


class Credentials(Protocol):
    """The proof of identity of a request."""

    @property
    def peer(self) -> Peer | None:
        """The peer, if the request came over a unix socket."""

    @property
    def authorization(self) -> str | None:
        """The ``Authorization`` header."""

    @property
    def address(self) -> str:
        """The network address of the client."""

    @property
    def session(self) -> str | None:
        """The id of a browser's session."""


class Submitters:
    """Decides which accounts may submit where jobs run as their submitters, by the rules of the launcher."""

    def __init__(self, settings: Settings, workers: Workers | None, clock: Clock) -> None:
        shells = frozenset(settings.login_shells.split(",")) if settings.login_shells else None
        own = {os.getuid(), *([] if workers is None else [workers.uid])}
        self._rules = AccountRules(frozenset(own), users_group(), least_uid(), shells)
        self._shadow = SHADOW if os.access(SHADOW, os.R_OK) else None
        self._clock = clock
        #: Account -> until when the answer is used, and why no job runs as the account, None if jobs do.
        self._known: dict[tuple[str, int], tuple[float, str | None]] = {}

    def check(self, account: Account) -> None:
        """Check that a launcher with the rules of this machine would start jobs of *account*.

        Raises:
            Refused: it would not.

        """
        now_s, key = self._clock.monotonic_s(), (account.name, account.uid)
        until_s, reason = self._known.get(key, (0.0, None))
        if now_s >= until_s:
            try:
                permitted(*key, self._rules, shadow=self._shadow)
                reason = None
            except NotPermitted as error:
                reason = str(error)
            if len(self._known) >= MOST_SUBMITTERS:
                self._known.clear()
            self._known[key] = now_s + SUBMITTER_S, reason
        if reason is not None:
            raise Refused(f"{reason}: jobs run as the account that submits them here")


class SiteIdentity:
    """The identity of one service's callers. Threads may share it. ``start`` and ``close`` run its thread."""

    def __init__(self, settings: Settings, clock: Clock | None = None) -> None:
        self.policy = AccessPolicy.parse(settings.admins, settings.access)
        self._clock = clock or SystemClock()
        self._with_groups = bool(self.policy.admin_groups)
        self._workers = Workers.of(settings)
        self._submitters = None if settings.run_as is RunAs.WORKER else Submitters(settings, self._workers, self._clock)
        self._database = HistoryDatabase(settings.database_url)
        self._tokens = Authenticator(self._database, self._clock, with_groups=self._with_groups)
        self._journal = AuditJournal(settings.state_dir / "audit", self._clock)
        self._rates = RequestRates(
            per_account=settings.request_rate,
            per_address=PER_ADDRESS,
            per_host=PER_HOST,
            bytes_per_account=BYTES_PER_ACCOUNT,
            burst_bytes=BURST_BYTES,
        )
        self._sessions = BrowserSessions(self._clock, settings.state_dir / "browser-sessions.json")
        self._stop = threading.Event()
        self._threads: list[threading.Thread] = []

    def start(self) -> None:
        """Move audit entries and uses of tokens to the history from now on."""
        drain = threading.Thread(target=self._journal.keep_drained, args=(self._database, self._stop), name="audit")
        flush = threading.Thread(target=self._keep_flushed, name="token-uses")
        self._threads = [drain, flush]
        for each in self._threads:
            each.start()

    def close(self) -> None:
        """Move the rest to the history, if it answers, and close the connections."""
        self._stop.set()
        for each in self._threads:
            each.join()
        self._database.close()

    def caller(self, credentials: Credentials, *, is_new: bool = True, stale_s: float = 0.0) -> Caller:
        """Return the caller of a request, and count the request if it *is_new*, not the next step of a stream.

        While the history is away, a token that was read up to *stale_s* seconds before is accepted.

        Raises:
            NotAuthenticated: the token is not valid, or the uid of the peer identifies no account.
            TooManyRequests: the account, or the address, calls too often.
            HistoryUnreachable: the token cannot be looked up now.

        """
        now_s = self._clock.monotonic_s()
        if credentials.peer is not None:
            peer = credentials.peer
            caller = self._by_peer(peer)
        elif credentials.session and not credentials.authorization:
            caller = self._by_session(credentials.session, credentials.address)
        else:
            caller = self._by_token(credentials, now_s, stale_s)
        if is_new:
            _grant(self._rates.after(caller, now_s))
        return caller

    def caller_of_repeating(self, owner: Account, token_id: str | None) -> Caller | None:
        """Return *owner*, who added a repeating job, as a caller with the rights that it has now.

        None if the account is gone, or if the access token by which it was proved is not valid any more.

        Raises:
            HistoryUnreachable: the token cannot be looked up now.

        """
        caller = self._of_proof(Proof(account=owner.name, uid=owner.uid, token_id=token_id), owner.host)
        return replace(caller, via=Via.CRON) if caller is not None and caller.owns(owner) else None

    def must_run(self, account: Account) -> None:
        """Check that jobs of *account* can start at this site.

        Raises:
            Refused: no launcher would start them.

        """
        if self._submitters is not None:
            self._submitters.check(account)

    def received(self, caller: Caller, body_bytes: int) -> None:
        """Count the size of a request's body.

        Raises:
            TooManyRequests: the account sends too much.

        """
        if caller.via is not Via.ANONYMOUS:
            _grant(self._rates.sent(caller, self._clock.monotonic_s(), body_bytes))

    def change(
        self, caller: Caller, action: str, jobs: tuple[str, ...], detail: Mapping[str, str]
    ) -> AbstractContextManager[Change]:
        """Return a context in which *caller* changes *jobs*: it is recorded before, and its outcome afterwards."""
        return self._journal.change(caller, action, jobs=jobs, detail=detail)

    def refused(self, caller: Caller, action: str, reason: str, jobs: tuple[str, ...]) -> None:
        """Record a change that *caller* has no right to. Anonymous callers are left out: they have proved nothing."""
        if caller.via is not Via.ANONYMOUS:
            self._journal.refused(caller, action, reason, jobs=jobs)

    def noted(
        self, caller: Caller, action: str, jobs: tuple[str, ...], detail: Mapping[str, str] | None = None
    ) -> None:
        """Record what *caller* is about to read or to send; what repeats within minutes is counted.

        Raises:
            Unreachable: it cannot be recorded.

        """
        self._journal.noted(caller, action, jobs=jobs, detail=detail)

    def forget(self, token_id: str) -> None:
        """Stop accepting a token at once: this service has just revoked it."""
        self._tokens.forget(token_id)

    # ---- browsers ----------------------------------------------------------------------------------------------------

    def new_code(self, caller: Caller) -> str:
        """Return a one-time code with which a browser signs in as *caller*.

        Raises:
            Forbidden: the caller is no person, or is itself a browser.

        """
        if caller.kind is not CallerKind.PERSON or caller.uid is None or caller.via is Via.SESSION:
            raise Forbidden("only a person's command line makes links to sign in with: type gpuqueue web")
        return self._sessions.new_code(Proof(account=caller.account, uid=caller.uid, token_id=caller.token_id))

    def sign_in(self, code_or_token: str, address: str) -> NewSession:
        """Begin a session of a browser, and return its secret.

        Raises:
            NotAuthenticated: the code or the token is not valid.
            TooManyRequests: too many were not valid that came from this address.

        """
        now_s = self._clock.monotonic_s()
        _grant(self._rates.before(address, now_s))
        proof = self._proof(code_or_token, address)
        caller = None if proof is None else self._of_proof(proof, address)
        if proof is None or caller is None:
            self._rates.failed(address, now_s)
            self._failed("sign-in", NOT_VALID, address, code_or_token)
            raise NotAuthenticated(NOT_VALID)
        with self._journal.change(caller, "sign-in"):
            return self._sessions.begin(proof)

    def sign_out(self, session: str) -> None:
        """End a session of a browser."""
        self._sessions.end(session)

    def new_download(self, session: str, target: str) -> str:
        """Return a one-time code with which a session of a browser downloads *target*, a path with its query.

        Raises:
            NotAuthenticated: the session has ended.

        """
        code = self._sessions.new_download(session, target)
        if code is None:
            raise NotAuthenticated("nobody is signed in: type gpuqueue web for a link")
        return code

    def session_of_download(self, code: str, target: str) -> str | None:
        """Return the session of a code for a download of *target*, and forget the code; None if it is not valid."""
        return self._sessions.session_of_download(code, target)

    def _proof(self, code_or_token: str, address: str) -> Proof | None:
        if parts_of(code_or_token) is None:
            return self._sessions.proof_of_code(code_or_token)
        try:
            caller = self._tokens.caller(f"Bearer {code_or_token}", address)
        except NotAuthenticated:  # counted like a wrong code
            return None
        if caller.kind is not CallerKind.PERSON or caller.uid is None:
            return None
        return Proof(account=caller.account, uid=caller.uid, token_id=caller.token_id)

    def _by_session(self, session: str, address: str) -> Caller:
        """Return the caller of a session. A session that has ended proves nothing, and is no mistake of its user."""
        proof = self._sessions.proof_of(session)
        caller = None if proof is None else self._of_proof(proof, address)
        if caller is None:
            self._sessions.end(session)
            return anonymous(address)
        return caller

    def _of_proof(self, proof: Proof, address: str) -> Caller | None:
        if proof.token_id is None:
            return caller_of_account(proof.account, proof.uid, address, with_groups=self._with_groups)
        caller = self._tokens.caller_of_id(proof.token_id, address)
        return caller and replace(caller, via=Via.SESSION)

    def _by_peer(self, peer: Peer) -> Caller:
        try:
            return caller_of_peer(peer.uid, peer.pid, with_groups=self._with_groups, workers=self._workers)
        except NotAuthenticated as error:
            self._failed("authenticate", str(error), f"pid {peer.pid}")
            raise

    def _failed(self, action: str, reason: str, address: str, word: str = "") -> None:
        """Record a proof that is not valid. The id of a token is no secret, and says which one was tried."""
        parts = parts_of(word)
        caller = replace(anonymous(address), token_id=parts.id if parts else None)
        self._journal.refused(caller, action, reason)

    def _by_token(self, credentials: Credentials, now_s: float, stale_s: float) -> Caller:
        if credentials.authorization and not self._tokens.is_remembered(credentials.authorization):
            _grant(self._rates.before(credentials.address, now_s))
        try:
            return self._tokens.caller(credentials.authorization, credentials.address, stale_s=stale_s)
        except NotAuthenticated as error:
            self._rates.failed(credentials.address, now_s)
            word = (credentials.authorization or "").partition(" ")[2].strip()
            self._failed("authenticate", str(error), credentials.address, word)
            raise

    def _keep_flushed(self) -> None:
        while not self._stop.wait(EVERY_S):
            try:
                self._tokens.flush()
            except HistoryUnreachable as error:
                log.debug("the last uses of tokens wait: %s", error)


def _grant(wait_s: float) -> None:
    if wait_s:
        shown_s = max(wait_s, 0.1)  # never "in 0.0 s"
        raise TooManyRequests(f"too many requests: try again in {shown_s:.1f} s (setting request_rate)", wait_s)
