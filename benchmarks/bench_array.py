"""What an array costs: one submit beside as many single submits, and a claim of a member beside one of a single job.

Everything in one run on one store that makes each write durable (``appendfsync always``, as ``gpuqueue up`` starts it).
The single submits are sent as fast as they can be, in pipelines. Claims are told by the time that the server itself
counts for each (its slow log, from 0 us on), and by the whole cycle claim, started, finish as one client sees it.

    python benchmarks/bench_array.py [--members 10000 1000000] [--singles 10000] [--claims 1000]
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, cast

import redis

from gpuqueue.array import Array
from gpuqueue.codec import encode_spec
from gpuqueue.device import Device, DeviceKind
from gpuqueue.embedded.store import EmbeddedStore
from gpuqueue.job import Account, JobSpec, JobState
from gpuqueue.queue.connect import connect
from gpuqueue.queue.jobqueue import JobQueue
from gpuqueue.queue.lease import Claim, Offer
from gpuqueue.queue.requests import new_nonce
from gpuqueue.queue.scripts import Scripts
from gpuqueue.run import Ending
from gpuqueue.settings import Settings

GIB = 2**30
ROUNDS = 5
SPEC = JobSpec(
    argv=("python", "train.py", "--seed", "{index}"),
    cwd="/home",
    account=Account(name="ada", uid=1000, host="laptop"),
    mem_bytes=GIB,
    name="train",
    env={f"VARIABLE_{number}": "x" * 60 for number in range(80)},  # what a shell of today has
)
OFFER = Offer(
    device=Device(uuid="GPU-0", index=0, name="Bench", kind=DeviceKind.GPU, total_bytes=64 * GIB),
    host="bench",
    headroom_bytes=0,
    foreign_bytes=0,
    slots=8,
)


def main() -> None:
    """Submit and claim, first single jobs and then arrays."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--members", type=int, nargs="+", default=[10_000, 1_000_000])
    parser.add_argument("--singles", type=int, default=10_000)
    parser.add_argument("--claims", type=int, default=1_000)
    options = parser.parse_args()
    print(f"a spec has {len(encode_spec(SPEC))} bytes; load {os.getloadavg()[0]:.1f}")
    with _store() as (queue, client):
        began_s = time.monotonic()
        _submit_singles(client, options.singles)
        single_s = time.monotonic() - began_s
        print(f"{options.singles:>9} single submits  {1e3 * single_s:9.1f} ms   {_memory(client, options.singles)}")
        _measure_claims(queue, client, "single jobs", options.claims)
    for members in options.members:
        with _store() as (queue, client):
            took_s = [_timed(partial(_submit_array, queue, members)) for _ in range(ROUNDS)]
            once_s = statistics.median(took_s)
            ratio = single_s / options.singles * members / once_s
            print(
                f"{members:>9} members in one  {1e3 * once_s:9.2f} ms (most {1e3 * max(took_s):.2f})   "
                f"{_memory(client, ROUNDS * members)}   {ratio:.0f} times as fast as singles"
            )
            _measure_claims(queue, client, f"an array of {members}", options.claims)
            _measure_claims(queue, client, "the same, with %4", options.claims, at_once=4)


@contextmanager
def _store() -> Iterator[tuple[JobQueue, redis.Redis]]:
    with tempfile.TemporaryDirectory(prefix="gq-bench-") as state:
        settings = Settings.load({"GPUQUEUE_STATE_DIR": state, "GPUQUEUE_CONFIG": os.devnull})
        store = EmbeddedStore(settings)
        store.start()
        try:
            queue, client = JobQueue(settings.redis_url), connect(settings.redis_url, wait_s=60)
            client.config_set("slowlog-max-len", 100_000)
            queue.open(0)
            queue.announce(OFFER, worker="w", pid=1, boot_id="b")
            queue.beat(OFFER, [], lease_s=3600)
            queue.submit(SPEC)  # so that each script is compiled
            _end(queue, _claim(queue))
            yield queue, client
        finally:
            store.stop()


def _submit_singles(client: redis.Redis, count: int) -> None:
    text, shape = encode_spec(SPEC), str(SPEC.shape)
    words = (["ada", 1, SPEC.mem_bytes, shape, 1, text, new_nonce(), ""] for _ in range(count))
    scripts = Scripts(client)
    while some := [each for each, _ in zip(words, range(500), strict=False)]:
        scripts.run_each("submit", some)


def _submit_array(queue: JobQueue, members: int, at_once: int | None = None) -> None:
    queue.submit(replace(SPEC, array=replace(Array.parse(f"0-{members - 1}"), at_once=at_once)))


def _claim(queue: JobQueue) -> Claim:
    claimed = queue.claim(OFFER, worker="w", lease_s=3600, nonce=new_nonce())
    if claimed is None:
        raise SystemExit("nothing was claimed")
    return claimed


def _end(queue: JobQueue, claimed: Claim) -> None:
    queue.started(claimed.job_id, claimed.token, lease_s=3600, log_path="/l", devices=())
    ending = Ending.from_status(0)
    queue.finish(claimed.job_id, claimed.token, state=JobState.SUCCEEDED, ending=ending, duration_s=1.0, devices=())


def _measure_claims(queue: JobQueue, client: redis.Redis, name: str, count: int, at_once: int | None = None) -> None:
    """Claim and end *count* jobs; a bounded array is submitted by another user, who goes first."""
    if at_once is not None:
        spec = replace(SPEC, account=replace(SPEC.account, name="bob"))
        queue.submit(replace(spec, array=replace(Array.parse(f"0-{10 * count}"), at_once=at_once)))
        client.zadd("{gq}:fair", {"bob": -1e30})
        client.zadd("{gq}:ul:1", {"bob": -1e30})
    client.slowlog_reset()
    client.config_set("slowlog-log-slower-than", 0)
    claims_s = cycles_s = 0.0
    for _ in range(count):
        began_s = time.monotonic()
        claimed = _claim(queue)
        claims_s += time.monotonic() - began_s
        _end(queue, claimed)
        cycles_s += time.monotonic() - began_s
    client.config_set("slowlog-log-slower-than", -1)
    log = cast("list[dict[str, Any]]", client.slowlog_get(100_000))
    digest = _digest_of_claims(log)
    found = sorted(entry["duration"] for entry in log if digest in str(entry["command"]))
    p50_us, p99_us = found[len(found) // 2], found[len(found) * 99 // 100]
    print(
        f"{'':9} claims of {name:22} p50 {p50_us} us, p99 {p99_us} us in the server; "
        f"{count / claims_s:.0f} claims/s, {count / cycles_s:.0f} cycles/s from one client"
    )


def _digest_of_claims(log: list[dict[str, Any]]) -> str:
    """Return the digest of the script that is given the name of the device."""
    entry = next(each for each in log if "EVALSHA" in str(each["command"]) and " GPU-0 " in str(each["command"]))
    return str(entry["command"]).split()[1].rstrip("'")


def _memory(client: redis.Redis, count: int) -> str:
    used = cast("dict[str, Any]", client.info("memory"))["used_memory"]
    return f"{used / count:.1f} bytes of the store's memory each"


def _timed(act: Callable[[], None]) -> float:
    began_s = time.monotonic()
    act()
    return time.monotonic() - began_s


if __name__ == "__main__":
    main()
