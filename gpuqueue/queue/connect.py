"""Connections to the store, and translation of their errors."""

from __future__ import annotations

import _socket
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol, cast
from urllib.parse import parse_qs, urlsplit

from gpuqueue.errors import START_ONE, StoreLoading, StoreNotOpen, StoreNotReady, StoreUnreachable, Unreadable
from gpuqueue.queue.resp.client import RespClient
from gpuqueue.queue.resp.connection import Gone, NotConnected, NotLetIn, RespError, parsed
from gpuqueue.text.sanitize import brief, without_password

if TYPE_CHECKING:
    import redis


#: How long one command may take before the store counts as unreachable, in seconds.
COMMAND_TIMEOUT_S = 5.0

#: Returns why a store does not answer, empty if nobody knows, and what to do about it.
WhyAway = Callable[[], tuple[str, str]]
#: What to do about a store that `gpuqueue up` does not start.
START_THERE = "start it there, or correct GPUQUEUE_REDIS_URL"

#: Parameters that a store URL may have. The code sets all other connection options itself.
_IN_AN_ADDRESS = frozenset({"db", "username", "password", "client_name"})

#: Messages for a store that answers but cannot serve, with what to do about it.
_LOADING = "the store is still loading its data: try again in a moment"
_NOT_LET_IN = "the store does not accept the password, or requires one: put it into GPUQUEUE_REDIS_URL"
#: Messages for the errors of scripts in a store that is not open (see ``refusal`` in lua/shared/state.lua).
NOT_OPEN = {
    "NOTOPEN": "the store was never opened for gpuqueue, or lost its data: run gpuqueue up",
    "REBUILDING": "the store lost its data and is being rebuilt: try again in a moment",
}
_BY_CODE = {
    "LOADING": _LOADING,
    "MISCONF": "the store cannot write to its disk: free some space, see the store's log",
    "READONLY": "the store is a read-only replica: point GPUQUEUE_REDIS_URL at the primary",
    "OOM": "the store has reached its maxmemory: raise the limit",
    "NOAUTH": "the store requires a password: put it into GPUQUEUE_REDIS_URL",
    # Redis rejects a long command before authentication with this word instead of NOAUTH.
    "unauthenticated": "the store requires a password: put it into GPUQUEUE_REDIS_URL",
    "WRONGPASS": "the store does not accept the password: put the right one into GPUQUEUE_REDIS_URL",
    "NOPERM": "the store's access rules do not let gpuqueue work: allow all commands on keys {gq}:*",
    "BUSY": "the store is busy with a long script: try again in a moment",
    "NOREPLICAS": "the store lacks replicas that it requires (min-replicas-to-write)",
    "MASTERDOWN": "the store is a replica without its primary",
    "CLUSTERDOWN": "the store's cluster is down",
    "TRYAGAIN": "the store's cluster is being moved: try again in a moment",
}


class Connect(Protocol):
    """A factory for clients of a store. A client has the methods of ``resp.client.RespClient``."""

    def __call__(self, url: str, *, wait_s: float = 0.0) -> Any:
        """Return the client of the store at *url*; send nothing yet."""


def connect(url: str, *, wait_s: float = 0.0) -> redis.Redis:
    """Return the redis-py client of the store at *url*; send nothing yet.

    The client never retries a command. Only the caller can distinguish one claim sent twice from two claims, by its
    nonce. *wait_s* is how long a blocking command may wait for its answer, in seconds. The socket timeout is
    COMMAND_TIMEOUT_S longer.

    Raises:
        StoreUnreachable: *url* is not a URL of a Redis store.

    """
    from gpuqueue.queue.redis_py import client  # noqa: PLC0415 - importing redis is a latency that users feel

    try:
        _judge(url)
        return client(url, connect_s=COMMAND_TIMEOUT_S, silent_s=wait_s + COMMAND_TIMEOUT_S)
    except ValueError:
        # The library's message may contain the password, so it is neither shown nor logged.
        raise StoreUnreachable(
            f"GPUQUEUE_REDIS_URL is no usable address ({without_password(url)}): "
            "write redis://HOST:6379/0 or unix:///PATH"
        ) from None


def connect_at_once(url: str, *, wait_s: float = 0.0) -> Any:
    """Return the built-in client of the store at *url*, which does not need redis-py.

    For a URL with a parameter that the built-in client does not support, return the client of :func:`connect`.

    Raises:
        StoreUnreachable: *url* is not a URL of a Redis store.

    """
    address = parsed(url)
    if address is None:
        return connect(url, wait_s=wait_s)
    return RespClient(address, connect_s=COMMAND_TIMEOUT_S, silent_s=wait_s + COMMAND_TIMEOUT_S)


def _judge(url: str) -> None:
    """Reject a URL that redis-py accepts but that makes its first command fail.

    Raises:
        ValueError: the URL is not usable; the message says why.

    """
    parts = urlsplit(url)
    (parts.hostname or "").encode("idna")
    for name in parse_qs(parts.query, keep_blank_values=True):
        if name not in _IN_AN_ADDRESS and not (name.startswith("ssl_") and parts.scheme == "rediss"):
            raise ValueError(f"{name!r} is not allowed in it, only {', '.join(sorted(_IN_AN_ADDRESS))} and ssl_…")


@contextmanager
def translated(url: str, why_away: WhyAway | None = None) -> Iterator[None]:
    """Translate the errors of both clients into gpuqueue errors. *why_away* explains why the store does not answer.

    Raises:
        StoreUnreachable: the store does not answer.
        StoreNotOpen: the store is not open.
        StoreNotReady: the store answers that it cannot serve; StoreLoading if it soon can.
        Unreadable: any other error of the store, such as a key to which another program wrote a value.

    """
    try:
        yield
    except _failures() as error:
        raise _in_our_words(error, url, why_away) from error


def _failures() -> tuple[type[Exception], ...]:
    """Return the error classes of the built-in client, and of redis-py if it has been imported."""
    theirs = getattr(sys.modules.get("redis"), "RedisError", None)
    return (RespError,) if theirs is None else (RespError, theirs)


def _in_our_words(error: Exception, url: str, why_away: WhyAway | None) -> Exception:
    where = f"the store at {without_password(url)}"
    if isinstance(error, RespError):
        failure = error
    else:
        from gpuqueue.queue.redis_py import as_ours  # noqa: PLC0415 - as in connect

        failure = as_ours(cast("redis.RedisError", error))
    not_open = _message_for(failure, NOT_OPEN)
    if not_open is not None:
        return not_open_error(not_open)
    words = _NOT_LET_IN if isinstance(failure, NotLetIn) else _message_for(failure, _BY_CODE)
    if words is not None:
        return (StoreLoading if words == _LOADING else StoreNotReady)(words)
    if not isinstance(failure, Gone):
        # Not Unreachable: callers continue without an absent store, but this store is up and may give jobs to others.
        return Unreadable(f"{where} gave an unexpected answer: {brief(str(failure), 200)}")
    away = _unreachable(error, url, where, why_away)
    away.is_unanswered = not isinstance(failure, NotConnected)
    return away


def _unreachable(error: Exception, url: str, where: str, why_away: WhyAway | None) -> StoreUnreachable:
    causes = list(_causes(error))
    if any(isinstance(each, PermissionError) for each in causes):
        return StoreUnreachable(
            f"you may not use {where}: it belongs to another account. Ask its owner to let you in, "
            "or point GPUQUEUE_STATE_DIR or GPUQUEUE_REDIS_URL elsewhere"
        )
    unknown = next((each for each in causes if isinstance(each, _socket.gaierror)), None)
    if unknown is not None:
        return StoreUnreachable(f"{where} has no known host ({unknown.strerror})", "correct GPUQUEUE_REDIS_URL")
    insecure = _no_secure_line(causes) if url.startswith("rediss:") else ""
    if insecure:
        return StoreUnreachable(f"there is no secure connection to {where}: {insecure}")
    reason, remedy = ("", START_THERE) if why_away is None else why_away()
    if remedy == START_ONE:  # there is none that could answer
        return StoreUnreachable(reason, remedy)
    what = f"{where} does not answer"
    return StoreUnreachable(f"{what}: {reason}" if reason else what, f"{remedy}{_hint_at_tls(url, causes)}")


def not_open_error(words: str) -> StoreNotOpen:
    """Return the error with *words*, one of :data:`NOT_OPEN`."""
    what, _, remedy = words.partition(": ")
    return StoreNotOpen(what, remedy)


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """Yield *error* and the errors behind it: both clients wrap those of the system in their own."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _no_secure_line(causes: Iterable[BaseException]) -> str:
    """Return why TLS failed and what to do; empty if TLS was not the cause."""
    for error in causes:
        if isinstance(error, FileNotFoundError):
            return "a file that its address names as ssl_… does not exist"
        if type(error).__name__ == "SSLCertVerificationError":
            return (
                "its certificate is not trusted: name the authority that signed it in the address, ?ssl_ca_certs=FILE"
            )
    return ""


def _hint_at_tls(url: str, causes: Iterable[BaseException]) -> str:
    """Return a hint at a likely mistake in the URL, empty if there is none.

    A server that expects TLS closes a connection without it.
    """
    parts = urlsplit(url)
    if parts.scheme == "rediss":
        return ". Does it speak TLS? Without, its address begins with redis://"
    was_closed = any(
        isinstance(each, (ConnectionResetError, BrokenPipeError)) or "closed" in str(each).lower() for each in causes
    )
    if parts.scheme == "redis" and was_closed:
        return ". It closed the connection: does it want TLS? Then its address begins with rediss://"
    return ""


def _message_for(error: RespError, words: Mapping[str, str]) -> str | None:
    """Return the message for the code in *error*, None if no code is known.

    The code can be anywhere in the text, because a script may include the error of a command in its own message.
    """
    return next((words[word] for word in str(error).split() if word in words), None)
