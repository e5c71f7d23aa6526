"""Checks whether a store is safe for jobs."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import parse_qs, urlencode, urlsplit, urlunsplit

from gpuqueue.errors import StoreNotReady
from gpuqueue.lazy.frozen import dataclass
from gpuqueue.lazy.imports import later
from gpuqueue.queue.connect import connect, translated

if TYPE_CHECKING:
    import redis
else:
    redis = later("redis")

#: Oldest Redis whose commands suffice (ZADD LT, XTRIM MINID). Every Valkey is newer.
OLDEST_REDIS = (6, 2)


def check_safety(url: str) -> list[str]:
    """Return warnings about the store at *url*.

    Raises:
        StoreNotReady: the store is too old, or would silently drop jobs when its memory is full.
        StoreUnreachable: the store does not answer.

    """
    server = server_facts(url)
    if is_too_old(server):
        raise StoreNotReady(f"the store is {server.product}: use Redis 6.2 or newer, or Valkey")
    if may_evict(server) and server.limit_bytes is not None:
        raise StoreNotReady(
            f"the store may evict keys (maxmemory-policy {server.policy}) and so forget jobs: "
            "set maxmemory-policy noeviction"
        )
    return [f"{seen}: {remedy}" for seen, remedy in exposures(url, server)] + (
        ["the store keeps no log of its writes (appendonly no): a crash would lose jobs; set appendonly yes"]
        if server.append_only is False
        else []
    )


def exposures(url: str, server: ServerFacts) -> list[tuple[str, str]]:
    """Return (risk, remedy) pairs for the store at *url*."""
    found = []
    if server.open_to_all:
        remedy = "set a password there (requirepass, or an ACL user) and in GPUQUEUE_REDIS_URL"
        found.append(("without a password, anybody who reaches the store can run code as the worker's account", remedy))
    if parse_qs(urlsplit(url).query).get("ssl_cert_reqs") == ["none"]:
        remedy = "name the authority that signed it in the address, ?ssl_ca_certs=FILE"
        found.append(("the store's certificate is not checked (ssl_cert_reqs=none): others can pose as it", remedy))
    return found


def is_too_old(server: ServerFacts) -> bool:
    """Return whether the server lacks commands that the queue needs."""
    return server.compatible is not None and server.compatible < OLDEST_REDIS


def may_evict(server: ServerFacts) -> bool:
    """Return whether the server's policy drops keys when it reaches a memory limit."""
    return server.policy not in {None, "noeviction"}


@dataclass(frozen=True, kw_only=True, slots=True)
class ServerFacts:
    """The server's own figures. None means that the server does not report the value."""

    #: Product name and version.
    product: str
    #: The version of Redis that it is compatible with.
    compatible: tuple[int, int] | None
    loading: bool
    replica: bool
    append_only: bool | None
    #: When the append-only file is synced to disk: ``always``, ``everysec`` or ``no``.
    fsync: str | None
    policy: str | None
    #: None: no memory limit is set.
    limit_bytes: int | None
    used_bytes: int | None
    system_bytes: int | None
    evicted: int
    #: What failed at the last write to disk, such as ``its log of writes``; empty if nothing failed.
    failed_writes: tuple[str, ...]
    #: The directory of its data, on its machine.
    directory: str | None
    #: Whether it takes commands from anybody who can connect over the network; None: it listens on a unix socket only,
    #: or nobody knows.
    open_to_all: bool | None
    #: Whether it may drop transactions (MULTI/EXEC) from its log of writes when it starts; None: nobody knows.
    drops_transactions: bool | None
    #: How far its clock is ahead of ours, and the maximum error of that, in seconds.
    clock_ahead_s: float
    clock_error_s: float


def server_facts(url: str, now_s: Callable[[], float] = time.time) -> ServerFacts:
    """Return the facts of the server at *url*; *now_s* is the clock to compare the server's clock with.

    Raises:
        StoreUnreachable: the store does not answer.
        StoreNotReady: the store answers that it cannot serve.

    """
    with closing(connect(url)) as client, translated(url):
        info = client.info()
        before_s = now_s()
        seconds, micros = client.time()
        after_s = now_s()
        return ServerFacts(
            product=_product(info),
            compatible=_version(info.get("redis_version")),
            loading=bool(info.get("loading")),
            replica=info.get("role") == "slave",
            append_only=None if "aof_enabled" not in info else bool(info["aof_enabled"]),
            fsync=_config(client, "appendfsync"),
            policy=info.get("maxmemory_policy"),
            limit_bytes=info.get("maxmemory") or None,
            used_bytes=info.get("used_memory"),
            system_bytes=info.get("total_system_memory"),
            evicted=int(info.get("evicted_keys", 0)),
            failed_writes=tuple(words for name, words in _FAILURES.items() if info.get(name, "ok") != "ok"),
            directory=_config(client, "dir"),
            open_to_all=_is_open(url),
            drops_transactions=_drops_transactions(client, url, info),
            clock_ahead_s=seconds + micros / 1e6 - (before_s + after_s) / 2,
            clock_error_s=(after_s - before_s) / 2,
        )


#: Fields of INFO that are ``ok`` unless something has failed, and what has failed.
_FAILURES: Mapping[str, str] = {
    "aof_last_write_status": "its log of writes",
    "aof_last_bgrewrite_status": "the rewrite of its log of writes",
    "rdb_last_bgsave_status": "its snapshot",
}


def _product(info: Mapping[str, Any]) -> str:
    if "valkey_version" in info:
        return f"Valkey {info['valkey_version']}"
    return f"Redis {info.get('redis_version', 'of unknown version')}"


def _version(text: object) -> tuple[int, int] | None:
    match = re.match(r"(\d+)\.(\d+)", str(text))
    return (int(match[1]), int(match[2])) if match else None


def _is_open(url: str) -> bool | None:
    """Return whether the server at *url* takes commands without a password; None for a unix socket."""
    parts = urlsplit(url)
    if parts.scheme == "unix":
        return None
    without = parts._replace(netloc=parts.netloc.rpartition("@")[2])
    query = {name: words for name, words in parse_qs(parts.query).items() if name not in {"username", "password"}}
    with closing(connect(urlunsplit(without._replace(query=urlencode(query, doseq=True))))) as anybody:
        try:
            return bool(anybody.ping())
        except redis.ConnectionError as error:  # protected mode answers with an error and closes
            return None if not isinstance(error, redis.AuthenticationError) else False
        except redis.RedisError:
            return False


#: Key patterns of an access rule that cover the keys of the queue, as the versions write them.
_COVERS = frozenset({"*", "~*", "{gq}:*", "~{gq}:*"})
#: Oldest Valkey that was seen to read its whole log of writes under any access rule.
_READS_ALL = (9, 1)


def _drops_transactions(client: redis.Redis, url: str, info: Mapping[str, Any]) -> bool | None:
    """Return whether the access rules make the server drop transactions from its log when it starts.

    Redis runs the commands of the log as the user ``default``, and checks those of a transaction. If that user may not
    run them, the transaction is left out without an error. None if the rules hide that user.
    """
    parts = urlsplit(url)
    if (_version(info.get("valkey_version")) or (0, 0)) >= _READS_ALL:
        return False
    if (parts.username or parse_qs(parts.query).get("username", [""])[0]) in {"", "default"}:
        return False  # it is that user who writes
    try:
        rule = cast("dict[str, Any]", client.acl_getuser("default"))
    except redis.ResponseError:
        return None
    return "+@all" not in rule.get("categories", ()) or _COVERS.isdisjoint(rule.get("keys", ()))


def _config(client: redis.Redis, name: str) -> str | None:
    try:
        return cast("dict[str, str]", client.config_get(name)).get(name)
    except redis.ResponseError:
        return None  # the ACL of the store may forbid CONFIG; then the value is unknown
