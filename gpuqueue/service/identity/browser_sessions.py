"""Sessions of browsers, and the one-time codes that begin them.

The sessions are in memory, and in a file of the service's account, so that a restart of the service signs nobody out.
The file has no secret: who reads it can use no session. The codes are in memory alone.

The secret of a session has two parts: a browser keeps one in a cookie, which it sends to all ports of the host, and the
page keeps the other one in a storage that only its origin reads, port included. Neither part proves anything alone.

A session is bound to what proved its account: an access token, or an account of this machine. Who the caller is and
what it may do is looked up again at each request, so that a revoked token ends its sessions.
"""

from __future__ import annotations

import hashlib
import json
import logging
import secrets
import threading
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from gpuqueue.clock import Clock, SystemClock
from gpuqueue.codec.wire import from_plain, to_stored
from gpuqueue.errors import Unreadable
from gpuqueue.lazy.frozen import dataclass
from gpuqueue.system.ownership import write_whole
from gpuqueue.system.safe_open import read_small
from gpuqueue.text.json_fields import loaded

log = logging.getLogger(__name__)

#: How long a one-time code can be used, to sign in or for a download, in seconds.
CODE_S = 60.0
#: How long a session lasts without a request, and at most, in seconds.
IDLE_S, LONGEST_S = 12 * 3600.0, 7 * 86400.0
#: Most codes and sessions of one account. A new one ends the oldest.
MOST_CODES, MOST_SESSIONS = 10, 20
#: Most codes, and most sessions, of all accounts.
MOST = 5000
#: How often the last uses of sessions are written, in seconds, and how far in the future a session may have begun:
#: clocks are corrected.
SAVE_S, CORRECTED_S = 600.0, 60.0
_SECRET_BYTES = 32


@dataclass(frozen=True, kw_only=True, slots=True)
class Proof:
    """What proved the account of a session: an access token, or without one the kernel of this machine."""

    account: str
    uid: int
    token_id: str | None = None


@dataclass(frozen=True, slots=True)
class NewSession:
    """The secret of a session, in two parts: for the cookie, and for the page."""

    cookie: str
    key: str


@dataclass(frozen=True, slots=True)
class _Entry:
    """A code, by the monotonic clock, or a session, by the wall clock, which a restart does not change."""

    proof: Proof
    begun_s: float
    used_s: float
    #: Of a code for a download: the id of the session, and what may be downloaded.
    session: str = ""
    target: str = ""


class BrowserSessions:
    """Codes and sessions, by the SHA-256 of their secrets, which is the id of a session. Threads may share it.

    The sessions are kept in the file *path*, whose directory only this account can write. Without it they end with this
    process, and so they do if the file cannot be written, which is logged.
    """

    def __init__(self, clock: Clock | None = None, path: Path | None = None) -> None:
        self._clock = clock or SystemClock()
        self._path = path
        self._saved_s = self._now_s()
        self._lock = threading.Lock()
        self._codes: OrderedDict[str, _Entry] = OrderedDict()
        self._sessions = OrderedDict[str, _Entry]() if path is None else _read(path)
        self._downloads: OrderedDict[str, _Entry] = OrderedDict()

    def new_code(self, proof: Proof) -> str:
        """Return a new code, with which one session of *proof* can begin within CODE_S."""
        code = secrets.token_urlsafe(_SECRET_BYTES)
        self._add(self._codes, _digest(code), self._entry(proof), MOST_CODES)
        return code

    def proof_of_code(self, code: str) -> Proof | None:
        """Return the proof of a code, and forget the code. None if it is unknown, used or too old."""
        found = self._used(self._codes, code)
        return None if found is None else found.proof

    def begin(self, proof: Proof) -> NewSession:
        """Begin a session, and return its secret, which the browser keeps."""
        made, now_s = NewSession(*(secrets.token_urlsafe(_SECRET_BYTES) for _ in range(2))), self._now_s()
        self._add(self._sessions, session_id(made.cookie, made.key), _Entry(proof, now_s, now_s), MOST_SESSIONS)
        self._save()
        return made

    def proof_of(self, session: str) -> Proof | None:
        """Return the proof of the session with this id if it goes on, else None. The use is noted."""
        now_s = self._now_s()
        with self._lock:
            found = self._sessions.get(session)
            if found is None:
                return None
            is_over = now_s - found.used_s > IDLE_S or not -CORRECTED_S <= now_s - found.begun_s <= LONGEST_S
            if is_over:
                del self._sessions[session]
            else:
                self._sessions[session] = replace(found, used_s=now_s)
        if is_over or abs(now_s - self._saved_s) >= SAVE_S:
            self._save()
        return None if is_over else found.proof

    def end(self, session: str) -> None:
        """End the session with this id. An unknown one is none."""
        with self._lock:
            has_ended = self._sessions.pop(session, None) is not None
        if has_ended:
            self._save()

    def new_download(self, session: str, target: str) -> str | None:
        """Return a new code with which the session downloads *target* once, within CODE_S; None if it has ended."""
        proof = self.proof_of(session)
        if proof is None:
            return None
        code = secrets.token_urlsafe(_SECRET_BYTES)
        self._add(self._downloads, _digest(code), self._entry(proof, session, target), MOST_CODES)
        return code

    def session_of_download(self, code: str, target: str) -> str | None:
        """Return the id of the session that may download *target*, and forget the code. None if it may not."""
        found = self._used(self._downloads, code)
        return None if found is None or found.target != target else found.session

    def _used(self, entries: OrderedDict[str, _Entry], code: str) -> _Entry | None:
        """Return the entry of a code, and forget the code. None if it is unknown, used or too old."""
        with self._lock:
            found = entries.pop(_digest(code), None)
        return None if found is None or self._clock.monotonic_s() - found.begun_s > CODE_S else found

    def _add(self, entries: OrderedDict[str, _Entry], key: str, made: _Entry, most: int) -> None:
        with self._lock:
            own = list(_of(entries, made.proof))
            for each in own[: max(0, len(own) + 1 - most)]:
                del entries[each]
            if len(entries) >= MOST:
                entries.popitem(last=False)
            entries[key] = made

    def _now_s(self) -> float:
        return self._clock.now().timestamp()

    def _save(self) -> None:
        """Write all sessions to the file."""
        if self._path is None:
            return
        with self._lock:
            self._saved_s = self._now_s()
            sessions = {key: to_stored(each) for key, each in self._sessions.items()}
            try:
                write_whole(self._path, json.dumps({"sessions": sessions}))
            except OSError as error:
                log.warning("browsers sign in again after a restart: %s cannot be written: %s", self._path, error)

    def _entry(self, proof: Proof, session: str = "", target: str = "") -> _Entry:
        now_s = self._clock.monotonic_s()
        return _Entry(proof, now_s, now_s, session, target)


def _read(path: Path) -> OrderedDict[str, _Entry]:
    """Return the sessions in a file of :class:`BrowserSessions`; none if it is missing or cannot be read."""
    sessions = OrderedDict[str, _Entry]()
    try:
        plain = loaded(read_small(path), "the sessions of browsers").below("sessions", "the sessions of browsers")
        for key, each in plain.whole_object().items():
            sessions[key] = from_plain(_Entry, each, "a session of a browser")
    except FileNotFoundError:
        pass
    except (OSError, Unreadable) as error:
        log.warning("browsers sign in again: %s cannot be read: %s", path, error)
        sessions.clear()
    return sessions


def _of(entries: OrderedDict[str, _Entry], proof: Proof) -> Iterator[str]:
    """Yield the entries of the account of *proof*, oldest first."""
    whose = (proof.account, proof.uid)
    return (digest for digest, each in entries.items() if (each.proof.account, each.proof.uid) == whose)


def session_id(cookie: str, key: str) -> str:
    """Return the id of the session with the two parts of this secret."""
    return _digest(f"{cookie}.{key}")


def _digest(secret: str) -> str:
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()
