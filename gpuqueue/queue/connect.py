"""Connections to the store, and its failures in words."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit, urlunsplit

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from gpuqueue.errors import StoreNotReady, StoreUnreachable

#: How long one command may take before the store counts as unreachable, in seconds.
COMMAND_TIMEOUT_S = 5.0

#: What the store itself says when it is there but cannot serve, and what to do about it.
_NOT_READY = {
    "NOTOPEN": "the store was never opened for gpuqueue: run gpuqueue up",
    "LOADING": "the store is still loading its data: try again in a moment",
    "MISCONF": "the store cannot write to its disk: free some space, see the store's log",
    "READONLY": "the store is a read-only replica: point GPUQUEUE_REDIS_URL at the primary",
    "OOM": "the store has reached its maxmemory: raise the limit",
    "NOAUTH": "the store wants a password: put it into GPUQUEUE_REDIS_URL",
    "WRONGPASS": "the store does not accept the password in GPUQUEUE_REDIS_URL",
    "NOPERM": "the store's access rules do not let gpuqueue work: allow all commands on keys {gq}:*",
}


def connect(url: str, *, blocking: bool = False) -> redis.Redis:
    """Return a client of the store at *url*; nothing is sent yet.

    Commands are never repeated silently: a claim that is sent twice must be told apart from two claims,
    and only its sender can do that (with a nonce). A *blocking* client waits as long as its command says.

    Raises:
        StoreUnreachable: *url* is no URL of a Redis store.

    """
    try:
        client: redis.Redis = redis.Redis.from_url(
            url,
            decode_responses=True,
            retry=Retry(NoBackoff(), 0),
            socket_timeout=None if blocking else COMMAND_TIMEOUT_S,
            socket_connect_timeout=COMMAND_TIMEOUT_S,
        )
    except ValueError as error:
        raise StoreUnreachable(f"GPUQUEUE_REDIS_URL is no usable address: {error}") from error
    return client


def without_password(url: str) -> str:
    """Return *url* as it may be shown."""
    parts = urlsplit(url)
    if parts.password is None:
        return url
    return urlunsplit(parts._replace(netloc=parts.netloc.replace(f":{parts.password}@", ":***@")))


@contextmanager
def translated(url: str) -> Iterator[None]:
    """Turn the client library's errors into ours.

    Raises:
        StoreUnreachable: no answer.
        StoreNotReady: an answer that says that the store cannot serve.

    """
    try:
        yield
    except (redis.ConnectionError, redis.TimeoutError) as error:
        code = str(error).split(" ", 1)[0]
        if code in _NOT_READY:
            raise StoreNotReady(_NOT_READY[code]) from error
        raise StoreUnreachable(
            f"the store at {without_password(url)} does not answer: is it running? Start it with gpuqueue up"
        ) from error
    except redis.ResponseError as error:
        for code, words in _NOT_READY.items():
            if str(error).startswith(code) or f" {code} " in str(error):
                raise StoreNotReady(words) from error
        raise
