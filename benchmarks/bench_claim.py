"""What a claim costs the store, by how many jobs wait and by how hard it is to find one that fits.

50 users, 30 memory classes, 4 time limits and 4 levels, on one store; every script and rule is the real one. What is
told is the time that the server itself counts for each claim (its slow log), next to the floor: a script that asks for
one field as many times as a claim that finds its job at once asks for anything (30), on the same server, in the same
run. What the log does not take counts as its threshold. On a machine that is slow for a while both are: look at the
ratio. Every fiftieth script, whichever it is, the server collects garbage within: that is most of what a `p99` tells,
of the floor's as well. Where the server has loaded a better allocator than the C library's (see
gpuqueue/embedded/allocator.py), the largest queue is measured once more without it: ``claim-libc``. Beside it what a
waiting job takes of the store's memory, and the whole process of ``gpuqueue queue`` while so many wait.

    python -m benchmarks.bench_claim [--pending 1000 100000 1000000] [--claims 2000]
"""

from __future__ import annotations

import argparse
import random
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import redis

from benchmarks.measure.command import beside_click
from benchmarks.measure.figure import Figure, Floor, Measured
from benchmarks.measure.home import clean_environ
from benchmarks.measure.options import how_many
from benchmarks.measure.place import GPUQUEUE, Store, private_store, quiet
from benchmarks.measure.rounds import timed
from benchmarks.measure.table import tell
from gpuqueue.codec import encode_spec
from gpuqueue.device import Device, DeviceKind
from gpuqueue.job import Account, JobSpec, Level
from gpuqueue.queue import keys
from gpuqueue.queue.lease import Offer
from gpuqueue.queue.requests import new_nonce
from gpuqueue.queue.scripts import Scripts

GIB = 2**30
USERS, CLASSES = 50, 30
LIMITS_S = (None, 600.0, 3600.0, 86400.0)
#: More than any card has, so that memory is never what ends a measurement.
CARD_BYTES = 64 * GIB
PIPE = 1000
#: Claims that took less are told as this. The log would also take each command of a script if it could: that made the
#: scripts look slower by a quarter.
LOGGED_US = 15
#: What a claim asks the store for that finds a job at once: commands.
READS = 30


@dataclass(frozen=True, kw_only=True)
class Case:
    """How full the device is, and what stands in the way."""

    name: str
    what: str
    free_bytes: int
    reserved: bool = False


CASES = (
    Case(name="best", what="everything fits", free_bytes=40 * GIB),
    Case(name="typical", what="a quarter fits", free_bytes=8 * GIB),
    Case(name="smallest", what="the smallest class fits", free_bytes=GIB),
    Case(name="nothing", what="nothing fits (an idle look)", free_bytes=GIB // 2),
    Case(name="kept", what="kept for another, most may go before", free_bytes=40 * GIB, reserved=True),
    Case(name="worst", what="kept for another, nobody may go before", free_bytes=8 * GIB, reserved=True),
)


SIZES, QUICK_SIZES = (1_000, 100_000, 1_000_000), (1_000, 20_000)
CLAIMS, QUICK_CLAIMS = 2_000, 300


def figures(*, quick: bool = False, sizes: Sequence[int] = (), claims: int | None = None) -> Measured:
    """Fill a store step by step, and yield every case at each size."""
    sizes, claims = sizes or (QUICK_SIZES if quick else SIZES), claims or (QUICK_CLAIMS if quick else CLAIMS)
    with private_store(durable=False) as store:
        _make_ready(store, claims)
        pending = 0
        for size in sorted(sizes):
            yield from _at(size, store, size - pending, claims)
            pending = size
        preloaded = store.preloaded()
    if preloaded is not None:
        yield from _without_it(max(sizes), claims)


def _without_it(size: int, claims: int) -> Iterator[Figure]:
    """Measure the largest queue once more on the C library's allocator: not every machine has a better one."""
    with private_store(durable=False, preload=False) as store:
        _make_ready(store, claims)
        _fill(Scripts(store.client), size)
        for case in CASES:
            yield from _claims(f"claim-libc.{size}", case, store, claims)


def _make_ready(store: Store, claims: int) -> None:
    _announce(store)  # before the first job: one that finds no GPU has another shape
    store.client.config_set("slowlog-max-len", 10 * claims)
    store.client.config_set("slowlog-log-slower-than", LOGGED_US)


def _at(size: int, store: Store, more: int, claims: int) -> Iterator[Figure]:
    scripts = Scripts(store.client)
    took_s = timed(lambda: _fill(scripts, more))
    yield Figure(name=f"fill.{size}", value=more / took_s, unit="submits/s", of=more)
    used: dict[str, Any] = store.client.info("memory")
    yield Figure(name=f"store.pending.{size}", value=used["used_memory"] / size, unit="bytes", of=size)
    for case in CASES:
        yield from _claims(f"claim.{size}", case, store, claims)
    yield from _looks(size, store)


def _claims(name: str, case: Case, store: Store, claims: int) -> Iterator[Figure]:
    _fill(Scripts(store.client), claims)  # what the last case took out: else a small queue is empty after the first
    least = cost_of(store.client, reader(store.client), claims)
    cost = cost_of(store.client, _claimer(store, case), claims)
    for label, value, least_us in zip(Cost._fields, cost, least, strict=True):
        floor = Floor(name=f"a script of {READS} reads", value=float(least_us))
        yield Figure(name=f"{name}.{case.name}.{label}", value=float(value), unit="us", floor=floor, of=claims)


def _looks(size: int, store: Store) -> Iterator[Figure]:
    """Measure what a person waits for who asks for the queue."""
    state = str(store.settings.state_dir)
    environ = clean_environ(state) | {"GPUQUEUE_STATE_DIR": state}
    yield beside_click(f"queue.{size}.process", [GPUQUEUE, "queue"], partial(quiet, environ=environ))
    page_s = statistics.median(timed(lambda: store.queue.page(limit=1000)) for _ in range(5))
    yield Figure(name=f"queue.{size}.page", value=page_s * 1e3, unit="ms", rounds=5)


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


def _announce(store: Store, taken_bytes: int = 0) -> Offer:
    device = Device(uuid="GPU-0", index=0, name="Bench", kind=DeviceKind.GPU, total_bytes=CARD_BYTES)
    offer = Offer(device=device, host="bench", headroom_bytes=0, foreign_bytes=taken_bytes, slots=8)
    store.queue.announce(offer, worker="w", pid=1, boot_id="b")
    store.queue.beat(offer, [], lease_s=3600)
    return offer


def _claimer(store: Store, case: Case) -> Callable[[], None]:
    """Return what claims once on a device in this state, and leaves the device as it was."""
    queue, client = store.queue, store.client
    offer = _announce(store, taken_bytes=CARD_BYTES - case.free_bytes)
    client.delete(keys.PREFIX + "rsv")
    if case.reserved:
        waits = str(client.zrange(keys.LIVE, -1, -1)[0])
        start_ms = queue.now_ms() + (2 * 86400_000 if case.free_bytes > 8 * GIB else 1000)
        client.hset(keys.PREFIX + "rsv", "GPU-0", f"{waits}:{CARD_BYTES}:{start_ms}:")

    def once() -> None:
        queue.claim(offer, worker="w", lease_s=3600, nonce=new_nonce())
        client.delete(keys.device_leases("GPU-0"))

    return once


def reader(client: redis.Redis) -> Callable[[], None]:
    """Return what runs a script that only reads, with a claim's arguments."""
    reads = client.script_load(f"for i = 1, {READS} do redis.call('HGET', KEYS[1] .. 'meta', 'claims') end return {{}}")

    def once() -> None:
        client.evalsha(reads, 1, keys.PREFIX, "bench", "GPU-0", "w", 3600000, 0, new_nonce(), 0)

    return once


class Cost(NamedTuple):
    """What the server counted for a script, in microseconds."""

    p50: int
    p99: int
    most: int


def cost_of(client: redis.Redis, once: Callable[[], None], count: int) -> Cost:
    """Return what the scripts cost that *once* runs, by the server's own log of every command."""
    once()
    client.slowlog_reset()
    for _ in range(count):
        once()
    log: list[dict[str, Any]] = client.slowlog_get(10 * count)
    slow = sorted(entry["duration"] for entry in log if str(entry["command"]).lstrip("b'").startswith("EVALSHA"))
    found = [LOGGED_US] * (count - len(slow)) + slow
    return Cost(p50=found[len(found) // 2], p99=found[len(found) * 99 // 100], most=found[-1])


def main() -> None:
    """Measure all and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pending", type=how_many, nargs="+", default=[1_000, 100_000])
    parser.add_argument("--claims", type=how_many, default=CLAIMS, help="Claims measured in each case.")
    options = parser.parse_args()
    for case in CASES:
        print(f"{case.name:10} {case.what}")
    tell(figures(sizes=options.pending, claims=options.claims))


if __name__ == "__main__":
    main()
