"""The cost of an array's submit, compared with single submits, and of a member's claim, with a single job's claim.

All figures come from one run on one store that makes each write durable (``appendfsync always``, as ``gpuqueue up``
starts it). The single submits are sent in pipelines, as fast as possible. The time of a claim is the one that the
server itself logs (its slow log, from 0 us on).

    python -m benchmarks.bench_array [--members 10000 1000000] [--singles 10000] [--claims 1000]
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from benchmarks.bench_submit import SPEC, end, median_s, must_claim, serve, submit_pipelined, used_bytes
from benchmarks.measure.figure import Figure, Floor, Measured
from benchmarks.measure.options import how_many
from benchmarks.measure.place import Store, private_store
from benchmarks.measure.rounds import quantile, timed
from benchmarks.measure.slow_log import claims_in_log, took_us
from benchmarks.measure.table import report
from gpuqueue.model.array import Array

ROUNDS = 5
MEMBERS, QUICK_MEMBERS = (10_000, 1_000_000), (10_000,)
SINGLES, QUICK_SINGLES = 10_000, 1_000
CLAIMS, QUICK_CLAIMS = 1_000, 200


def figures(
    *, quick: bool = False, members: Sequence[int] = (), singles: int | None = None, claims: int | None = None
) -> Measured:
    """Submit and claim, first single jobs and then arrays."""
    members = members or (QUICK_MEMBERS if quick else MEMBERS)
    singles, claims = singles or (QUICK_SINGLES if quick else SINGLES), claims or (QUICK_CLAIMS if quick else CLAIMS)
    with private_store() as store:
        _ready(store)
        each_s = timed(partial(submit_pipelined, store.client, singles)) / singles
        single = Floor(name="a claim of a single job", value=_claim_us(store, claims, 0.5))
    for count in members:
        with private_store() as store:
            _ready(store)
            yield from _arrays(store, count, each_s)
            yield from _claims(store, f"array.{count}.claim", claims, single)
            _submit_bounded(store, claims)
            yield from _claims(store, f"array.{count}.claim-bounded", claims, single)


def _ready(store: Store) -> None:
    store.client.config_set("slowlog-max-len", 100_000)
    serve(store)


def _arrays(store: Store, count: int, each_s: float) -> Iterator[Figure]:
    spec = replace(SPEC, array=Array.parse(f"0-{count - 1}"))
    once_s, _ = median_s(ROUNDS, lambda: store.queue.requests.submit(spec))
    floor = Floor(name="as many single submits, pipelined", value=each_s * count * 1e3)
    yield Figure(name=f"array.{count}.submit", value=once_s * 1e3, unit="ms", floor=floor, rounds=ROUNDS)
    used = used_bytes(store.client) / (ROUNDS * count)
    yield Figure(name=f"array.{count}.memory", value=used, unit="bytes", of=ROUNDS)


def _submit_bounded(store: Store, claims: int) -> None:
    """Submit an array of which 4 members may run at once, by another user who comes first."""
    spec = replace(SPEC, account=replace(SPEC.account, name="bob"))
    store.queue.requests.submit(replace(spec, array=replace(Array.parse(f"0-{10 * claims}"), at_once=4)))
    store.client.zadd("{gq}:fair", {"bob": -1e30})
    store.client.zadd("{gq}:ul:1", {"bob": -1e30})


def _claims(store: Store, name: str, count: int, single: Floor) -> Iterator[Figure]:
    for label, share in (("p50", 0.5), ("p99", 0.99)):
        yield Figure(name=f"{name}.{label}", value=_claim_us(store, count, share), unit="us", floor=single, of=count)


def _claim_us(store: Store, count: int, share: float) -> float:
    """Claim and end *count* jobs; return the server's time for a claim at the quantile *share*, in microseconds."""
    store.client.slowlog_reset()
    store.client.config_set("slowlog-log-slower-than", 0)
    for _ in range(count):
        end(store, must_claim(store))
    store.client.config_set("slowlog-log-slower-than", -1)
    log: list[dict[str, Any]] = store.client.slowlog_get(100_000)
    return quantile([float(each) for each in took_us(log, claims_in_log())], share)


def main() -> None:
    """Measure all and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--members", type=how_many, nargs="+", default=MEMBERS)
    parser.add_argument("--singles", type=how_many, default=SINGLES)
    parser.add_argument("--claims", type=how_many, default=CLAIMS)
    options = parser.parse_args()
    report(figures(members=options.members, singles=options.singles, claims=options.claims))


if __name__ == "__main__":
    main()
