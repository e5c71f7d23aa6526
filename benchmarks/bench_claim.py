"""What a claim costs the store, by how many jobs wait and by how hard it is to find one that fits.

50 users, 30 memory classes, 4 time limits and 4 levels, on one store; every script and rule is the real one. What is
told is the time that the server itself counts for each claim (its slow log), next to the floor: an empty script with
the same arguments on the same server, in the same run. What the log does not take counts as its threshold. On a machine
that is slow for a while both are: look at the ratio.

    python benchmarks/bench_claim.py [--pending 1000 100000 1000000] [--claims 2000]
"""

from __future__ import annotations

import argparse
import os
import random
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, cast

import redis

from gpuqueue.codec import encode_spec
from gpuqueue.device import Device, DeviceKind
from gpuqueue.embedded.store import EmbeddedStore
from gpuqueue.job import Account, JobSpec, Level
from gpuqueue.queue import keys
from gpuqueue.queue.connect import connect
from gpuqueue.queue.jobqueue import JobQueue
from gpuqueue.queue.lease import Offer
from gpuqueue.queue.requests import new_nonce
from gpuqueue.queue.scripts import Scripts
from gpuqueue.settings import Settings

GIB = 2**30
USERS, CLASSES = 50, 30
LIMITS_S = (None, 600.0, 3600.0, 86400.0)
#: More than any card has, so that memory is never what ends a measurement.
CARD_BYTES = 64 * GIB
PIPE = 1000
#: Claims that took less are told as this. The log would also take each command of a script if it could: that made the
#: scripts look slower by a quarter.
LOGGED_US = 15


@dataclass(frozen=True, kw_only=True)
class Case:
    """How full the device is, and what stands in the way."""

    name: str
    free_bytes: int
    reserved: bool = False


CASES = (
    Case(name="everything fits", free_bytes=40 * GIB),
    Case(name="a quarter fits", free_bytes=8 * GIB),
    Case(name="the smallest class fits", free_bytes=GIB),
    Case(name="nothing fits (an idle look)", free_bytes=GIB // 2),
    Case(name="kept for another, most may go before", free_bytes=40 * GIB, reserved=True),
    Case(name="kept for another, nobody may go before", free_bytes=8 * GIB, reserved=True),
)


def main() -> None:
    """Fill a store step by step, and measure every case at each size."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pending", type=int, nargs="+", default=[1_000, 100_000])
    parser.add_argument("--claims", type=int, default=2_000, help="Claims measured in each case.")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="gq-bench-") as state:
        settings = Settings.load({"GPUQUEUE_STATE_DIR": state, "GPUQUEUE_CONFIG": os.devnull})
        store = EmbeddedStore(settings)
        store.start()
        try:
            _measure(settings, sorted(options.pending), options.claims)
        finally:
            store.stop()


def _measure(settings: Settings, sizes: list[int], claims: int) -> None:
    queue, client = JobQueue(settings.redis_url), connect(settings.redis_url, wait_s=60)
    client.config_set("appendfsync", "no")  # the disk is another benchmark's
    client.config_set("slowlog-max-len", 10 * claims)
    client.config_set("slowlog-log-slower-than", LOGGED_US)
    queue.open(0)
    scripts, pending = Scripts(client), 0
    print(f"{'pending':>9}  {'case':40} {'p50':>8} {'p99':>8} {'most':>8}  {'p50 / empty script':>18}  load")
    for size in sizes:
        began_s = time.monotonic()
        _fill(scripts, size - pending)
        rate = (size - pending) / (time.monotonic() - began_s)
        used = cast("dict[str, Any]", client.info("memory"))["used_memory"]
        pending = size
        floor_us = _floor_us(client, claims)
        for case in CASES:
            _fill(scripts, claims)  # what the last case took out: else a small queue is empty after the first
            cost = _cost(client, _claimer(queue, client, case), claims)
            print(
                f"{size:>9}  {case.name:40} {cost.p50_us:>6}us {cost.p99_us:>6}us {cost.most_us:>6}us"
                f"  {cost.p50_us / floor_us:>17.0f}x  {os.getloadavg()[0]:.1f}"
            )
        print(f"{'':9}  empty script {floor_us:.1f} us; submitted at {rate:.0f}/s, {used / size:.0f} B each")


def _fill(scripts: Scripts, count: int) -> None:
    """Submit so many jobs of all users, classes, limits and levels."""
    chance = random.Random(count)  # noqa: S311 - the same jobs each time
    specs = {}
    for user in range(USERS):
        for size in range(CLASSES):
            for limit_s in LIMITS_S:
                spec = JobSpec(
                    argv=("python", "train.py"),
                    cwd="/home",
                    account=Account(name=f"user{user}", uid=1000 + user, host="laptop"),
                    mem_bytes=(size + 1) * GIB,
                    name="train",
                    time_limit_s=limit_s,
                )
                specs[user, size, limit_s] = (str(spec.shape), spec.mem_bytes, encode_spec(spec))

    def words() -> Iterator[tuple[str | float, ...]]:
        for _ in range(min(PIPE, count)):
            user = chance.randrange(USERS)
            shape, mem_bytes, text = specs[user, chance.randrange(CLASSES), chance.choice(LIMITS_S)]
            yield f"user{user}", int(chance.choice(list(Level))), mem_bytes, shape, 1, text, new_nonce(), ""

    for _ in range(-(-count // PIPE)):
        for reply in scripts.run_each("submit", list(words())):
            if isinstance(reply, Exception):
                raise reply


def _claimer(queue: JobQueue, client: redis.Redis, case: Case) -> Callable[[], None]:
    """Return what claims once on a device in this state, and leaves the device as it was."""
    device = Device(uuid="GPU-0", index=0, name="Bench", kind=DeviceKind.GPU, total_bytes=CARD_BYTES)
    taken = CARD_BYTES - case.free_bytes
    offer = Offer(device=device, host="bench", headroom_bytes=0, foreign_bytes=taken, slots=8)
    queue.announce(offer, worker="w", pid=1, boot_id="b")
    queue.beat(offer, [], lease_s=3600)
    client.delete(keys.PREFIX + "rsv")
    if case.reserved:
        waits = cast("list[str]", client.zrange(keys.LIVE, -1, -1))[0]
        start_ms = queue.now_ms() + (2 * 86400_000 if case.free_bytes > 8 * GIB else 1000)
        client.hset(keys.PREFIX + "rsv", "GPU-0", f"{waits}:{CARD_BYTES}:{start_ms}:")

    def once() -> None:
        queue.claim(offer, worker="w", lease_s=3600, nonce=new_nonce())
        client.delete(keys.device_leases("GPU-0"))

    return once


def _floor_us(client: redis.Redis, count: int) -> float:
    """Return what an empty script with a claim's arguments costs, in microseconds: too little for the slow log."""
    empty = client.script_load("return {}")
    client.config_resetstat()
    for _ in range(count):
        client.evalsha(empty, 1, keys.PREFIX, "bench", "GPU-0", "w", 3600000, 0, new_nonce(), 0)
    stats = cast("dict[str, Any]", client.info("commandstats"))
    return float(stats["cmdstat_evalsha"]["usec_per_call"])


@dataclass(frozen=True, kw_only=True)
class Cost:
    """What the server counted for a script, in microseconds."""

    p50_us: int
    p99_us: int
    most_us: int


def _cost(client: redis.Redis, once: Callable[[], None], count: int) -> Cost:
    """Return what the scripts cost that *once* runs, by the server's own log of every command."""
    once()
    client.slowlog_reset()
    for _ in range(count):
        once()
    log = cast("list[dict[str, Any]]", client.slowlog_get(10 * count))
    slow = sorted(entry["duration"] for entry in log if str(entry["command"]).lstrip("b'").startswith("EVALSHA"))
    found = [LOGGED_US] * (count - len(slow)) + slow
    return Cost(p50_us=found[len(found) // 2], p99_us=found[len(found) * 99 // 100], most_us=found[-1])


if __name__ == "__main__":
    main()
