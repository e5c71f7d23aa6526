"""The counts for monitoring agree with the list of jobs, and cost what many jobs do not raise."""

from __future__ import annotations

from collections import Counter
from datetime import datetime, timedelta, timezone

import pytest
import redis
from factories import ADA, BOB, make_offer, make_spec, must_claim, serve

from gpuqueue.model.array import Array
from gpuqueue.model.dependencies import Dependency, Waits
from gpuqueue.model.job import JobState, WaitReason
from gpuqueue.model.limits import Limits
from gpuqueue.queue import census as counting
from gpuqueue.queue.census import census
from gpuqueue.queue.drains import DrainOrigin
from gpuqueue.queue.jobqueue import JobQueue
from gpuqueue.text.units import GIB


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
    queue.requests.submit(make_spec(mem_bytes=20 * GIB))
    must_claim(queue)
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
        before = _commands(with_client)
        found = census(queue)
        costs.append(_commands(with_client) - before)
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


def _commands(store: redis.Redis) -> int:
    """Return the number of commands that the store has run, with those of scripts."""
    return sum(each["calls"] for each in store.info("commandstats").values())
