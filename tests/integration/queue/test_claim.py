from __future__ import annotations

import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from time import monotonic

import pytest
import redis
from factories import BOB, claim, end, make_offer, make_spec, must_claim, serve, start, submit, submit_and_claim
from store_dump import dump, faults

from gpuqueue.model.job import JobState
from gpuqueue.model.job_spec import Priority
from gpuqueue.model.run import Ending
from gpuqueue.queue.drains import BY_PEOPLE, DrainOrigin
from gpuqueue.queue.jobqueue import JobQueue
from gpuqueue.queue.requests import new_nonce
from gpuqueue.text.units import GIB


def test_a_claim_takes_the_memory_in_the_same_step(queue: JobQueue) -> None:
    """Memory allocated to one job is not offered to the next: the claim allocates it atomically."""
    serve(queue)
    for _ in range(3):
        queue.requests.submit(make_spec(mem_bytes=10 * GIB))

    first, second = must_claim(queue), must_claim(queue)

    assert (1, 2) == (first.job_id, second.job_id)
    assert claim(queue) is None
    (device,) = queue.devices.all()
    assert (20 * GIB, 4 * GIB, (1, 2)) == (device.allocated_bytes, device.free_bytes, device.jobs)
    assert JobState.STARTING is queue.jobs.get(1).state


def test_the_sample_of_the_device_is_part_of_the_claim(queue: JobQueue) -> None:
    """The claim carries the device sample: memory of external processes is subtracted, in bytes, in the same claim."""
    serve(queue)
    queue.requests.submit(make_spec(mem_bytes=10 * GIB))

    assert claim(queue, external_bytes=15 * GIB) is None
    assert must_claim(queue, external_bytes=14 * GIB).job_id == 1


def test_headroom_is_never_allocated(queue: JobQueue) -> None:
    serve(queue, make_offer(headroom_bytes=GIB))
    queue.requests.submit(make_spec(mem_bytes=23 * GIB))
    queue.requests.submit(make_spec(mem_bytes=1))

    assert 1 == must_claim(queue).job_id
    assert claim(queue) is None


def test_what_a_run_really_takes_counts_where_it_is_more_than_the_lease(queue: JobQueue) -> None:
    """A run counts with max(lease, observed), so a measurement can only reduce the free memory."""
    from gpuqueue.queue.lease import Alive  # noqa: PLC0415 - next to its one use

    serve(queue)
    queue.requests.submit(make_spec(mem_bytes=2 * GIB))
    first = submit_and_claim(queue, mem_bytes=10 * GIB)
    queue.devices.heartbeat(
        make_offer(), [Alive(job_id=1, token=first.token, observed={"GPU-0": 20 * GIB})], lease_s=300
    )

    assert claim(queue) is None


def test_jobs_start_by_priority_then_by_usage_of_their_user_then_by_arrival(queue: JobQueue) -> None:
    # Ada queues three jobs first. Bob has used nothing, so his job does not wait behind all of hers.
    serve(queue, make_offer(slots=1))
    for _ in range(3):
        queue.requests.submit(make_spec())
    bobs = submit(queue, account=BOB)
    urgent = submit(queue, priority=Priority.HIGH)

    order = []
    while claimed := claim(queue):
        order.append(claimed.job_id)
        start(queue, claimed)
        end(queue, claimed)

    assert urgent == order[0]
    assert bobs == order[1]
    assert [1, 2, 3] == order[2:]


def test_a_small_job_behind_a_large_one_starts_where_the_large_one_does_not_fit(queue: JobQueue) -> None:
    serve(queue)
    queue.requests.submit(make_spec(mem_bytes=20 * GIB))
    queue.requests.submit(make_spec(mem_bytes=20 * GIB))
    queue.requests.submit(make_spec(mem_bytes=2 * GIB))

    assert [1, 3] == [must_claim(queue).job_id, must_claim(queue).job_id]


def test_a_claim_sent_twice_gets_the_same_answer(queue: JobQueue) -> None:
    # The first reply may get lost, and a second lease would lose a job.
    serve(queue)
    queue.requests.submit(make_spec())
    queue.requests.submit(make_spec())

    first = must_claim(queue, nonce="aa")
    again = must_claim(queue, nonce="aa")

    assert first == again
    assert 2 == must_claim(queue, nonce="bb").job_id


def test_a_gang_gets_all_its_devices_or_none(queue: JobQueue) -> None:
    """A gang gets all its devices on one host in one step, and its memory is allocated on each of them."""
    serve(queue, make_offer("GPU-0"), make_offer("GPU-1"), make_offer("GPU-2", host="nodeB"))
    queue.requests.submit(make_spec(gpus=2, mem_bytes=20 * GIB))
    queue.requests.submit(make_spec(gpus=2, mem_bytes=20 * GIB))

    assert claim(queue, "GPU-2", host="nodeB") is None
    gang = must_claim(queue, "GPU-1")

    assert ("GPU-1", "GPU-0") == gang.devices
    assert claim(queue, "GPU-0") is None
    assert [20 * GIB, 20 * GIB, 0] == [device.allocated_bytes for device in queue.devices.all()]


def test_a_drained_device_takes_nothing(queue: JobQueue) -> None:
    """A drained device takes no job, alone or as a member of a gang, until it is resumed."""
    serve(queue, make_offer("GPU-0"), make_offer("GPU-1"))
    queue.requests.submit(make_spec(gpus=2))
    queue.devices.drain(["GPU-1"], origin=DrainOrigin.PERSON, why="hot", by="ada")

    assert claim(queue, "GPU-0") is None
    assert claim(queue, "GPU-1") is None
    assert "hot" == queue.devices.all()[1].drained
    queue.devices.resume(["GPU-1"], origins=BY_PEOPLE)
    assert must_claim(queue, "GPU-0").job_id == 1


def test_a_pool_is_served_by_its_devices_only(queue: JobQueue) -> None:
    serve(queue, make_offer("GPU-0", pool="fast"), make_offer("GPU-1"))
    queue.requests.submit(make_spec(pool="fast"))

    assert claim(queue, "GPU-1") is None
    assert 1 == must_claim(queue, "GPU-0").job_id


@pytest.mark.promise("P3")
def test_eight_claimers_at_once_never_allocate_more_than_there_is(queue: JobQueue, store_url: str) -> None:
    """Racing claimers never allocate too much: 200 jobs, four devices, eight connections."""
    # No job is claimed twice, and no device has more memory allocated than it has in total.
    devices = [f"GPU-{i}" for i in range(4)]
    serve(queue, *(make_offer(uuid, slots=64) for uuid in devices))
    for i in range(200):
        queue.requests.submit(make_spec(mem_bytes=(1 + i % 7) * GIB, gpus=1 + (i % 5 == 0)))

    def race(worker: int) -> list[int]:
        mine = JobQueue(store_url)
        won = []
        while claimed := claim(mine, devices[worker % 4], nonce=f"{worker:02x}{len(won):04x}"):
            won.append(claimed.job_id)
        mine.close()
        return won

    with ThreadPoolExecutor(8) as pool:
        won = [job_id for some in pool.map(race, range(8)) for job_id in some]

    assert len(won) == len(set(won)) > 0
    for device in queue.devices.all():
        assert device.allocated_bytes <= device.device.total_bytes
        assert device.free_bytes < 7 * GIB


def test_a_claim_repeated_after_the_lease_was_lost_gets_nobody_elses_token(queue: JobQueue) -> None:
    # Worker A is cut off and worker B has the job. With B's token, A would start a second live copy.
    serve(queue, make_offer("GPU-0"), make_offer("GPU-1"))
    queue.requests.submit(make_spec())
    lost = must_claim(queue, "GPU-0", nonce="aa")
    queue.runs.lose(1, lost.token, loss_limit=3, detail="cut off")
    queue.runs.claim(make_offer("GPU-1"), worker="B", lease_s=300, nonce="bb")

    assert claim(queue, "GPU-0", nonce="aa") is None


def test_our_growth_is_in_the_same_sample_as_external_memory(queue: JobQueue) -> None:
    """A claim counts the growth of our own runs in the same sample as the external processes."""
    # A run that took more memory than it asked for, between two heartbeats, leaves no free memory for the next claim.
    serve(queue)
    queue.requests.submit(make_spec(mem_bytes=2 * GIB))
    submit_and_claim(queue, mem_bytes=10 * GIB)

    assert claim(queue, observed={1: 20 * GIB}) is None
    assert 2 == must_claim(queue, observed={1: 2 * GIB}).job_id


# ---- many claimers at once -------------------------------------------------------------------------------------------

DEVICES = {f"GPU-{host}{index}": f"node{host}" for host in "AB" for index in range(4)}
JOBS = 1500
#: Upper bound for the whole test, in seconds. A claimer that still finds nothing by then would wait for ever.
BOUND_S = 90.0


@pytest.mark.full
def test_fifteen_hundred_jobs_and_eight_claimers(queue: JobQueue, store: redis.Redis, store_url: str) -> None:
    """Eight claimers run 1500 jobs, each exactly once, without allocating too much memory."""
    # There are two hosts with four cards each. Ticks reserve devices and promote jobs meanwhile, and some runs end
    # late.
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
