"""A run has ended and its worker asks for its job to be queued again."""

from __future__ import annotations

import pytest
import redis
from factories import claim, make_offer, make_spec, must_claim, serve

from gpuqueue.model.event import Act, Cursor
from gpuqueue.model.job import JobState, WaitReason
from gpuqueue.model.run import Ending, EndingKind, RunDevice
from gpuqueue.queue import job_fields as stored
from gpuqueue.queue import keys
from gpuqueue.queue.connect import connect
from gpuqueue.queue.jobqueue import JobQueue
from gpuqueue.queue.lease import Again, Claim, Stray

AT_ONCE = Again(reason=WaitReason.RETRY)
LATER = Again(reason=WaitReason.RETRY, later_s=3600.0)
PREEMPTED = Ending.stopped(EndingKind.PREEMPTED, -15)


def start(queue: JobQueue, **spec: object) -> Claim:
    """Submit, claim and start one job."""
    serve(queue)
    queue.requests.submit(make_spec(**spec))
    return start_again(queue)


def start_again(queue: JobQueue) -> Claim:
    """Claim and start the waiting job."""
    claimed = must_claim(queue)
    assert JobState.RUNNING is queue.runs.started(claimed.job_id, claimed.token, lease_s=300, log_path="/l", devices=())
    return claimed


def end(queue: JobQueue, claimed: Claim, again: Again = AT_ONCE) -> JobState | None:
    """Report that the run has ended and that its job is queued again."""
    return queue.runs.finish(
        claimed.job_id, claimed.token, state=JobState.QUEUED, ending=PREEMPTED, duration_s=1.0, devices=(), again=again
    )


def settle(queue: JobQueue) -> int:
    """Report that the history has all events, and return how many jobs the queue dropped."""
    return queue.outbox.settle(Cursor(epoch=queue.epoch() or "", last_id=queue.outbox.events("0-0")[-1].id))


def store_of(queue: JobQueue) -> redis.Redis:
    """Return a bare connection to the store."""
    return connect(queue.url)


def test_a_job_queued_again_counts_its_attempts_on_and_no_loss(queue: JobQueue) -> None:
    first = start(queue)

    assert JobState.QUEUED is end(queue, first)

    job = queue.jobs.get(1)
    assert (JobState.QUEUED, 1, 0, ()) == (job.state, job.attempt, job.losses, job.devices)
    assert ((), 0) == (queue.devices.all()[0].jobs, queue.devices.all()[0].allocated_bytes)
    second = must_claim(queue)
    assert (1, 2) == (second.job_id, second.attempt)
    assert end(queue, first) is None, "the word of a run that is over counted again"


def test_it_stays_when_the_history_has_the_end_of_its_run(queue: JobQueue) -> None:
    """A job that is queued again stays in the queue after the history has the end of its run.

    Only ended jobs are dropped.
    """
    end(queue, start(queue))
    last = queue.outbox.events("0-0")[-1]
    assert (Act.FINISH, JobState.QUEUED) == (last.act, last.state)

    assert 0 == settle(queue)

    assert 1 == must_claim(queue).job_id


@pytest.mark.parametrize("tick", ["claim", "reap"])
def test_it_waits_for_its_time_and_comes_back_with_the_next_claim_or_tick(queue: JobQueue, tick: str) -> None:
    """A delayed retry waits for its time, with reason "retry", and comes back with the next claim or reaper tick.

    Until then no claim takes it.
    """
    assert JobState.QUEUED is end(queue, start(queue), LATER)
    job = queue.jobs.get(1)
    assert WaitReason.RETRY is job.reason
    assert claim(queue) is None

    store = store_of(queue)
    store.hset(keys.job(1), stored.NOT_BEFORE_MS, 1)
    store.zadd(keys.PREFIX + "timers", {"1": 1})
    store.close()
    if tick == "reap":
        queue.maintenance.reap(loss_limit=3, lease_s=300, tick_s=10)
        job = queue.jobs.get(1)
        assert WaitReason.MEMORY is job.reason

    assert 2 == must_claim(queue).attempt
    assert Act.READY in [event.act for event in queue.outbox.events("0-0")]


@pytest.mark.parametrize("act", ["cancel", "hold"])
def test_a_job_can_be_cancelled_or_held_during_its_delay(queue: JobQueue, act: str) -> None:
    # After a release it still waits for its time.
    end(queue, start(queue), LATER)

    getattr(queue.jobs, act)(1)

    assert claim(queue) is None
    if act == "hold":
        assert JobState.QUEUED is queue.jobs.release(1)
        assert claim(queue) is None
        job = queue.jobs.get(1)
        assert WaitReason.RETRY is job.reason


def test_a_job_that_was_being_cancelled_is_never_queued_again(queue: JobQueue) -> None:
    claimed = start(queue)
    queue.jobs.cancel(1)

    assert JobState.CANCELLED is end(queue, claimed)


def test_a_job_with_no_requeue_fails_instead_of_being_queued_again(queue: JobQueue) -> None:
    assert JobState.FAILED is end(queue, start(queue, requeue=False))


def test_the_worker_keeps_the_end_until_the_history_has_it(queue: JobQueue) -> None:
    """The worker keeps the end of a run until the history has it, because the store may be lost before."""
    claimed = start(queue)
    end(queue, claimed)
    epoch, runs = queue.epoch(), {1: claimed.token}
    assert epoch is not None
    stray = Stray(
        job_id=1,
        token=claimed.token,
        host="nodeA",
        worker="w",
        devices=(RunDevice(uuid="GPU-0", lease_bytes=1),),
        claimed_ms=1,
        log_path="/l",
    )

    assert queue.runs.unrecorded(epoch, runs) == {claimed.token: JobState.FAILED}
    assert JobState.FAILED is queue.runs.adopt(stray, lease_s=300)

    settle(queue)

    assert queue.runs.unrecorded(epoch, runs) == {}
    assert make_offer().device.uuid == must_claim(queue).devices[0]
