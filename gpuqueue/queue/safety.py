"""Is the store fit to be trusted with jobs?"""

from __future__ import annotations

import re
from typing import Any, cast

import redis

from gpuqueue.errors import StoreNotReady
from gpuqueue.queue.connect import connect, translated

#: Oldest Redis whose commands suffice (ZADD LT, XTRIM MINID). Every Valkey is newer.
OLDEST_REDIS = (6, 2)


def check_safety(url: str) -> list[str]:
    """Return warnings about the store at *url*.

    Raises:
        StoreNotReady: it is too old, or would silently forget jobs when memory runs out.
        StoreUnreachable: it does not answer.

    """
    client = connect(url)
    warnings = []
    with translated(url):
        server: dict[str, Any] = client.info("server")
        match = re.match(r"(\d+)\.(\d+)", str(server.get("redis_version", "")))
        if match and (int(match[1]), int(match[2])) < OLDEST_REDIS:
            raise StoreNotReady(f"the store is Redis {server['redis_version']}: 6.2 or newer, or any Valkey, is needed")
        policy = _config(client, "maxmemory-policy")
        limit = _config(client, "maxmemory")
        if policy not in {None, "noeviction"} and limit not in {None, "0"}:
            raise StoreNotReady(
                f"the store may evict keys (maxmemory-policy {policy}) and so forget jobs: "
                "set maxmemory-policy noeviction"
            )
        if _config(client, "appendonly") == "no":
            warnings.append(
                "the store keeps no log of its writes (appendonly no): a crash would lose jobs; set appendonly yes"
            )
    client.close()
    return warnings


def _config(client: redis.Redis, name: str) -> str | None:
    try:
        return cast("dict[str, str]", client.config_get(name)).get(name)
    except redis.ResponseError:
        return None  # the store's access rules may forbid CONFIG; then its owner answers for it
