"""Turns the ``Authorization`` header of a request into a caller.

Another proof of identity, such as OpenID Connect, would be another function here that returns a Caller.
"""

from __future__ import annotations

import logging
import pwd
import threading
from datetime import datetime, timedelta
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from gpuqueue.clock import Clock, SystemClock
from gpuqueue.errors import BadRequest, HistoryUnreachable, NotAuthenticated
from gpuqueue.lazy.frozen import dataclass
from gpuqueue.model.access_token import AccessToken, NotValid, is_secret_of, parts_of
from gpuqueue.model.caller import ALL_SCOPES, Caller, CallerKind, Via, anonymous
from gpuqueue.system.account import groups_of

if TYPE_CHECKING:
    from gpuqueue.history.database import HistoryDatabase
    from gpuqueue.settings.settings import Settings

log = logging.getLogger(__name__)

#: How long a token that was read from the history is accepted without another read, in seconds: the longest time for
#: which a revoked token still works.
CACHE_S = 5.0
#: Least time between two notes of the last use of a token.
NOTE_EVERY = timedelta(minutes=1)
#: Most tokens that are kept in memory.
_MOST = 4096
#: The message for every fault of a token.
NOT_VALID = (
    "this access token is not valid: make a new one with gpuqueue token create, and store it with gpuqueue login"
)
_ONLY_BEARER = "the Authorization header must be: Bearer TOKEN"
_OVERFLOW_UID = Path("/proc/sys/kernel/overflowuid")


class Authenticator:
    """Verifies access tokens. Threads may share an instance."""

    def __init__(self, database: HistoryDatabase, clock: Clock | None = None, *, with_groups: bool = False) -> None:
        """Verify the tokens in *database*. *with_groups* looks up the Unix groups of each caller: for admin groups."""
        self._database = database
        self._with_groups = with_groups
        self._clock = clock or SystemClock()
        self._lock = threading.Lock()
        #: Token id -> the token, the digest of its secret, and until when it is accepted.
        self._known: dict[str, tuple[AccessToken, str, float]] = {}
        #: Token id -> the last use that is stored or will be, and the uses that are not stored yet.
        self._noted: dict[str, datetime] = {}
        self._uses: dict[str, datetime] = {}

    def caller(self, authorization: str | None, address: str, *, stale_s: float = 0.0) -> Caller:
        """Return the caller with this ``Authorization`` header; an anonymous one without it. *stale_s*: see ``verify``.

        Raises:
            NotAuthenticated: the header has no valid token. The message is the same for all reasons.
            HistoryUnreachable: the token cannot be looked up now.

        """
        if not authorization:
            return anonymous(address)
        kind, _, text = authorization.partition(" ")
        if kind.lower() != "bearer":
            raise NotAuthenticated(_ONLY_BEARER)
        found = self.verify(text.strip(), stale_s=stale_s)
        if isinstance(found, NotValid):
            parts = parts_of(text.strip())
            log.warning("access token %s from %s: %s", parts.id if parts else "?", address, found)
            raise NotAuthenticated(NOT_VALID)
        return self._caller(found, address)

    def caller_of_id(self, token_id: str, address: str) -> Caller | None:
        """Return the caller of a token whose secret was verified before, None if the token is not valid any more.

        Raises:
            HistoryUnreachable: the token cannot be looked up now.

        """
        found, now = self._find(token_id, 0.0), self._clock.now()
        if found is None or _trouble(found[0], now) is not None:
            return None
        self._note_use(found[0], now)
        return self._caller(found[0], address)

    def _caller(self, found: AccessToken, address: str) -> Caller:
        wants_groups = self._with_groups and found.kind is CallerKind.PERSON
        return found.caller(address, groups_of(found.account) if wants_groups else frozenset())

    def verify(self, text: str, *, stale_s: float = 0.0) -> AccessToken | NotValid:
        """Return the token *text*, or why it is not valid. It takes one read of the history at most every CACHE_S.

        The secret is checked first. A caller without it cannot learn whether a token has expired or was revoked. While
        the history is away, a token that was read up to *stale_s* seconds before is accepted as it was then.
        """
        parts = parts_of(text)
        if parts is None:
            return NotValid.MALFORMED
        found = self._find(parts.id, stale_s)
        right = is_secret_of(parts.secret, found[1] if found else None)
        if found is None:
            return NotValid.UNKNOWN
        if not right:
            return NotValid.WRONG_SECRET
        now = self._clock.now()
        trouble = _trouble(found[0], now)
        if trouble is not None:
            return trouble
        self._note_use(found[0], now)
        return found[0]

    def is_remembered(self, authorization: str | None) -> bool:
        """Return whether the id of this header's token was read so recently that it costs no read of the history."""
        parts = parts_of((authorization or "").partition(" ")[2].strip())
        with self._lock:
            known = self._known.get(parts.id) if parts else None
        return known is not None and self._clock.monotonic_s() < known[2]

    def forget(self, token_id: str) -> None:
        """Read this token from the history at its next use: this service has just revoked it."""
        with self._lock:
            self._known.pop(token_id, None)

    def flush(self) -> None:
        """Store the last uses. Call it every few seconds.

        Raises:
            HistoryUnreachable: they cannot be stored now. The next call tries again.

        """
        with self._lock:
            uses = dict(self._uses)
        if not uses:
            return
        self._database.note_token_uses(uses)
        with self._lock:
            self._uses = {each: at for each, at in self._uses.items() if uses.get(each) != at}

    def _find(self, token_id: str, stale_s: float) -> tuple[AccessToken, str] | None:
        now_s = self._clock.monotonic_s()
        with self._lock:
            known = self._known.get(token_id)
        if known is not None and now_s < known[2]:
            return known[0], known[1]
        try:
            found = self._database.find_token(token_id)
        except HistoryUnreachable:
            if known is not None and now_s < known[2] + stale_s:
                return known[0], known[1]
            raise
        with self._lock:
            self._known.pop(token_id, None)
            if found is not None:
                if len(self._known) >= _MOST:
                    self._known.pop(next(iter(self._known)))
                self._known[token_id] = (*found, now_s + CACHE_S)
        return found

    def _note_use(self, token: AccessToken, now: datetime) -> None:
        with self._lock:
            noted = self._noted.get(token.id) or token.last_used_at
            if noted is None or now - noted >= NOTE_EVERY:
                if len(self._noted) >= _MOST:
                    self._noted.pop(next(iter(self._noted)))
                self._noted[token.id] = self._uses[token.id] = now


def _trouble(token: AccessToken, now: datetime) -> NotValid | None:
    """Return why *token* is not valid, or None. The token of an account that was removed or renamed ends at once."""
    trouble = token.not_valid(now)
    if trouble is None and token.uid is not None and name_of(token.uid)[0] != token.account:
        return NotValid.NO_ACCOUNT
    return trouble


@dataclass(frozen=True, slots=True)
class Workers:
    """The account of the workers on the machine of the service. At the socket it is the worker host of this name."""

    uid: int
    host: str

    @classmethod
    def of(cls, settings: Settings) -> Workers | None:
        """Return the workers of the machine with *settings*, None if they have the account of the service.

        Raises:
            BadRequest: there is no such account.

        """
        name = settings.workers_account
        if name is None:
            return None
        try:
            return cls(pwd.getpwnam(name).pw_uid, settings.host)
        except KeyError:
            raise BadRequest(f"setting workers_account: this machine has no account {name!r}") from None


def caller_of_peer(uid: int, pid: int, *, with_groups: bool = True, workers: Workers | None = None) -> Caller:
    """Return the caller for a peer's *uid* and *pid*, those of SO_PEERCRED. *workers* are a worker host, and no person.

    The kernel translates the uid into the user namespace of this process, so root of a container is not root here.

    Raises:
        NotAuthenticated: the uid does not exist in the user namespace of this process, so it identifies no account.

    """
    if uid == _overflow_uid():
        raise NotAuthenticated(
            f"uid {uid} stands for every account that this machine does not know: call from outside of the container"
        )
    if workers is not None and uid == workers.uid:
        return Caller(account=workers.host, uid=None, via=Via.SOCKET, kind=CallerKind.HOST, address=f"pid {pid}")
    name, gid = name_of(uid)
    return Caller(
        account=name,
        uid=uid,
        via=Via.SOCKET,
        groups=groups_of(name, gid) if with_groups else frozenset(),
        scopes=ALL_SCOPES,
        superuser=uid == 0,
        address=f"pid {pid}",
    )


def caller_of_account(name: str, uid: int, address: str, *, with_groups: bool = True) -> Caller | None:
    """Return the caller for a session of an account of this machine, None if the account is there no more."""
    found, gid = name_of(uid)
    if found != name:
        return None
    return Caller(
        account=name,
        uid=uid,
        via=Via.SESSION,
        groups=groups_of(name, gid) if with_groups else frozenset(),
        scopes=ALL_SCOPES,
        superuser=uid == 0,
        address=address,
    )


def name_of(uid: int) -> tuple[str, int | None]:
    """Return the name and the main group of *uid*. The uid of a container may have no name: it is ``uid1234`` then."""
    try:
        found = pwd.getpwuid(uid)
    except KeyError:
        return f"uid{uid}", None
    return found.pw_name, found.pw_gid


@cache
def _overflow_uid() -> int:
    """Return the uid that the kernel shows for all accounts of other user namespaces. It is read once."""
    try:
        return int(_OVERFLOW_UID.read_text(encoding="ascii"))
    except (OSError, ValueError):
        return 65534
