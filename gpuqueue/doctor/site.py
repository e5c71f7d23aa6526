"""What every check takes: the settings, and the parts of the site that several checks need."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timezone
from typing import Generic, TypeVar

from gpuqueue.errors import BadRequest, HistoryUnreachable
from gpuqueue.history.diagnostics import DatabaseFacts, database_facts
from gpuqueue.lazy.frozen import dataclass
from gpuqueue.model.joining import HostSettings
from gpuqueue.queue.diagnostics import QueueFacts, queue_facts
from gpuqueue.queue.safety import ServerFacts, server_facts
from gpuqueue.settings.settings import Settings
from gpuqueue.system.socket_http import is_local
from gpuqueue.system.timed_call import CallFailed, TimedCall

T = TypeVar("T")

#: Time limit for reading a part, in seconds. The store's and the database's own limits are 5 and 10 s.
POLL_S = 10.0
#: How much longer the service may take than other parts, in seconds: its own limit is higher.
PATIENCE_S = 5.0
#: Time limit of the integrity check of the history's file, in seconds, without ``--deep``.
INTEGRITY_S = 1.0
#: Clock difference that makes the times in logs and in the history hard to read, in seconds.
SKEW_S = 5.0


@dataclass(frozen=True, kw_only=True, slots=True)
class ServiceAnswer:
    """What the service says. ``asked_s`` is how long its answer took, and ``now`` the time here when it came."""

    there: HostSettings
    now: datetime
    asked_s: float


class Site:
    """The site as this machine sees it.

    The parts are functions. The first call reads the part, in a thread with a time limit; further calls return the
    same. They raise CallFailed if the part cannot be read, or not in time.
    """

    def __init__(
        self,
        settings: Settings,
        faults: Sequence[BadRequest] = (),
        environ: Mapping[str, str] = os.environ,
        *,
        integrity_s: float = INTEGRITY_S,
    ) -> None:
        self.settings, self.faults, self.environ = settings, faults, environ
        database_s = POLL_S + integrity_s
        self.server: Callable[[], ServerFacts] = _Once(lambda: server_facts(settings.redis_url), POLL_S)
        self.database: Callable[[], DatabaseFacts] = _Once(lambda: _read_database(settings, integrity_s), database_s)
        self.queue: Callable[[], QueueFacts] = _Once(self._read_queue, POLL_S + database_s)
        self.service: Callable[[], ServiceAnswer] = _Once(lambda: _ask_service(settings), POLL_S + PATIENCE_S)

    def _read_queue(self) -> QueueFacts:
        """Return what the store holds. It is read only after the store has answered."""
        if or_none(self.server) is None:
            raise CallFailed("the store does not answer")
        database = or_none(self.database)
        contents = None if database is None else database.contents
        cursor = None if contents is None else contents.cursor
        return TimedCall(lambda: queue_facts(self.settings.redis_url, cursor), POLL_S).result()


def or_none(part: Callable[[], T]) -> T | None:
    """Return what was read of a part of the site, or None if it cannot be read."""
    try:
        return part()
    except CallFailed:
        return None


class _Once(Generic[T]):
    """Reads a part when it is first called, also if several threads call at the same time."""

    def __init__(self, read: Callable[[], T], limit_s: float) -> None:
        self._read, self._limit_s = read, limit_s
        self._lock = threading.Lock()
        self._call: TimedCall[T] | None = None

    def __call__(self) -> T:
        with self._lock:
            self._call = self._call or TimedCall(self._read, self._limit_s)
        return self._call.result()


def _read_database(settings: Settings, integrity_s: float) -> DatabaseFacts:
    if not settings.has_history:
        raise HistoryUnreachable("this host records no history")
    return database_facts(settings.database_url, integrity_s=integrity_s)


def _ask_service(settings: Settings) -> ServiceAnswer:
    # Only a host that has joined a service needs these.
    from gpuqueue.client.first_call import ServiceAddress  # noqa: PLC0415 - as above
    from gpuqueue.client.joining import settings_of  # noqa: PLC0415 - as above
    from gpuqueue.client.remote.credentials import token_in  # noqa: PLC0415 - as above

    url, token = str(settings.service_url), ""
    if not is_local(url):  # else the kernel says who calls
        if settings.service_token_file is None:
            raise BadRequest("there is no token of this host (setting service_token_file)")
        token = token_in(settings.service_token_file)
    began_s = time.monotonic()
    there = settings_of(ServiceAddress(url=url, token=token, ca=settings.service_ca))
    return ServiceAnswer(there=there, now=datetime.now(timezone.utc), asked_s=time.monotonic() - began_s)
