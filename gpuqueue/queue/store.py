"""One store: its connections, its scripts and its clock. Each part of the queue takes a :class:`Store`."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar, cast

from gpuqueue.errors import Unreadable
from gpuqueue.queue import keys
from gpuqueue.queue.connect import Connect, WhyAway, connect, translated
from gpuqueue.queue.resp.client import RespClient
from gpuqueue.queue.scripts import Scripts
from gpuqueue.text.sanitize import brief, without_password

#: Longest wait of a command on the second connection, in seconds.
MAX_WAIT_S = 10.0
#: Errors that unpacking a reply of an unexpected shape can raise.
_TAKEN_APART = (TypeError, ValueError, AttributeError, LookupError, OverflowError)


class Store:
    """The store at *url*. *by* makes its clients; long-lived processes use redis-py.

    *why_away* explains why it does not answer. Without it, users are sent to where it runs.
    """

    def __init__(self, url: str, *, by: Connect = connect, why_away: WhyAway | None = None) -> None:
        self.url = url
        self.why_away = why_away
        self.client: Any = by(url)
        self.scripts = Scripts(self.client)
        self._by = by
        self._waiting_client: Any = None

    @property
    def waiting_client(self) -> Any:
        """Return a second client, for commands that wait up to MAX_WAIT_S seconds for their answer."""
        if self._waiting_client is None:
            self._waiting_client = self._by(self.url, wait_s=MAX_WAIT_S)
        return self._waiting_client

    def epoch(self) -> str | None:
        """Return the store's epoch, or None if it is not open."""
        return cast("str | None", self.client.get(keys.EPOCH))

    def now_ms(self) -> int:
        """Return the store's time, in milliseconds since 1970."""
        seconds, micros = self.client.time()
        return int(seconds) * 1000 + int(micros) // 1000

    def close(self) -> None:
        """Close the connections."""
        self.client.close()
        if self._waiting_client is not None:
            self._waiting_client.close()


class _OfStore(Protocol):
    _store: Store


S = TypeVar("S", bound=_OfStore)
P = ParamSpec("P")
R = TypeVar("R")


def answering(method: Callable[Concatenate[S, P], R]) -> Callable[Concatenate[S, P], R]:
    """Make *method* of a part of the queue raise gpuqueue errors instead of client errors.

    With the built-in client this includes a reply of an unexpected shape: a user whose URL leads to another program
    needs no traceback. Workers use redis-py, and their tracebacks go to the log.
    """

    @wraps(method)
    def wrapper(self: S, *args: P.args, **kwargs: P.kwargs) -> R:
        store = self._store
        try:
            with translated(store.url, store.why_away):
                return method(self, *args, **kwargs)
        except _TAKEN_APART as error:
            if not isinstance(store.client, RespClient):
                raise
            raise _malformed_reply(error, store.url) from error

    return cast("Callable[Concatenate[S, P], R]", wrapper)


def to_ms(duration_s: float) -> int:
    """Return a duration in seconds as whole milliseconds, for the scripts."""
    return round(duration_s * 1000)


def _malformed_reply(error: Exception, url: str) -> Unreadable:
    """Return the error for a reply of an unexpected shape; its message names the line, since it may be our bug."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    where = f" in {Path(trace.tb_frame.f_code.co_filename).name}, line {trace.tb_lineno}" if trace is not None else ""
    return Unreadable(
        f"what answers at {without_password(url)} is no store of this gpuqueue: nobody can read its reply "
        f"({type(error).__name__}{where}: {brief(str(error), 100)})"
    )
