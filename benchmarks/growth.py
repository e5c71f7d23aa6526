"""Measures how the store's processor time for each act grows with jobs that wait, devices, and members of an array.

    python -m benchmarks.growth [--waiting 1000 10000 100000] [--devices 1 8 64 512] [--members 100 10000 100000]

Prints a table for each of these dimensions: the time of each act at each size, in microseconds, and the slope: the
exponent of the growth from the last size but one to the last. 0 is flat, 1 is linear. The times are those of the
store's process, so other programs on the machine change them little. It does not wait for its disk. Up to 64 devices
are on one host, more on hosts of 64. Each device has eight slots, one of which runs a job.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from benchmarks.bench_submit import OFFER, SPEC, submit_pipelined
from benchmarks.measure.options import how_many
from benchmarks.measure.place import Store, private_store
from benchmarks.measure.table import load
from gpuqueue.model.array import Array
from gpuqueue.queue.lease import Claim, Offer
from gpuqueue.queue.requests import new_nonce
from gpuqueue.text.units import GIB

#: Each act is repeated for so long, in seconds of the store's processor time, but at most so often.
SPENT_S, MOST = 0.1, 300
HOST_DEVICES, LEASE_S = 64, 3600.0

Acts = Mapping[str, Callable[[], object]]


def main() -> None:
    """Measure all and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--waiting", type=how_many, nargs="+", default=[1_000, 10_000, 100_000])
    parser.add_argument("--devices", type=how_many, nargs="+", default=[1, 8, 64, 512])
    parser.add_argument("--members", type=how_many, nargs="+", default=[100, 10_000, 100_000])
    options = parser.parse_args()
    print(load())
    for what, sizes, site in (
        ("jobs that wait", options.waiting, with_waiting),
        ("devices", options.devices, with_devices),
        ("members of an array", options.members, with_members),
    ):
        _print(what, sizes, [measured(site, size) for size in sizes])


def measured(site: Callable[[Store, int], Acts], size: int) -> dict[str, float]:
    """Return the store's processor time for each act at a site of this *size*, in microseconds."""
    with private_store(durable=False) as store:
        return {name: _spent_us(store, act) for name, act in site(store, size).items()}


def with_waiting(store: Store, size: int) -> Acts:
    """Return the acts at a site with one device and *size* jobs that wait."""
    _serve(store, [OFFER])
    submit_pipelined(store.client, size)
    return {"submit": partial(store.queue.requests.submit, SPEC), "claim": _claims(store), **_reads(store, OFFER)}


def with_devices(store: Store, size: int) -> Acts:
    """Return the acts at a site with *size* devices."""
    offers = [_offer(number) for number in range(size)]
    _serve(store, offers)
    submit_pipelined(store.client, size)
    for offer in offers:
        _claim(store, offer)
    submit = partial(store.queue.requests.submit, replace(SPEC, mem_bytes=64 * GIB))  # fits on no device now
    return {
        "submit": submit,
        "claim that finds nothing": partial(_claim, store, offers[-1]),
        **_reads(store, offers[-1]),
    }


def with_members(store: Store, size: int) -> Acts:
    """Return the acts at a site with an array of *size* members."""
    _serve(store, [OFFER])
    spec = replace(SPEC, array=Array.parse(f"0-{size - 1}"))
    jobs = [store.queue.requests.submit(spec)]
    return {
        "submit of another one": partial(store.queue.requests.submit, spec),
        "hold and release": lambda: [store.queue.jobs.change(act, jobs[0].id) for act in ("hold", "release")],
        "claim of a member": _claims(store),
        "state of the array": partial(store.queue.jobs.get, jobs[0].id),
        **_reads(store, OFFER),
    }


def _reads(store: Store, offer: Offer) -> Acts:
    """Return what workers, the reaper and viewers ask again and again."""
    queue = store.queue
    last = queue.requests.submit(SPEC)
    return {
        "heartbeat of a device": partial(queue.devices.heartbeat, offer, [], lease_s=LEASE_S),
        "reap": partial(queue.maintenance.reap, loss_limit=3, lease_s=LEASE_S, tick_s=10.0),
        "reserve": partial(queue.maintenance.reserve, after_s=0.0, most=1),
        "promote": partial(queue.maintenance.promote, after_s=3600.0),
        "all devices": queue.devices.all,
        "why of the last job": partial(queue.jobs.why, last.id),
        "the first 100 jobs": partial(queue.jobs.page, limit=100),
    }


def _offer(number: int) -> Offer:
    device = replace(OFFER.device, uuid=f"GPU-{number}", index=number % HOST_DEVICES)
    return replace(OFFER, device=device, host=f"host{number // HOST_DEVICES}")


def _serve(store: Store, offers: Sequence[Offer]) -> None:
    for offer in offers:
        store.queue.devices.announce(offer, worker=f"w{offer.device.uuid}", pid=1, boot_id="b")
        store.queue.devices.heartbeat(offer, [], lease_s=LEASE_S)


def _claim(store: Store, offer: Offer) -> Claim | None:
    return store.queue.runs.claim(offer, worker=f"w{offer.device.uuid}", lease_s=LEASE_S, nonce=new_nonce())


def _claims(store: Store) -> Callable[[], object]:
    """Return an act that claims a job, and gives it back, so that the number of those that wait stays the same."""

    def act() -> None:
        claimed = _claim(store, OFFER)
        if claimed is None:
            raise SystemExit("nothing was claimed")
        store.queue.runs.release_claim(claimed.job_id, claimed.token, "measured")

    return act


def _spent_us(store: Store, act: Callable[[], object]) -> float:
    act()  # compiles the scripts
    begun_s, count = _processor_s(store), 0
    while count < MOST and (count % 10 or _processor_s(store) - begun_s < SPENT_S):
        act()
        count += 1
    return 1e6 * (_processor_s(store) - begun_s) / count


def _processor_s(store: Store) -> float:
    info: dict[str, Any] = store.client.info("cpu")
    return float(info["used_cpu_user"]) + float(info["used_cpu_sys"])


def _print(what: str, sizes: Sequence[int], found: Sequence[Mapping[str, float]]) -> None:
    print(f"\n| {what} | {' | '.join(f'{size:,}'.replace(',', ' ') for size in sizes)} | slope |")
    print("|---" * (len(sizes) + 2) + "|")
    for act in found[0]:
        times = [each[act] for each in found]
        slope = math.log(times[-1] / times[-2]) / math.log(sizes[-1] / sizes[-2]) if len(sizes) > 1 else 0.0
        print(f"| {act} | {' | '.join(f'{each:.0f} us' for each in times)} | {slope:.2f} |")


if __name__ == "__main__":
    main()
