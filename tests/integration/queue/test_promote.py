"""Aging promotes a waiting job by one priority, so that no priority starves another."""

from __future__ import annotations

import redis
from factories import BOB, make_offer, must_claim, serve, submit

from gpuqueue.model.array import Array
from gpuqueue.model.event import Act
from gpuqueue.model.job_spec import Priority
from gpuqueue.queue import job_fields as stored
from gpuqueue.queue import keys
from gpuqueue.queue.jobqueue import JobQueue
from gpuqueue.text.units import GIB

DAY_S = 86400.0


def submit_days_ago(queue: JobQueue, store: redis.Redis, days: float, **changes: object) -> int:
    """Queue a job that has waited for *days* days."""
    job_id = submit(queue, **changes)
    store.hset(keys.job(job_id), stored.SUBMITTED_MS, queue.now_ms() - round(days * DAY_S * 1000))
    return job_id


def test_a_low_job_goes_before_high_ones_after_two_days(queue: JobQueue, store: redis.Redis) -> None:
    # Aging promotes it once a day, and it is the oldest job of its new priority.
    serve(queue)
    low = submit_days_ago(queue, store, 2.5, priority=Priority.LOW)
    high = submit(queue, priority=Priority.HIGH)

    assert [1, 1, 0] == [queue.maintenance.promote(after_s=DAY_S) for _ in range(3)]

    assert [low, high] == [must_claim(queue).job_id for _ in range(2)]


def test_no_job_is_promoted_to_urgent_or_before_its_time(queue: JobQueue, store: redis.Redis) -> None:
    # Only users set urgent, and a job that was promoted yesterday waits another day for the next promotion.
    old_high = submit_days_ago(queue, store, 30, priority=Priority.HIGH)
    low = submit_days_ago(queue, store, 1.5, priority=Priority.LOW)
    submit_days_ago(queue, store, 0.5)

    assert 1 == queue.maintenance.promote(after_s=DAY_S)
    assert 0 == queue.maintenance.promote(after_s=DAY_S)

    assert "2" == store.hget(keys.job(old_high), stored.PRIORITY)
    assert "1" == store.hget(keys.job(low), stored.PRIORITY)


def test_a_users_jobs_keep_their_order(queue: JobQueue, store: redis.Redis) -> None:
    """A user's jobs of the same shape keep their order: no younger job is promoted past an older one."""
    serve(queue)
    ids = [submit_days_ago(queue, store, days) for days in (1.5, 1.4, 0.1)]
    high = submit(queue, priority=Priority.HIGH, account=BOB)

    assert 2 == queue.maintenance.promote(after_s=DAY_S)

    assert {*ids[:2], high} == {must_claim(queue).job_id for _ in range(3)}
    assert ids[2] == must_claim(queue).job_id


def test_one_tick_promotes_a_limited_number_of_jobs(queue: JobQueue, store: redis.Redis) -> None:
    # A million jobs after a weekend must not block the store for seconds.
    for _ in range(5):
        submit_days_ago(queue, store, 2)

    assert [3, 2, 0] == [queue.maintenance.promote(after_s=DAY_S, most=3) for _ in range(3)]


def test_a_promotion_is_an_event_in_the_jobs_history(queue: JobQueue, store: redis.Redis) -> None:
    # Users can see why a normal job starts before a high one.
    job_id = submit_days_ago(queue, store, 1.5)
    queue.maintenance.promote(after_s=DAY_S)

    *_, event = queue.outbox.events("0-0")

    assert (Act.PROMOTE, job_id, "2") == (event.act, event.job_id, event.fields["priority"])


def test_run_time_does_not_promote_a_job(queue: JobQueue, store: redis.Redis) -> None:
    """Run time does not count for aging, for example when a job ran for a day until its host died."""
    serve(queue)
    job_id = submit_days_ago(queue, store, 1.5)
    run = must_claim(queue)
    queue.runs.lose(job_id, run.token, loss_limit=3, detail="gone")

    assert 0 == queue.maintenance.promote(after_s=DAY_S)


def test_run_time_and_hold_time_do_not_promote_a_member(queue: JobQueue, store: redis.Redis) -> None:
    """Run time and hold time of an array member do not count for aging, nor for its array."""
    # Regression: a member's wait counted from its first claim, whatever happened since.
    serve(queue)
    array = submit(queue, array=Array.parse("0-1%1"))
    run = must_claim(queue)
    for each in (array, run.job_id):
        store.hset(keys.job(each), stored.MEMBER_CLAIMED_MS, queue.now_ms() - round(1.5 * DAY_S * 1000))
    queue.runs.lose(run.job_id, run.token, loss_limit=3, detail="gone")

    assert 0 == queue.maintenance.promote(after_s=DAY_S)


def test_a_promoted_job_that_is_lost_keeps_its_priority(queue: JobQueue, store: redis.Redis) -> None:
    """A promoted job that is lost keeps its new priority: the fault is the machine's."""
    # No index keeps an entry of the old one.
    serve(queue, make_offer())
    job_id = submit_days_ago(queue, store, 1.5, mem_bytes=GIB)
    queue.maintenance.promote(after_s=DAY_S)
    run = must_claim(queue)
    queue.runs.lose(job_id, run.token, loss_limit=3, detail="gone")

    assert 0 == store.zcard(keys.PREFIX + "ul:1")
    assert 1 == store.zcard(keys.PREFIX + "ul:2")
    assert job_id == must_claim(queue).job_id
    assert 0 == store.zcard(keys.PREFIX + "ul:2")
