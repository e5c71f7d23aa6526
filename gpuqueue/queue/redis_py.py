"""The client library's door to the store, for whoever lives long: workers, recorder, doctor. docs/adr/0008.

Importing the library takes longer than most commands do in all, so nobody imports this module before it is needed.
"""

from __future__ import annotations

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from gpuqueue.queue.resp.errors import DoorError, Gone, NotLetIn, Said

#: The library knows some of the store's errors by class, and has cut their code off the message by then.
_CODES: tuple[tuple[type[Exception], str], ...] = (
    (redis.BusyLoadingError, "LOADING"),
    (redis.ReadOnlyError, "READONLY"),
    (redis.OutOfMemoryError, "OOM"),
    (redis.exceptions.NoPermissionError, "NOPERM"),
    (redis.exceptions.MasterDownError, "MASTERDOWN"),  # a kind of the next
    (redis.exceptions.ClusterDownError, "CLUSTERDOWN"),
    (redis.exceptions.TryAgainError, "TRYAGAIN"),
)


def client(url: str, *, connect_s: float, silent_s: float) -> redis.Redis:
    """Return the library's client of the store at *url*; nothing is sent yet. The times are those of a ``Line``.

    Raises:
        ValueError: *url* is none.

    """
    made: redis.Redis = redis.Redis.from_url(
        url,
        decode_responses=True,
        # What somebody else wrote may be no UTF-8: it comes out as escaped surrogates, and stops nobody.
        encoding_errors="surrogateescape",
        retry=Retry(NoBackoff(), 0),
        socket_timeout=silent_s,
        socket_connect_timeout=connect_s,
    )
    return made


def as_ours(error: redis.RedisError) -> DoorError:
    """Return what *error* is called behind the small door."""
    text = str(error)
    code = next((code for kind, code in _CODES if isinstance(error, kind)), None)
    if code is not None:
        return Said(f"{code} {text}")
    if isinstance(error, redis.AuthenticationError):
        return NotLetIn(text)
    if isinstance(error, (redis.ConnectionError, redis.TimeoutError)):
        return Gone(text)
    return Said(text.rpartition(" of pipeline caused error: ")[2])  # the library's words stand before the store's
