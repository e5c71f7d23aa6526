"""The server's own time for scripts, from its slow log, and a script of reads to compare it with.

A call below the log's threshold counts as the threshold.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import redis

from benchmarks.measure.rounds import quantile
from gpuqueue.queue import keys
from gpuqueue.queue.functions import name_of
from gpuqueue.queue.requests import new_nonce
from gpuqueue.queue.scripts import lasting, whole

#: Shorter calls count as this, in us. With threshold 0 the log would also record each command of a script, which made
#: the scripts a quarter slower.
LOGGED_US = 15
#: The commands of a claim that finds a job at once.
READS = 30
#: A script that reads one field as often.
FLOOR = f"for i = 1, {READS} do redis.call('HGET', KEYS[1] .. 'meta', 'claims') end return {{}}"


def reader(client: redis.Redis) -> Callable[[], None]:
    """Return a function that runs a script that only reads, with a claim's arguments."""
    reads = client.script_load(FLOOR)

    def once() -> None:
        client.evalsha(reads, 1, keys.PREFIX, "bench", "GPU-0", "w", 3600000, 0, new_nonce(), 0)

    return once


class Cost(NamedTuple):
    """The server's time for a script, in microseconds."""

    p50: int
    p99: int
    most: int


def claims_in_log(clock: str = "") -> tuple[str, ...]:
    """Return the names of a claim in the server's log: a function, or a script where it has no functions."""
    return name_of("claim", lasting("claim", clock)), *scripts_in_log(whole("claim", clock))


def scripts_in_log(text: str) -> tuple[str, ...]:
    """Return the names of the script *text* in the server's log."""
    return (hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest(),)


def took_us(log: Sequence[dict[str, Any]], names: Sequence[str]) -> list[int]:
    """Return the durations of the calls in the *log* that have one of these names, in microseconds."""
    return [int(entry["duration"]) for entry in log if any(name in str(entry["command"]) for name in names)]


def costs_of(
    client: redis.Redis, calls: Sequence[Sequence[str]], once: Callable[[], None], count: int
) -> tuple[Cost, ...]:
    """Return the cost of each of *calls*, each of which *once* runs one time, from the server's log."""
    once()
    client.slowlog_reset()
    for _ in range(count):
        once()
    log: list[dict[str, Any]] = client.slowlog_get(10 * count)
    return tuple(_cost_of(names, log, count) for names in calls)


def _cost_of(names: Sequence[str], log: list[dict[str, Any]], count: int) -> Cost:
    slow = took_us(log, names)
    found = [LOGGED_US] * (count - len(slow)) + slow
    return Cost(p50=quantile(found, 0.5), p99=quantile(found, 0.99), most=max(found))
