"""The cost of placing a job: submit -> start with and without it, on one device and on eight, and where jobs start.

Real workers and a real store. The two ways alternate within one run, so that the machine's load is the same for both.
Of eight devices all but one have a small run first, so that only one device is the best, and every other worker that
wakes up must leave the job to it. The times are the store's, from the submit to the moment in which the worker asks
whether the job may start.

    python -m benchmarks.bench_placement [--jobs 40]
"""

from __future__ import annotations

import argparse
import statistics
from collections import Counter

from benchmarks.measure.figure import Figure, Floor, Measured
from benchmarks.measure.options import how_many
from benchmarks.measure.place import Machine, private_machine
from benchmarks.measure.rounds import quantile, until
from benchmarks.measure.table import report
from gpuqueue.client import Client
from gpuqueue.model.job import JobState
from gpuqueue.queue import keys
from gpuqueue.queue.connect import connect

#: The values in the store: '' for the first worker that asks, s for the largest free share of a device.
WAYS = {"first": "", "spread": "s"}
JOBS, QUICK_JOBS = 40, 8


def figures(*, quick: bool = False, jobs: int | None = None) -> Measured:
    """Measure one device, then eight."""
    for devices in (1, 8):
        yield from _measure(devices, jobs or (QUICK_JOBS if quick else JOBS))


def _measure(devices: int, jobs: int) -> Measured:
    with private_machine(f"sim:{devices}x8G") as machine:
        waits_ms, best = _waits_ms(machine, jobs)
    for label, value in (("p50", statistics.median), ("p90", lambda waits: quantile(waits, 0.9))):
        low = Floor(name=f"the worker that polls first ({label})", value=float(value(waits_ms["first"])))
        name, found = f"placement.{devices}.spread.{label}", float(value(waits_ms["spread"]))
        yield Figure(name=name, value=found, unit="ms", floor=low, rounds=jobs)
    share = 100 * best["spread"] / jobs
    yield Figure(name=f"placement.{devices}.spread.on-the-best", value=share, unit="%", of=jobs)


def _waits_ms(machine: Machine, jobs: int) -> tuple[dict[str, list[float]], Counter[str]]:
    """Return the waits of each way, in ms, and how many jobs of each started on the best device."""
    client, store = machine.client, connect(machine.settings.redis_url)
    best = _occupy(client)
    waits_ms: dict[str, list[float]] = {way: [] for way in WAYS}
    placed: Counter[str] = Counter()
    for turn in range(2 * jobs):
        way = list(WAYS)[turn % 2]
        store.hset(keys.META, "order", WAYS[way])
        job = client.jobs.submit(["true"], mem="1G")
        record = client.jobs.wait(job.id, timeout_s=60)
        started = record.job.started_at
        assert started is not None  # noqa: S101 - it has succeeded
        waits_ms[way].append((started - record.job.submitted_at).total_seconds() * 1000)
        placed[way] += record.job.devices == (best,)
    store.close()
    return waits_ms, placed


def _occupy(client: Client) -> str:
    """Start a run on each device but the last; return the UUID of the last one."""
    found = client.devices.list()
    busy = [client.jobs.submit(["sleep", "600"], mem="2G", device=each.device.uuid) for each in found[:-1]]
    until(
        lambda: all(client.jobs.get(job.id).state is JobState.RUNNING for job in busy),
        "a run on each device but the last",
        every_s=0.1,
    )
    return found[-1].device.uuid


def main() -> None:
    """Measure all and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=how_many, default=JOBS, help="Jobs of each way.")
    report(figures(jobs=parser.parse_args().jobs))


if __name__ == "__main__":
    main()
