"""Many claimers at once, with jobs on one to four devices: no double allocation, no double run, no leftover keys."""

from __future__ import annotations

import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from time import monotonic

import pytest
import redis
from factories import make_offer, make_spec, serve, start
from store_dump import dump, faults

from gpuqueue.model.job import JobState
from gpuqueue.model.run import Ending
from gpuqueue.queue.jobqueue import JobQueue
from gpuqueue.queue.requests import new_nonce
from gpuqueue.text.units import GIB

DEVICES = {f"GPU-{host}{index}": f"node{host}" for host in "AB" for index in range(4)}
JOBS = 1500
#: Upper bound for the whole test, in seconds. A claimer that still finds nothing by then would wait for ever.
BOUND_S = 90.0


@pytest.mark.full
def test_fifteen_hundred_jobs_and_eight_claimers(queue: JobQueue, store: redis.Redis, store_url: str) -> None:
    """Eight claimers run 1500 jobs, each exactly once, without allocating too much memory.

    There are two hosts with four cards each. Ticks reserve devices and promote jobs meanwhile, and some runs end late.
    """
    serve(queue, *(make_offer(uuid, host=host) for uuid, host in DEVICES.items()))
    for number in range(JOBS):
        queue.requests.submit(
            make_spec(mem_bytes=(1 + number % 23) * GIB, gpus=1 + (number % 7 == 0) + 2 * (number % 11 == 0))
        )
    runs: Counter[int] = Counter()
    over: list[str] = []
    lock = threading.Lock()
    until_s = monotonic() + BOUND_S

    def work(uuid: str) -> None:
        mine, open_runs = JobQueue(store_url), []
        offer = make_offer(uuid, host=DEVICES[uuid])
        while sum(runs.values()) < JOBS and monotonic() < until_s:
            claimed = mine.runs.claim(offer, worker=uuid, lease_s=300, nonce=new_nonce())
            if claimed is not None:
                start(mine, claimed)
                open_runs.append(claimed)
                if claimed.job_id % 8 == 0:
                    found = [each for each in mine.devices.all() if each.allocated_bytes > each.device.total_bytes]
                    over.extend(f"{each.device.uuid} promised {each.allocated_bytes}" for each in found)
            if open_runs and (claimed is None or len(open_runs) > 2):
                run = open_runs.pop(0)
                done = {"state": JobState.SUCCEEDED, "ending": Ending.from_status(0), "duration_s": 0.1, "devices": ()}
                assert mine.runs.finish(run.job_id, run.token, **done)
                with lock:
                    runs[run.job_id] += 1
            mine.devices.heartbeat(offer, [], lease_s=300)
            if claimed is None and uuid == "GPU-A0":
                mine.maintenance.reserve(after_s=0, most=1)
                mine.maintenance.promote(after_s=0)
        mine.close()

    with ThreadPoolExecutor(len(DEVICES)) as pool:
        for done in [pool.submit(work, uuid) for uuid in DEVICES]:
            done.result()

    assert [] == over
    assert set(range(1, JOBS + 1)) == set(runs)
    assert {1} == set(runs.values())
    assert [] == faults(dump(store))
    assert [] == store.keys("*}:q:*") + store.keys("*}:dl:*") + store.keys("*}:rsv")
