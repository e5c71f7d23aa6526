"""Checks whether a store is safe for jobs."""

from __future__ import annotations

from urllib.parse import parse_qs, urlsplit

from gpuqueue.errors import StoreNotReady
from gpuqueue.queue.server_info import ServerFacts, server_facts

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
