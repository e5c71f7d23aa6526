"""A list of jobs shows why each waits, and how much memory each run uses, at a cost that many jobs do not raise."""

from __future__ import annotations

from collections import Counter
from datetime import datetime, timedelta, timezone

import pytest
import redis
from factories import ADA, BOB, claim, make_device, make_offer, make_spec, must_claim, serve, submit, submit_and_claim

from gpuqueue.model.array import Array
from gpuqueue.model.dependencies import Dependency, Waits
from gpuqueue.model.job import JobState, WaitReason
from gpuqueue.model.limits import Limits
from gpuqueue.model.placement import Placement
from gpuqueue.queue import census as counting
from gpuqueue.queue.census import census
from gpuqueue.queue.connect import connect
from gpuqueue.queue.drains import DrainOrigin
from gpuqueue.queue.jobqueue import JobQueue
from gpuqueue.text.units import GIB, MIB


def reasons(queue: JobQueue) -> Counter[WaitReason | None]:
    """Return how many of the listed jobs have each reason."""
    return Counter(job.reason for job in queue.jobs.live())


def commands(store: redis.Redis) -> int:
    """Return the number of commands that the store has run, with those of scripts."""
    return sum(each["calls"] for each in store.info("commandstats").values())


def test_a_list_and_a_single_job_name_the_same_reason(queue: JobQueue) -> None:
    """`page` and `get` give the same reason for every job, as `why` names the obstacles."""
    serve(queue, *(make_offer(f"GPU-{pool}", pool=pool, slots=0 if pool == "q" else 8) for pool in "mpq"))
    queue.devices.drain(["GPU-p"], origin=DrainOrigin.PERSON, why="", by="ada")
    for array in (None, Array.parse("0-3")):
        queue.requests.submit(make_spec(mem_bytes=20 * GIB, array=array, pool="m"))
    for pool in ("p", "q"):
        queue.requests.submit(make_spec(pool=pool))
    must_claim(queue, "GPU-m")

    listed = {job.id: job.reason for job in queue.jobs.live()}

    assert {1: None, 2: WaitReason.MEMORY, 7: WaitReason.DRAINED, 8: WaitReason.SLOTS} == listed
    assert listed == {job_id: queue.jobs.get(job_id).reason for job_id in listed}


def test_a_device_that_is_too_small_does_not_hide_a_drain(queue: JobQueue) -> None:
    """A job that fits only a drained device waits because of the drain, whatever smaller devices are there."""
    # The list called that a wait for memory.
    small = make_offer("GPU-1", device=make_device("GPU-1", total_bytes=8 * GIB))
    serve(queue, make_offer("GPU-0"), small)
    queue.requests.submit(make_spec(mem_bytes=20 * GIB))
    queue.devices.drain(["GPU-0"], origin=DrainOrigin.PERSON, why="", by="ada")

    assert [WaitReason.DRAINED] == [job.reason for job in queue.jobs.live()]


def test_a_runs_memory_is_that_of_its_last_sample_on_all_its_devices(queue: JobQueue) -> None:
    serve(queue, make_offer("GPU-0"), make_offer("GPU-1"))
    job_id = submit(queue, gpus=2, placement=Placement(exclusive=True))
    run = must_claim(queue, "GPU-0")
    for device, used in (("GPU-0", 3), ("GPU-1", 4)):
        claim(queue, device, observed={run.job_id: used * MIB})

    assert {job_id: 7 * MIB} == queue.jobs.page().held_bytes


def test_the_devices_are_read_once_for_a_list_and_equal_jobs_are_judged_together(
    queue: JobQueue, store_url: str
) -> None:
    serve(queue, *(make_offer(f"GPU-{number}") for number in range(8)))
    store, cost = connect(store_url), {}
    for waiting in (10, 110):
        while queue.jobs.counts()[0] < waiting:
            queue.requests.submit(make_spec(mem_bytes=20 * GIB))
        queue.jobs.page()
        before = commands(store)
        queue.jobs.page()
        cost[waiting] = commands(store) - before

    assert 3 * 100 == cost[110] - cost[10], "the entry, the spec, and in the script the state"


def test_very_many_different_jobs_take_several_calls(queue: JobQueue, monkeypatch: pytest.MonkeyPatch) -> None:
    """A call of the script judges a bounded number of jobs; further calls give the reasons of the rest."""
    serve(queue, *(make_offer(f"GPU-{number}") for number in range(99)))
    for number in range(100):
        queue.requests.submit(make_spec(mem_bytes=15 * GIB + number * 64 * MIB))
    calls = []
    run = queue.store.scripts.run
    monkeypatch.setattr(queue.store.scripts, "run", lambda act, *args: calls.append(len(args)) or run(act, *args))

    assert {WaitReason.MEMORY: 100} == reasons(queue)
    assert [80, 60, 40, 20] == calls, "each call judges 20 jobs on 99 devices; the first was part of the page"


def test_jobs_that_are_named_by_their_ids_are_those_of_the_list(queue: JobQueue) -> None:
    # Ids of no job are passed over, also impossible ones.
    serve(queue, make_offer())
    for size in (1, 20, 22):
        queue.requests.submit(make_spec(mem_bytes=size * GIB))
    must_claim(queue)
    listed = queue.jobs.page()
    one, *_, last = listed.jobs

    found = queue.jobs.some([last.id, 999, one.id, 0, -1, 2**60])
    assert ((last, one), listed.held_bytes) == (found.jobs, found.held_bytes)
    assert () == queue.jobs.some([]).jobs
    assert [each.id for each in listed.jobs] == queue.jobs.ids(limit=10)
    assert [last.id] == queue.jobs.ids(limit=10, after=last.id - 1)


# ---- counts for monitoring -------------------------------------------------------------------------------------------


def fill(queue: JobQueue) -> None:
    """Submit jobs that wait for different reasons, and start one."""
    serve(queue, *(make_offer(f"GPU-{pool}", pool=pool, slots=0 if pool == "q" else 8) for pool in "mpq"))
    queue.devices.drain(["GPU-p"], origin=DrainOrigin.PERSON, why="", by="ada")
    add = queue.requests.submit
    first = add(make_spec(mem_bytes=20 * GIB, pool="m"))
    must_claim(queue, "GPU-m")
    for account in (ADA, BOB):
        for pool in "mpq":
            add(make_spec(account=account, mem_bytes=20 * GIB, pool=pool))
    add(make_spec(waits=Waits(hold=True)))
    add(make_spec(waits=Waits(begin_at=datetime.now(timezone.utc) + timedelta(hours=1))))
    add(make_spec(waits=Waits(after=(Dependency(job_id=first.id),))))


def test_each_job_of_the_list_is_counted_once_in_its_state_and_with_its_reason(queue: JobQueue) -> None:
    fill(queue)
    listed = queue.jobs.live()

    found = census(queue)

    waiting = Counter(job.reason for job in listed if not job.state.is_active)
    assert {WaitReason.DRAINED, WaitReason.SLOTS, WaitReason.HELD, WaitReason.BEGIN, WaitReason.DEPENDENCY} <= set(
        waiting
    )
    assert waiting == +Counter(found.waiting)
    assert Counter(job.state for job in listed) == +Counter(found.states())
    assert 0 == found.not_counted


def test_with_limits_the_jobs_of_one_shape_are_judged_for_each_user(queue: JobQueue) -> None:
    serve(queue)
    for account in (ADA, ADA, BOB):
        queue.requests.submit(make_spec(account=account, mem_bytes=10 * GIB))
    queue.rules.set_limits(Limits.parse("ada: running_jobs=1", "", {}))
    must_claim(queue)

    found = census(queue)

    assert {WaitReason.LIMIT: 1, WaitReason.MEMORY: 1} == +Counter(found.waiting)
    assert Counter(found.waiting) == Counter(job.reason for job in queue.jobs.live() if not job.state.is_active)


def test_each_waiting_member_of_an_array_counts(queue: JobQueue) -> None:
    """Members that wait, members that are held and members that run are counted as jobs, the array is not."""
    serve(queue)
    array = queue.requests.submit(make_spec(mem_bytes=20 * GIB, array=Array.parse("0-9,20-40:5")))
    submit_and_claim(queue, mem_bytes=20 * GIB)
    queue.jobs.part(array.id, "hold", Array.parse("3-5").indexes)

    found = census(queue)

    assert {JobState.QUEUED: 12, JobState.HELD: 3, JobState.STARTING: 1} == +Counter(found.states())
    queue.jobs.cancel(array.id)
    assert {JobState.QUEUED: 1, JobState.CANCELLING: 1} == +Counter(census(queue).states())


def test_an_array_whose_members_have_all_been_claimed_waits_no_more(queue: JobQueue) -> None:
    serve(queue)
    queue.requests.submit(make_spec(array=Array.parse("0-1")))
    for _ in range(2):
        must_claim(queue)

    assert {JobState.STARTING: 2} == +Counter(census(queue).states())


def test_many_jobs_of_one_queue_cost_as_much_as_one(queue: JobQueue) -> None:
    """The jobs in the queues are counted by queue, so their number does not matter."""
    serve(queue)
    costs = []
    with_client: redis.Redis = queue.store.client
    for count in (1, 200):
        for _ in range(count):
            queue.requests.submit(make_spec(mem_bytes=23 * GIB))
        census(queue)
        before = commands(with_client)
        found = census(queue)
        costs.append(commands(with_client) - before)
    assert costs[0] == costs[1]
    assert 201 == sum(found.waiting.values())


def test_a_census_reads_a_bounded_number_of_queues_and_of_other_waiting_jobs(
    queue: JobQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The sum is still right.
    serve(queue)
    for number in range(12):
        queue.requests.submit(make_spec(mem_bytes=GIB * (number + 1)))
        queue.requests.submit(make_spec(waits=Waits(hold=True)))
    for name in ("MOST_QUEUES", "MOST_ASIDE"):
        monkeypatch.setattr(counting, name, 5)

    found = census(queue)

    assert (5, 5) == (found.waiting[WaitReason.MEMORY], found.waiting[WaitReason.HELD])
    assert 14 == found.not_counted
