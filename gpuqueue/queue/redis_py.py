"""The redis-py client of the store, for long-lived processes: workers, recorder, doctor. See docs/internals/adr/0008.

Importing redis-py takes longer than most commands, so this module is imported only when it is needed.
"""

from __future__ import annotations

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from gpuqueue.queue.resp.connection import Gone, NotConnected, NotLetIn, ReplyError, RespError

#: redis-py has classes for these errors of the store, and removes the code from their messages.
_CODES: tuple[tuple[type[Exception], str], ...] = (
    (redis.BusyLoadingError, "LOADING"),
    (redis.ReadOnlyError, "READONLY"),
    (redis.OutOfMemoryError, "OOM"),
    (redis.exceptions.NoPermissionError, "NOPERM"),
    (redis.exceptions.MasterDownError, "MASTERDOWN"),  # a subclass of the next
    (redis.exceptions.ClusterDownError, "CLUSTERDOWN"),
    (redis.exceptions.TryAgainError, "TRYAGAIN"),
)


def client(url: str, *, connect_s: float, silent_s: float) -> redis.Redis:
    """Return the redis-py client of the store at *url*; send nothing yet. The timeouts are those of a ``Line``.

    Raises:
        ValueError: *url* is not valid.

    """
    made: redis.Redis = redis.Redis.from_url(
        url,
        decode_responses=True,
        # Other programs may write bytes that are not UTF-8. They become escaped surrogates instead of an error.
        encoding_errors="surrogateescape",
        retry=Retry(NoBackoff(), 0),
        socket_timeout=silent_s,
        socket_connect_timeout=connect_s,
    )
    return made


def as_ours(error: redis.RedisError) -> RespError:
    """Return *error* as the error of the built-in client."""
    text = str(error)
    code = next((code for kind, code in _CODES if isinstance(error, kind)), None)
    if code is not None:
        return ReplyError(f"{code} {text}")
    if isinstance(error, redis.AuthenticationError):
        return NotLetIn(text)
    if isinstance(error, (redis.ConnectionError, redis.TimeoutError)):
        return NotConnected(text) if "connecting to" in text else Gone(text)
    return ReplyError(
        text.rpartition(" of pipeline caused error: ")[2]
    )  # redis-py puts a prefix before the store's message
