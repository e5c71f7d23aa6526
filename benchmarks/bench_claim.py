"""The cost of a claim in the store, by the number of waiting jobs and the difficulty of finding one that fits.

50 users, 30 memory classes, 4 time limits and 4 priorities, on one store; every script and rule is the real one. Each
figure is the server's own time for a claim (its slow log). The floor is a script that reads one field as often as a
claim that finds its job at once issues commands (30), on the same server, after each claim. A call below the log's
threshold counts as the threshold. On a machine that is slow for a while both are slow, so compare the ratio. Within
every fiftieth script of any kind the server collects garbage: that is most of a `p99`, of the floor's as well. Where
the server has loaded a better allocator than the C library's (see gpuqueue/embedded/server.py), the largest queue is
measured once more without it: ``claim-libc``. Further figures are the store's memory for a waiting job, and the whole
process of ``gpuqueue queue`` with that many waiting jobs.

The events of the submits are removed, as by the recorder. The store rewrites its file only for the last case. Otherwise
a million submits in two minutes cause nine rewrites, and for thousands of claims after each of them the system copies
or unlocks every page of memory that a claim writes to.

    python -m benchmarks.bench_claim [--pending 1000 100000 1000000] [--claims 2000]
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import redis

from benchmarks.measure.command import beside_click
from benchmarks.measure.figure import Figure, Floor, Measured
from benchmarks.measure.home import clean_environ
from benchmarks.measure.options import how_many
from benchmarks.measure.place import GPUQUEUE, Store, private_store, quiet
from benchmarks.measure.rounds import timed
from benchmarks.measure.slow_log import FLOOR, LOGGED_US, READS, Cost, claims_in_log, costs_of, reader, scripts_in_log
from benchmarks.measure.table import report
from gpuqueue.codec.request import encode_spec
from gpuqueue.model.device import Device, DeviceKind
from gpuqueue.model.job_spec import Account, JobSpec, Priority
from gpuqueue.queue import keys
from gpuqueue.queue.lease import Claim, Offer
from gpuqueue.queue.requests import new_nonce
from gpuqueue.queue.scripts import Scripts

GIB = 2**30
USERS, CLASSES = 50, 30
LIMITS_S = (None, 600.0, 3600.0, 86400.0)
#: More than any job asks for, so that memory never ends a measurement.
CARD_BYTES = 64 * GIB
#: The request of the job for which the card is reserved: more than is ever free.
RESERVED_BYTES = 60 * GIB
PIPE = 1000


@dataclass(frozen=True, kw_only=True)
class Case:
    """How full the device is, and what is in the way.

    *finds* is whether a claim then has a job. *reserved_s* is the time until the job for which the device is reserved
    may start: a job that ends before may go first. *rewritten* is whether the store has just rewritten its file.
    """

    name: str
    what: str
    free_bytes: int
    finds: bool = True
    reserved_s: float | None = None
    rewritten: bool = False


CASES = (
    Case(name="best", what="everything fits", free_bytes=40 * GIB),
    Case(name="typical", what="a quarter fits", free_bytes=8 * GIB),
    Case(name="smallest", what="the smallest class fits", free_bytes=GIB),
    Case(name="nothing", what="nothing fits (an idle poll)", free_bytes=GIB // 2, finds=False),
    Case(name="reserved", what="reserved for another, most may go before", free_bytes=40 * GIB, reserved_s=2 * 86400),
    Case(
        name="worst", what="reserved for another, nobody may go before", free_bytes=8 * GIB, reserved_s=60, finds=False
    ),
    Case(name="rewritten", what="as typical, right after a rewrite", free_bytes=8 * GIB, rewritten=True),
)


SIZES, QUICK_SIZES = (1_000, 100_000, 1_000_000), (1_000, 20_000)
CLAIMS, QUICK_CLAIMS = 2_000, 300


def figures(*, quick: bool = False, sizes: Sequence[int] = (), claims: int | None = None) -> Measured:
    """Fill a store step by step, and yield every case at each size."""
    sizes, claims = sizes or (QUICK_SIZES if quick else SIZES), claims or (QUICK_CLAIMS if quick else CLAIMS)
    with private_store(durable=False) as store:
        line = Line(store, claims)
        for size in sorted(sizes):
            yield from _at(size, line, claims)
        preloaded = store.preloaded()
    if preloaded is not None:
        yield from _without_it(max(sizes), claims)


def _without_it(size: int, claims: int) -> Iterator[Figure]:
    """Measure the largest queue once more with the C library's allocator, which some machines have only."""
    with private_store(durable=False, preload=False) as store:
        line = Line(store, claims)
        line.fill(size)
        for case in CASES:
            yield from _claims(f"claim-libc.{size}", case, line, claims)


def _at(size: int, line: Line, claims: int) -> Iterator[Figure]:
    more = size - line.length
    took_s = timed(lambda: line.fill(size))
    yield Figure(name=f"fill.{size}", value=more / took_s, unit="submits/s", of=more)
    used: dict[str, Any] = line.store.client.info("memory")
    yield Figure(name=f"store.pending.{size}", value=used["used_memory"] / size, unit="bytes", of=size)
    for case in CASES:
        yield from _claims(f"claim.{size}", case, line, claims)
    yield from _queue_reads(size, line.store)


def _claims(name: str, case: Case, line: Line, claims: int) -> Iterator[Figure]:
    client = line.store.client
    with on_device(line.store, case) as offer:
        read = reader(client)

        def both() -> None:
            """Claim, then run the floor, in alternation, so that the store has done the same before each."""
            line.claim(offer, finds=case.finds)
            read()

        cost, least = costs_of(client, (claims_in_log(), scripts_in_log(FLOOR)), both, claims)
    for label, value, least_us in zip(Cost._fields, cost, least, strict=True):
        floor = Floor(name=f"a script of {READS} reads", value=float(least_us))
        yield Figure(name=f"{name}.{case.name}.{label}", value=float(value), unit="us", floor=floor, of=claims)


def _queue_reads(size: int, store: Store) -> Iterator[Figure]:
    """Measure how long a user waits for ``gpuqueue queue``."""
    state = str(store.settings.state_dir)
    environ = clean_environ(state) | {"GPUQUEUE_STATE_DIR": state}
    yield beside_click(f"queue.{size}.process", [GPUQUEUE, "queue"], partial(quiet, environ=environ))
    page_s = statistics.median(timed(lambda: store.queue.jobs.page(limit=1000)) for _ in range(5))
    yield Figure(name=f"queue.{size}.page", value=page_s * 1e3, unit="ms", rounds=5)


# ---- the queue -------------------------------------------------------------------------------------------------------


class Line:
    """The waiting jobs, of all users, classes, limits and priorities.

    A claimed job is submitted again at the end of its user's jobs, so the number of waiting jobs is constant.
    """

    def __init__(self, store: Store, claims: int) -> None:
        self.store = store
        self.length = 0
        self._scripts = Scripts(store.client)
        self._chance = random.Random(CLASSES)  # noqa: S311 - the same jobs each time
        _announce(store)  # before the first job: without a GPU a job gets another shape
        store.client.config_set("slowlog-max-len", 10 * claims)
        store.client.config_set("slowlog-log-slower-than", LOGGED_US)
        store.client.config_set("auto-aof-rewrite-percentage", 0)

    def fill(self, length: int) -> None:
        """Submit until *length* jobs wait."""
        while self.length < length:
            many = [self._any() for _ in range(min(PIPE, length - self.length))]
            for reply in self._scripts.run_each("submit", many):
                if isinstance(reply, Exception):
                    raise reply
            self.store.client.xtrim(keys.OUTBOX, maxlen=0)
            self.length += len(many)

    def claim(self, offer: Offer, *, finds: bool) -> None:
        """Claim once, and restore the device and the queue.

        Raises:
            RuntimeError: the claim found a job when it should not, or none when it should.
        """
        claimed = self.store.queue.runs.claim(offer, worker="w", lease_s=3600, nonce=new_nonce())
        if finds != (claimed is not None):
            raise RuntimeError(f"a claim that should {'' if finds else 'not '}have found a job: {claimed}")
        if claimed is not None:
            self._forget(claimed)
            self._scripts.run("submit", *_words(claimed.spec))

    def _any(self) -> tuple[str | float, ...]:
        return _words_of(
            user=self._chance.randrange(USERS),
            mem_bytes=(self._chance.randrange(CLASSES) + 1) * GIB,
            limit_s=self._chance.choice(LIMITS_S),
            priority=self._chance.choice(list(Priority)),
        )

    def _forget(self, claimed: Claim) -> None:
        """Remove what a claim leaves, as the end of its run and the recorder would."""
        gone = self.store.client.pipeline(transaction=False)
        gone.delete(keys.job(claimed.job_id), keys.spec(claimed.job_id), keys.device_leases("GPU-0"))
        gone.zrem(keys.LIVE, claimed.job_id)
        gone.zrem(keys.LEASES, claimed.job_id)
        gone.hdel(f"{keys.PREFIX}run:{claimed.spec.account.name}", str(claimed.job_id))
        gone.xtrim(keys.OUTBOX, maxlen=0)
        gone.execute()


@cache
def _text_of(user: int, mem_bytes: int, limit_s: float | None, priority: Priority) -> tuple[JobSpec, str]:
    spec = JobSpec(
        argv=("python", "train.py"),
        cwd="/home",
        account=Account(name=f"user{user}", uid=1000 + user, host="laptop"),
        mem_bytes=mem_bytes,
        name="train",
        time_limit_s=limit_s,
        priority=priority,
    )
    return spec, encode_spec(spec)


def _words_of(user: int, mem_bytes: int, limit_s: float | None, priority: Priority) -> tuple[str | float, ...]:
    return _words(*_text_of(user, mem_bytes, limit_s, priority))


def _words(spec: JobSpec, text: str | None = None) -> tuple[str | float, ...]:
    """Return the arguments of the script that submits such a job."""
    text = encode_spec(spec) if text is None else text
    return spec.account.name, int(spec.priority), spec.mem_bytes, str(spec.shape), 1, text, new_nonce(), "", ""


# ---- the device ------------------------------------------------------------------------------------------------------


def _announce(store: Store, taken_bytes: int = 0) -> Offer:
    device = Device(uuid="GPU-0", index=0, name="Bench", kind=DeviceKind.GPU, total_bytes=CARD_BYTES)
    offer = Offer(device=device, host="bench", headroom_bytes=0, external_bytes=taken_bytes, slots=8)
    store.queue.devices.announce(offer, worker="w", pid=1, boot_id="b")
    store.queue.devices.heartbeat(offer, [], lease_s=3600)
    return offer


@contextmanager
def on_device(store: Store, case: Case) -> Iterator[Offer]:
    """Yield the device in this state, reserved for a job that does not fit, if the case says so."""
    offer = _announce(store, taken_bytes=CARD_BYTES - case.free_bytes)
    if case.rewritten:
        _rewrite(store.client)
    if case.reserved_s is None:
        yield offer
        return
    job_id = store.queue.requests.submit(_text_of(0, RESERVED_BYTES, None, Priority.NORMAL)[0]).id
    start_ms = store.queue.now_ms() + round(case.reserved_s * 1000)
    store.client.hset(keys.RESERVED, "GPU-0", f"{job_id}:{RESERVED_BYTES}:{start_ms}:")
    yield offer
    if store.client.hdel(keys.RESERVED, "GPU-0") != 1:
        raise RuntimeError(f"the device is no longer reserved for job {job_id}")
    store.queue.jobs.cancel(job_id)


def _rewrite(client: redis.Redis) -> None:
    """Make the store rewrite its file, and wait until it has.

    Raises:
        RuntimeError: it could not.
    """
    client.bgrewriteaof()
    reported = _of_its_file(client)
    while reported["aof_rewrite_in_progress"] or reported["aof_rewrite_scheduled"]:
        time.sleep(0.05)
        reported = _of_its_file(client)
    if reported["aof_last_bgrewrite_status"] != "ok":
        raise RuntimeError("the store could not write its file anew")


def _of_its_file(client: redis.Redis) -> dict[str, Any]:
    reported: dict[str, Any] = client.info("persistence")
    return reported


def main() -> None:
    """Measure all and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pending", type=how_many, nargs="+", default=[1_000, 100_000])
    parser.add_argument("--claims", type=how_many, default=CLAIMS, help="Claims measured in each case.")
    options = parser.parse_args()
    for case in CASES:
        print(f"{case.name:10} {case.what}")
    report(figures(sizes=options.pending, claims=options.claims))


if __name__ == "__main__":
    main()
