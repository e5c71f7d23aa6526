"""What the store's server tells of itself. Looking changes nothing."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from typing import TYPE_CHECKING, Any, cast

from gpuqueue.lazy.frozen import dataclass
from gpuqueue.lazy.imports import later
from gpuqueue.queue.connect import connect, translated

if TYPE_CHECKING:
    import redis
else:
    redis = later("redis")


@dataclass(frozen=True, kw_only=True, slots=True)
class ServerFacts:
    """The server's own figures. None is what it will not tell."""

    #: Its name and version, as people know it.
    product: str
    #: The version of Redis whose commands it has.
    compatible: tuple[int, int] | None
    loading: bool
    replica: bool
    append_only: bool | None
    #: When its log of writes is forced to the disk: ``always``, ``everysec`` or ``no``.
    fsync: str | None
    policy: str | None
    #: None: it may take all that the machine has.
    limit_bytes: int | None
    used_bytes: int | None
    system_bytes: int | None
    evicted: int
    #: What gives it its memory: ``jemalloc-5.3.0``, ``libc`` (the C library, or what was loaded in its place).
    allocator: str | None
    pid: int | None
    #: What failed when it last wrote to its disk: ``its log of writes`` and the like; empty when nothing did.
    failed_writes: tuple[str, ...]
    #: Where its data lies, on its machine.
    directory: str | None
    #: How far its clock is ahead of ours, and how far that may be wrong.
    clock_ahead_s: float
    clock_error_s: float


def server_facts(url: str, now_s: Callable[[], float] = time.time) -> ServerFacts:
    """Return what the server at *url* tells of itself; *now_s* is the clock that its own is compared with.

    Raises:
        StoreUnreachable: it does not answer.
        StoreNotReady: it answers, and says that it cannot serve.

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
            allocator=info.get("mem_allocator"),
            pid=info.get("process_id"),
            failed_writes=tuple(words for name, words in _FAILURES.items() if info.get(name, "ok") != "ok"),
            directory=_config(client, "dir"),
            clock_ahead_s=seconds + micros / 1e6 - (before_s + after_s) / 2,
            clock_error_s=(after_s - before_s) / 2,
        )


#: Fields of INFO that are ``ok`` or not, and what has failed then.
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


def _config(client: redis.Redis, name: str) -> str | None:
    try:
        return cast("dict[str, str]", client.config_get(name)).get(name)
    except redis.ResponseError:
        return None  # the store's access rules may forbid CONFIG; then its owner answers for it
