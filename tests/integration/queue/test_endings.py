from __future__ import annotations

import pytest
import redis
from factories import claim, job_of, make_device, make_offer, make_spec, must_claim, offered, serve, submit_and_claim

from gpuqueue.model.device import DeviceFilter, DeviceKind
from gpuqueue.model.event import Act, Cursor
from gpuqueue.model.job import JobState, WaitReason
from gpuqueue.model.run import Ending, EndingKind
from gpuqueue.queue import job_fields as stored
from gpuqueue.queue import keys
from gpuqueue.queue.connect import connect
from gpuqueue.queue.jobqueue import JobQueue
from gpuqueue.queue.lease import Again, Alive, Claim


def finish(queue: JobQueue, claimed: Claim, state: JobState = JobState.SUCCEEDED, token: str | None = None) -> bool:
    """Finish a run as its worker would."""
    return queue.runs.finish(
        claimed.job_id, token or claimed.token, state=state, ending=Ending.from_status(0), duration_s=1.0, devices=()
    )


def heartbeat(queue: JobQueue, claimed: Claim) -> str:
    """Send a heartbeat for one run and return the verdict as text."""
    verdicts = queue.devices.heartbeat(
        make_offer(), [Alive(job_id=claimed.job_id, token=claimed.token, observed={"GPU-0": 7})], lease_s=300
    )
    words = {"go on": verdicts.go_on, "cancelled": verdicts.cancelled, "stale": verdicts.stale}
    (word,) = [word for word, tokens in words.items() if claimed.token in tokens]
    return word


def test_a_finished_run_releases_its_memory_and_its_job_ends(queue: JobQueue) -> None:
    claimed = start(queue)

    assert finish(queue, claimed)
    assert JobState.SUCCEEDED is job_of(queue, 1).state
    assert (0, ()) == (queue.devices.all()[0].allocated_bytes, queue.devices.all()[0].jobs)
    assert (0, 0) == queue.jobs.counts()


def test_a_stale_run_changes_nothing(queue: JobQueue) -> None:
    """A late report has no effect: one with another token, or a second report of an end."""
    claimed = start(queue)
    before = len(queue.outbox.events("0-0"))

    assert not finish(queue, claimed, token="1.other")
    assert queue.runs.started(1, "1.other", lease_s=300, log_path="/l", devices=()) is None
    assert queue.runs.lose(1, "1.other", loss_limit=3, detail="x") is None
    assert not queue.runs.release_claim(1, "1.other", "x")
    assert before == len(queue.outbox.events("0-0"))

    assert finish(queue, claimed)
    assert not finish(queue, claimed, JobState.FAILED)
    assert JobState.SUCCEEDED is job_of(queue, 1).state


def test_a_released_claim_is_no_attempt(queue: JobQueue) -> None:
    """A released claim is no attempt: the job waits at its old place and the memory is free."""
    serve(queue)
    claimed = submit_and_claim(queue)

    assert queue.runs.release_claim(1, claimed.token, "the device looks different now")
    job = queue.jobs.get(1)
    assert (JobState.QUEUED, 0, ()) == (job.state, job.attempt, job.devices)
    again = must_claim(queue)
    assert (1, 1) == (again.job_id, again.attempt)
    assert claimed.token != again.token


def test_a_lost_run_is_queued_again_and_the_third_loss_holds_the_job(queue: JobQueue) -> None:
    # A job that kills its host must not do so for ever.
    serve(queue)
    queue.requests.submit(make_spec())

    states = []
    for _ in range(3):
        claimed = must_claim(queue)
        states.append(queue.runs.lose(1, claimed.token, loss_limit=3, detail="its shim vanished"))

    assert [JobState.QUEUED, JobState.QUEUED, JobState.HELD] == states
    job = queue.jobs.get(1)
    assert (3, WaitReason.LOST_TOO_OFTEN) == (job.losses, job.reason)
    assert claim(queue) is None
    assert JobState.QUEUED is queue.jobs.release(1)
    assert 1 == must_claim(queue).job_id


def test_a_lost_job_without_requeue_ends_as_lost(queue: JobQueue) -> None:
    claimed = start(queue, requeue=False)

    assert JobState.LOST is queue.runs.lose(1, claimed.token, loss_limit=3, detail="gone")


def test_a_lost_job_of_an_engine_is_followed_by_its_next_run(queue: JobQueue) -> None:
    """The engine runs it on, so --no-requeue is no reason to end it."""
    serve(queue, make_offer("slurm", device=make_device("slurm", kind=DeviceKind.SLURM)))
    queue.requests.submit(make_spec(requeue=False, device=DeviceFilter.SLURM))
    claimed = must_claim(queue, "slurm")

    assert JobState.QUEUED is queue.runs.lose(1, claimed.token, loss_limit=3, detail="its follower was killed")
    assert 1 == must_claim(queue, "slurm").job_id


def test_cancel_ends_a_waiting_job_at_once(queue: JobQueue) -> None:
    queue.requests.submit(make_spec())
    queue.requests.submit(make_spec())
    assert JobState.HELD is queue.jobs.hold(2)

    assert [JobState.CANCELLED] * 2 == [queue.jobs.cancel(1), queue.jobs.cancel(2)]
    assert claim(queue) is None
    assert JobState.CANCELLED is queue.jobs.cancel(1)
    assert queue.jobs.cancel(99) is None


def test_cancel_of_a_running_job_is_in_the_next_heartbeat_reply(queue: JobQueue) -> None:
    """The next heartbeat reports the cancel of a running job, even if the message on the wake-up channel got lost."""
    claimed = start(queue)
    assert "go on" == heartbeat(queue, claimed)

    assert JobState.CANCELLING is queue.jobs.cancel(1)
    assert "cancelled" == heartbeat(queue, claimed)
    assert finish(queue, claimed, JobState.CANCELLED)
    assert "stale" == heartbeat(queue, claimed)


def test_a_job_cancelled_between_claim_and_start_does_not_start(queue: JobQueue) -> None:
    # The last check before the spawn reports the cancel.
    serve(queue)
    claimed = submit_and_claim(queue)
    queue.jobs.cancel(1)

    assert JobState.CANCELLING is queue.runs.started(1, claimed.token, lease_s=300, log_path="/l", devices=())
    assert queue.runs.release_claim(1, claimed.token, "cancelled")
    assert JobState.CANCELLED is job_of(queue, 1).state


@pytest.mark.parametrize("cancelling", [False, True])
def test_any_reaper_takes_back_an_expired_lease(queue: JobQueue, store: redis.Redis, *, cancelling: bool) -> None:
    # A job that was being cancelled is cancelled then.
    claimed = start(queue)
    if cancelling:
        queue.jobs.cancel(1)
    reap = {"loss_limit": 3, "lease_s": 0.001, "tick_s": 1000.0}
    queue.maintenance.reap(**reap)  # the first tick only starts the clock
    store.zadd("{gq}:leases", {"1": 1})
    store.hset("{gq}:meta", "grace", 0)

    expected = JobState.CANCELLED if cancelling else JobState.QUEUED
    assert {1: expected} == queue.maintenance.reap(**reap)
    assert {} == queue.maintenance.reap(**reap)
    assert "stale" == heartbeat(queue, claimed)


def test_a_reaper_that_was_away_grants_every_run_one_more_lease(queue: JobQueue, store: redis.Redis) -> None:
    # While the store was down no heartbeat was possible. Without this rule four of six running jobs were doubled.
    start(queue)
    queue.maintenance.reap(loss_limit=3, lease_s=300, tick_s=10)
    store.hset("{gq}:meta", mapping={"grace": 0, "reap": queue.now_ms() - 31_000})  # four ticks missed
    store.zadd("{gq}:leases", {"1": 1})

    assert {} == queue.maintenance.reap(loss_limit=3, lease_s=300, tick_s=10)
    assert JobState.RUNNING is job_of(queue, 1).state


def test_a_heartbeat_returns_leases_that_the_worker_did_not_name(queue: JobQueue) -> None:
    # A new worker finds the claims that its predecessor never started.
    serve(queue, make_offer("GPU-0"), make_offer("GPU-1"))
    claimed = submit_and_claim(queue, "GPU-0", gpus=2)

    (lead,) = queue.devices.heartbeat(make_offer("GPU-0"), [], lease_s=300).others
    (member,) = queue.devices.heartbeat(make_offer("GPU-1"), [], lease_s=300).others

    assert (1, claimed.token, True) == (lead.job_id, lead.token, lead.leads)
    assert (1, False) == (member.job_id, member.leads)


def test_the_outbox_has_all_events_in_order(queue: JobQueue) -> None:
    """The outbox has one event for each transition, in order, with the state after it."""
    claimed = start(queue)
    queue.jobs.cancel(1)
    finish(queue, claimed, JobState.CANCELLED)

    reported = [(event.act, event.state) for event in queue.outbox.events("0-0")]

    assert [
        (Act.SUBMIT, JobState.QUEUED),
        (Act.CLAIM, JobState.STARTING),
        (Act.STARTED, JobState.RUNNING),
        (Act.CANCEL, JobState.CANCELLING),
        (Act.FINISH, JobState.CANCELLED),
    ] == reported


def test_the_queue_deletes_only_what_the_history_has(queue: JobQueue, store: redis.Redis) -> None:
    """The queue drops only ended jobs up to the event that the history names, and then leaves no key of them."""
    finish(queue, start(queue))
    queue.requests.submit(make_spec())
    events = queue.outbox.events("0-0")
    epoch = queue.epoch() or ""

    assert 0 == queue.outbox.settle(Cursor(epoch=epoch, last_id=events[2].id))
    assert queue.jobs.get(1) is not None
    assert 1 == queue.outbox.settle(Cursor(epoch=epoch, last_id=events[-1].id))
    assert queue.jobs.get(1) is None
    assert [] == queue.outbox.events("0-0")
    assert 0 == store.exists("{gq}:j:1", "{gq}:s:1", "{gq}:ended", "{gq}:leases", "{gq}:dl:GPU-0")
    assert 2 == must_claim(queue).job_id


# ---- a run has ended and its worker asks for its job to be queued again ----------------------------------------------

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
    """A job that is queued again stays in the queue after the history has the end of its run."""
    # Only ended jobs are dropped.
    end(queue, start(queue))
    last = queue.outbox.events("0-0")[-1]
    assert (Act.FINISH, JobState.QUEUED) == (last.act, last.state)

    assert 0 == settle(queue)

    assert 1 == must_claim(queue).job_id


@pytest.mark.parametrize("tick", ["claim", "reap"])
def test_it_waits_for_its_time_and_comes_back_with_the_next_claim_or_tick(queue: JobQueue, tick: str) -> None:
    """A delayed retry waits for its time, with reason "retry", and comes back with the next claim or reaper tick."""
    # Until then no claim takes it.
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


def test_a_job_with_no_requeue_fails_instead_of_being_queued_again(queue: JobQueue) -> None:
    assert JobState.FAILED is end(queue, start(queue, requeue=False))


def test_the_worker_keeps_the_end_until_the_history_has_it(queue: JobQueue) -> None:
    """The worker keeps the end of a run until the history has it, because the store may be lost before."""
    claimed = start(queue)
    end(queue, claimed)
    epoch, runs = queue.epoch(), {1: claimed.token}
    assert epoch is not None

    assert queue.runs.unrecorded(epoch, runs) == {claimed.token: JobState.FAILED}
    assert JobState.FAILED is queue.runs.adopt(offered(claimed), lease_s=300)

    settle(queue)

    assert queue.runs.unrecorded(epoch, runs) == {}
    assert make_offer().device.uuid == must_claim(queue).devices[0]
