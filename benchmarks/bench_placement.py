"""What placing a job costs: submit -> start with and without it, on one device and on eight, and who gets the job.

Real workers and a real store; the two ways take turns within one run, so that the machine's mood is the same for both.
On eight devices each but one has a small run first, so that only one device is the best and every other one that wakes
up must leave the job to it. The times are the store's, from the submit to the moment in which the worker asks whether
the job may start.

    python benchmarks/bench_placement.py [--jobs 40]
"""

from __future__ import annotations

import argparse
import os
import secrets
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from gpuqueue.client import Client
from gpuqueue.job import JobState
from gpuqueue.queue import keys
from gpuqueue.queue.connect import connect
from gpuqueue.settings import Settings

#: As the store keeps it: '' whoever looks first, s the device with the most free memory.
WAYS = {"whoever looks first": "", "spread": "s"}


def main() -> None:
    """Measure one device, then eight."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=40, help="Jobs of each way.")
    options = parser.parse_args()
    for devices in (1, 8):
        with tempfile.TemporaryDirectory(prefix="gq-bench-") as state:
            _measure(state, devices, options.jobs)


def _measure(state: str, devices: int, jobs: int) -> None:
    environ = {
        **os.environ,
        "GPUQUEUE_STATE_DIR": state,
        "GPUQUEUE_CONFIG": os.devnull,
        "GPUQUEUE_HOST": f"bench-{secrets.token_hex(3)}",
        "GPUQUEUE_DEVICES": f"sim:{devices}x8G",
    }
    gpuqueue = str(Path(sys.executable).with_name("gpuqueue"))
    subprocess.run([gpuqueue, "up"], env=environ, check=True, stdout=subprocess.DEVNULL)
    settings = Settings.load(environ)
    store = connect(settings.redis_url)
    try:
        with Client(settings) as client:
            best = _occupy(client, devices)
            waits_ms: dict[str, list[float]] = {way: [] for way in WAYS}
            places: dict[str, Counter[bool]] = {way: Counter() for way in WAYS}
            for turn in range(2 * jobs):
                way = list(WAYS)[turn % 2]
                store.hset(keys.META, "order", WAYS[way])
                job = client.submit(["true"], mem="1G")
                record = client.wait(job.id, timeout_s=60)
                started = record.job.started_at
                assert started is not None  # noqa: S101 - it has succeeded
                waits_ms[way].append((started - record.job.submitted_at).total_seconds() * 1000)
                places[way][record.job.devices == (best,)] += 1
        for way, waits in waits_ms.items():
            p50, p90 = statistics.median(waits), statistics.quantiles(waits, n=10)[-1]
            print(
                f"{devices} devices  {way:20} p50 {p50:6.1f} ms  p90 {p90:6.1f} ms  most {max(waits):6.1f} ms"
                f"  on the best device {places[way][True]} of {len(waits)}  load {os.getloadavg()[0]:.1f}"
            )
    finally:
        subprocess.run([gpuqueue, "down", "--cancel-jobs"], env=environ, check=False, stdout=subprocess.DEVNULL)


def _occupy(client: Client, devices: int) -> str:
    """Put a run on each device but the last; return that one."""
    found = client.devices()
    busy = [client.submit(["sleep", "600"], mem="2G", device=each.device.uuid) for each in found[:-1]]
    while devices > 1 and any(client.get(job.id).state is not JobState.RUNNING for job in busy):
        time.sleep(0.1)
    return found[-1].device.uuid


if __name__ == "__main__":
    main()
