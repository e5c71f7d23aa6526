"""Sessions of browsers, and the one-time codes that begin them. In memory: a restart of the service signs all out.

A session is bound to what proved its account: an access token, or an account of this machine. Who the caller is and
what it may do is looked up again at each request, so that a revoked token ends its sessions.
"""

from __future__ import annotations

import hashlib
import secrets
import threading
from collections import OrderedDict
from collections.abc import Iterator

from gpuqueue.clock import Clock, SystemClock
from gpuqueue.lazy.frozen import dataclass

#: How long a one-time code can be used, in seconds.
CODE_S = 60.0
#: How long a session lasts without a request, and at most, in seconds.
IDLE_S, LONGEST_S = 12 * 3600.0, 7 * 86400.0
#: Most codes and sessions of one account. A new one ends the oldest.
MOST_CODES, MOST_SESSIONS = 10, 20
#: Most codes, and most sessions, of all accounts.
MOST = 5000
_SECRET_BYTES = 32


@dataclass(frozen=True, kw_only=True, slots=True)
class Proof:
    """What proved the account of a session: an access token, or without one the kernel of this machine."""

    account: str
    uid: int
    token_id: str | None = None


@dataclass(frozen=True, slots=True)
class _Entry:
    proof: Proof
    begun_s: float
    used_s: float


class BrowserSessions:
    """Codes and sessions, by the SHA-256 of their secrets. Threads may share an instance."""

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._lock = threading.Lock()
        self._codes: OrderedDict[str, _Entry] = OrderedDict()
        self._sessions: OrderedDict[str, _Entry] = OrderedDict()

    def new_code(self, proof: Proof) -> str:
        """Return a new code, with which one session of *proof* can begin within CODE_S."""
        return self._add(self._codes, proof, MOST_CODES)

    def proof_of_code(self, code: str) -> Proof | None:
        """Return the proof of a code, and forget the code. None if it is unknown, used or too old."""
        with self._lock:
            found = self._codes.pop(_digest(code), None)
        is_late = found is None or self._clock.monotonic_s() - found.begun_s > CODE_S
        return None if found is None or is_late else found.proof

    def begin(self, proof: Proof) -> str:
        """Begin a session, and return its secret, which the browser keeps."""
        return self._add(self._sessions, proof, MOST_SESSIONS)

    def proof_of(self, secret: str) -> Proof | None:
        """Return the proof of a session that goes on, else None. The use is noted."""
        digest, now_s = _digest(secret), self._clock.monotonic_s()
        with self._lock:
            found = self._sessions.get(digest)
            if found is None:
                return None
            if now_s - found.used_s > IDLE_S or now_s - found.begun_s > LONGEST_S:
                del self._sessions[digest]
                return None
            self._sessions[digest] = _Entry(found.proof, found.begun_s, now_s)
        return found.proof

    def end(self, secret: str) -> None:
        """End a session. An unknown one is none."""
        with self._lock:
            self._sessions.pop(_digest(secret), None)

    def _add(self, entries: OrderedDict[str, _Entry], proof: Proof, most: int) -> str:
        secret, now_s = secrets.token_urlsafe(_SECRET_BYTES), self._clock.monotonic_s()
        with self._lock:
            own = list(_of(entries, proof))
            for each in own[: max(0, len(own) + 1 - most)]:
                del entries[each]
            if len(entries) >= MOST:
                entries.popitem(last=False)
            entries[_digest(secret)] = _Entry(proof, now_s, now_s)
        return secret


def _of(entries: OrderedDict[str, _Entry], proof: Proof) -> Iterator[str]:
    """Yield the entries of the account of *proof*, oldest first."""
    whose = (proof.account, proof.uid)
    return (digest for digest, each in entries.items() if (each.proof.account, each.proof.uid) == whose)


def _digest(secret: str) -> str:
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()
