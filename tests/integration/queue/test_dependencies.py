"""What a job waits for besides a device (other jobs, a time, a release), and after which endings it runs again."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

import pytest
import redis
from factories import BOB, claim, end, job_of, make_spec, must_claim, serve, submit
from store_dump import dump, faults

from gpuqueue.errors import Impossible
from gpuqueue.model.dependencies import Condition, Dependency, Waits
from gpuqueue.model.event import Act, Cursor
from gpuqueue.model.job import JobState, WaitReason
from gpuqueue.model.job_spec import Priority
from gpuqueue.model.retries import Retries, RetryOn
from gpuqueue.model.run import Ending, EndingKind
from gpuqueue.queue import job_fields as stored
from gpuqueue.queue import keys
from gpuqueue.queue.connect import connect
from gpuqueue.queue.jobqueue import JobQueue
from gpuqueue.queue.requests import Found, Unknown

HOUR = timedelta(hours=1)
OK, ANY, FAIL = Condition.OK, Condition.ANY, Condition.FAIL


def after(*wanted: int | Dependency, **changes: object) -> Waits:
    """Return the waits of a job that comes after other jobs."""
    each = tuple(one if isinstance(one, Dependency) else Dependency(one) for one in wanted)
    return Waits(after=each, **changes)


def begin(later: timedelta = HOUR) -> Waits:
    """Return the waits of a job that begins later."""
    return Waits(begin_at=datetime.now(timezone.utc) + later)


def run(queue: JobQueue, status: int = 0, ending: Ending | None = None) -> JobState | None:
    """Claim the next job and end it."""
    changes = {} if ending is None else {"state": JobState.FAILED, "ending": ending}
    return end(queue, must_claim(queue), status, **changes)


def time_goes_by(queue: JobQueue) -> None:
    """Make every begin time in the store be over, without a claim or a tick."""
    store = connect(queue.url)
    for job_id in [each for each in store.zrange(keys.PREFIX + "timers", 0, -1) if not each.startswith(("c:", "d:"))]:
        store.zadd(keys.PREFIX + "timers", {job_id: 1})
        store.hset(keys.job(job_id), stored.NOT_BEFORE_MS, 1)
    store.close()


def is_whole(queue: JobQueue) -> bool:
    """Return whether the store's indexes fit its jobs."""
    store = connect(queue.url)
    found = faults(dump(store))
    store.close()
    assert found == []
    return True


# ---- after other jobs ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("condition", "status", "starts"),
    [(OK, 0, True), (OK, 1, False), (ANY, 0, True), (ANY, 1, True), (FAIL, 0, False), (FAIL, 1, True)],
)
def test_a_job_after_another_starts_or_is_cancelled_by_how_that_ended(
    queue: JobQueue, condition: Condition, status: int, *, starts: bool
) -> None:
    """A dependent job starts or is cancelled in the same step that ends the other job. Its reason says why."""
    serve(queue)
    first = submit(queue)
    second = submit(queue, waits=after(Dependency(first, condition)))
    job = job_of(queue, second)
    assert (WaitReason.DEPENDENCY, (Dependency(first, condition),)) == (job.reason, job.awaits)
    claimed = must_claim(queue)
    assert claim(queue) is None, "the second started before the first had ended"

    end(queue, claimed, status)

    assert is_whole(queue)
    job = job_of(queue, second)
    if starts:
        assert (JobState.QUEUED, WaitReason.MEMORY, ()) == (job.state, job.reason, job.awaits)
        assert second == must_claim(queue).job_id
    else:
        how = "succeeded" if condition is FAIL else "failed"
        assert (JobState.CANCELLED, WaitReason.DEPENDENCY) == (job.state, job.reason)
        assert f"dependency {first} {how}" == job.because


def test_a_job_may_wait_for_several_and_for_one_that_is_held(queue: JobQueue) -> None:
    # A held job keeps it waiting.
    serve(queue)
    first, second = submit(queue), submit(queue)
    third = submit(queue, waits=after(first, second))
    run(queue)
    queue.jobs.hold(second)
    assert (Dependency(second),) == job_of(queue, third).awaits
    assert claim(queue) is None

    queue.jobs.release(second)
    run(queue)

    assert third == must_claim(queue).job_id


def test_a_cancelled_job_cancels_the_whole_chain_of_jobs_that_depend_on_it(queue: JobQueue) -> None:
    # A job that depends on a failure starts.
    serve(queue)
    ids = [submit(queue)]
    for _ in range(5):
        ids.append(submit(queue, waits=after(ids[-1])))
    cleaner = submit(queue, waits=after(Dependency(ids[-1], FAIL)))

    queue.jobs.cancel(ids[0])

    assert [JobState.CANCELLED] * 6 == [job_of(queue, each).state for each in ids]
    assert cleaner == must_claim(queue).job_id
    assert is_whole(queue)


def test_thousands_of_dependants_are_released_in_batches(queue: JobQueue) -> None:
    """The end of a job reaches its many dependants in batches, so that no script runs long."""
    # Every claim and every tick continues until all dependants have it, each once and in order.
    serve(queue)
    parent = submit(queue)
    many = [submit(queue, waits=after(parent), priority=Priority.LOW) for _ in range(170)]
    run(queue)
    reported = [event.job_id for event in queue.outbox.events("0-0", most=10_000) if event.act is Act.READY]
    assert 0 < len(reported) < len(many)

    for _ in range(8):
        queue.maintenance.reap(loss_limit=3, lease_s=300, tick_s=10)

    reported = [event.job_id for event in queue.outbox.events("0-0", most=10_000) if event.act is Act.READY]
    assert many == reported, "not all, not in their order, or not once"
    assert is_whole(queue)


def test_an_end_that_the_queue_has_forgotten_is_judged_when_the_job_is_submitted(queue: JobQueue) -> None:
    # The queue's own knowledge has precedence.
    serve(queue)
    with pytest.raises(Unknown, match="no job 7") as unknown:
        submit(queue, waits=after(7))
    assert (7,) == unknown.value.job_ids
    spec = make_spec(waits=after(7))

    assert WaitReason.MEMORY is queue.requests.submit(spec, ends={7: True}).reason
    with pytest.raises(Impossible, match="job 7 failed"):
        queue.requests.submit(spec, ends={7: False})
    run(queue)
    failed = submit(queue)
    run(queue, 1)
    with pytest.raises(Impossible, match=f"job {failed} failed"):
        submit(queue, waits=after(failed))
    assert is_whole(queue)


def test_a_dependant_that_is_cancelled_leaves_nothing_behind(queue: JobQueue) -> None:
    """A cancelled dependant leaves no index entries, neither for its dependencies nor for its begin time."""
    # Its own dependants are cancelled instead of waiting for ever.
    serve(queue)
    first = submit(queue)
    second = submit(queue, waits=after(first, begin_at=begin().begin_at))
    third = submit(queue, waits=begin())
    fourth = submit(queue, waits=after(second))

    assert [JobState.CANCELLED] * 2 == [queue.jobs.cancel(second), queue.jobs.cancel(third)]

    assert is_whole(queue)
    assert f"dependency {second} was cancelled" == job_of(queue, fourth).because
    assert first == must_claim(queue).job_id


def test_a_held_dependant_is_updated_too(queue: JobQueue) -> None:
    # A dependant that is released before that end still waits for it.
    serve(queue)
    first = submit(queue)
    second = submit(queue, waits=after(first))
    third = submit(queue, waits=after(first))
    queue.jobs.hold(second)
    queue.jobs.hold(third)
    queue.jobs.release(third)
    assert WaitReason.DEPENDENCY is job_of(queue, third).reason

    run(queue)
    queue.jobs.release(second)

    assert [second, third] == [must_claim(queue).job_id for _ in range(2)]


# ---- begin times, holds, dedupe keys ---------------------------------------------------------------------------------


def test_a_job_begins_at_its_time_and_at_its_place(queue: JobQueue) -> None:
    """A job that waited for its begin time keeps its place by arrival among the jobs of its user."""
    serve(queue)
    early = submit(queue, waits=begin())
    job = job_of(queue, early)
    assert WaitReason.BEGIN is job.reason
    assert job.begins_at is not None
    late = submit(queue)
    time_goes_by(queue)

    assert [early, late] == [must_claim(queue).job_id for _ in range(2)]


def test_a_job_can_wait_for_another_job_first_and_then_for_its_begin_time(queue: JobQueue) -> None:
    serve(queue)
    first = submit(queue)
    second = submit(queue, waits=after(first, begin_at=begin().begin_at))
    run(queue)

    assert WaitReason.BEGIN is job_of(queue, second).reason
    assert claim(queue) is None
    time_goes_by(queue)
    assert second == must_claim(queue).job_id
    assert is_whole(queue)


def test_waiting_for_a_dependency_does_not_promote(queue: JobQueue, store: redis.Redis) -> None:
    """Time before the begin time does not count for aging: the wait for a device begins when the job may start."""
    serve(queue)
    job_id = submit(queue, waits=begin())
    store.hset(keys.job(job_id), stored.SUBMITTED_MS, queue.now_ms() - 10 * 86_400_000)
    time_goes_by(queue)
    queue.maintenance.reap(loss_limit=3, lease_s=300, tick_s=10)

    assert 0 == queue.maintenance.promote(after_s=86_400)

    store.hdel(keys.job(job_id), stored.READY_SINCE_MS)
    assert 1 == queue.maintenance.promote(after_s=86_400)


def test_a_job_can_be_born_held(queue: JobQueue) -> None:
    # It waits for a release.
    serve(queue)
    job = queue.requests.submit(make_spec(waits=Waits(hold=True)))
    assert (JobState.HELD, WaitReason.HELD) == (job.state, job.reason)
    assert claim(queue) is None

    assert JobState.QUEUED is queue.jobs.release(job.id)

    assert job.id == must_claim(queue).job_id


def test_one_job_of_a_user_has_a_dedupe_key_at_a_time(queue: JobQueue) -> None:
    # The key is taken while the job waits or runs. The same key of another user is a different key, and an ended job
    # frees its key.
    serve(queue)
    keyed = Waits(dedupe="nightly")
    first = submit(queue, waits=keyed)
    assert first != submit(queue, waits=keyed, account=BOB)
    for _ in range(2):
        with pytest.raises(Found) as found:
            submit(queue, waits=keyed)
        assert first == found.value.job_id
        must_claim(queue)

    queue.jobs.cancel(2)
    queue.jobs.cancel(1)
    queue.runs.lose(1, next(iter(queue.recovery.survivors()))[0].record.runs[0].token, loss_limit=3, detail="x")
    second = submit(queue, waits=keyed)
    assert second > first
    queue.outbox.settle(Cursor(epoch=queue.epoch() or "", last_id=queue.outbox.events("0-0")[-1].id))

    with pytest.raises(Found):
        submit(queue, waits=keyed)
    assert is_whole(queue)


# ---- requeues and retries --------------------------------------------------------------------------------------------


def test_a_run_that_exits_with_75_is_requeued_five_times_and_then_held(queue: JobQueue) -> None:
    # A requeue counts neither as a loss nor as a retry. A release by a user resets the count.
    serve(queue)
    job_id = submit(queue)
    states = []
    for _ in range(6):
        states.append(run(queue, 75))
        time_goes_by(queue)

    assert [JobState.QUEUED] * 5 + [JobState.HELD] == states
    job = job_of(queue, job_id)
    actual = (job.reason, job.requeues, job.losses, job.retries, job.attempt)
    assert (WaitReason.REQUEUED_TOO_OFTEN, 5, 0, 0, 6) == actual
    queue.jobs.release(job_id)
    assert JobState.QUEUED is run(queue, 75)


def test_a_requeue_after_a_long_run_does_not_count(queue: JobQueue) -> None:
    # A job that saves a checkpoint before each time limit was held after five of them.
    serve(queue)
    job_id = submit(queue)
    states = []
    for number in range(12):
        states.append(end(queue, must_claim(queue), 75, is_long=number != 3))
        time_goes_by(queue)

    job = job_of(queue, job_id)
    assert ([JobState.QUEUED] * 12, 1, 12) == (states, job.requeues, job.attempt)


def test_with_no_requeue_exit_code_75_is_a_failure_like_any_other(queue: JobQueue) -> None:
    serve(queue)
    submit(queue, requeue=False)

    assert JobState.FAILED is run(queue, 75)


OOM = Ending.stopped(EndingKind.OUT_OF_MEMORY, 1, "x")
TIMED_OUT = Ending.stopped(EndingKind.TIMED_OUT, -15)


@pytest.mark.parametrize(
    ("on", "ending", "again"),
    [
        ((RetryOn.FAILED,), Ending.from_status(1), True),
        ((RetryOn.FAILED,), Ending.from_status(-11), False),
        ((RetryOn.SIGNALLED,), Ending.from_status(-11), True),
        ((RetryOn.OUT_OF_MEMORY, RetryOn.TIMED_OUT), OOM, True),
        ((RetryOn.OUT_OF_MEMORY, RetryOn.TIMED_OUT), TIMED_OUT, True),
        ((RetryOn.OUT_OF_MEMORY, RetryOn.TIMED_OUT), Ending.from_status(1), False),
        ((RetryOn.ANY,), Ending.refused("no such program"), True),
    ],
)
def test_a_job_is_retried_after_the_endings_that_were_named(
    queue: JobQueue, on: tuple[RetryOn, ...], ending: Ending, *, again: bool
) -> None:
    serve(queue)
    submit(queue, retries=Retries(times=1, on=on))

    assert (JobState.QUEUED if again else JobState.FAILED) is run(queue, ending=ending)


def test_the_pause_before_a_retry_doubles_and_the_last_one_ends_the_job(queue: JobQueue) -> None:
    # The job shows its retry count and time.
    serve(queue)
    job_id = submit(queue, retries=Retries(times=3))
    pauses_s = []
    for _ in range(3):
        assert JobState.QUEUED is run(queue, 1)
        job = job_of(queue, job_id)
        assert WaitReason.RETRY is job.reason
        pauses_s.append(round((job.begins_at.timestamp() * 1000 - queue.now_ms()) / 1000))
        time_goes_by(queue)

    assert JobState.FAILED is run(queue, 1)
    assert [10, 20, 40] == pauses_s
    assert (3, 4) == (job_of(queue, job_id).retries, job_of(queue, job_id).attempt)


def test_a_start_that_failed_is_retried(queue: JobQueue) -> None:
    """A host without the job's directory ended a job with ``--retries`` for good, within milliseconds."""
    serve(queue)
    job_id = submit(queue, retries=Retries(times=1))
    claimed = must_claim(queue)
    ending = Ending.refused("cannot enter the working directory /home/ann/proj: No such file or directory")

    after_it = end(queue, claimed, state=JobState.FAILED, ending=ending, duration_s=None)

    assert (JobState.QUEUED, WaitReason.RETRY) == (after_it, job_of(queue, job_id).reason)


def test_a_job_that_is_cancelled_is_not_retried(queue: JobQueue) -> None:
    serve(queue)
    submit(queue, retries=Retries(times=3, on=(RetryOn.ANY,)))
    claimed = must_claim(queue)
    queue.jobs.cancel(1)

    assert JobState.FAILED is end(queue, claimed, 1)


def test_losses_beyond_the_limit_are_retried_where_that_was_asked(queue: JobQueue) -> None:
    # Losses below the limit do not count as retries.
    serve(queue)
    job_id = submit(queue, retries=Retries(times=1, on=(RetryOn.LOST,)))
    states = []
    for _ in range(4):
        states.append(queue.runs.lose(job_id, must_claim(queue).token, loss_limit=3, detail="gone"))
        time_goes_by(queue)

    assert [JobState.QUEUED] * 3 + [JobState.HELD] == states
    assert (1, 4) == (job_of(queue, job_id).retries, job_of(queue, job_id).losses)


def test_a_job_that_is_retried_has_not_ended_so_its_dependants_go_on_waiting(queue: JobQueue) -> None:
    serve(queue)
    first = submit(queue, retries=Retries(times=1))
    second = submit(queue, waits=after(first))

    assert JobState.QUEUED is run(queue, 1)
    assert JobState.QUEUED is job_of(queue, second).state
    time_goes_by(queue)
    run(queue)

    assert second == must_claim(queue).job_id


# ---- damage ----------------------------------------------------------------------------------------------------------


@pytest.mark.full
@pytest.mark.parametrize("field", ["af", "nb", "nw", "rt", "ro", "rn", "qn", "dk", "why"])
@pytest.mark.parametrize("damage", ["", "x", "1e400", "-1", ",", "9" * 30])
def test_a_damaged_entry_stops_nobody(queue: JobQueue, store: redis.Redis, field: str, damage: str) -> None:
    """A waiting job with damaged fields does not stop other jobs, and it can be cancelled."""
    serve(queue)
    first = submit(queue)
    damaged = submit(queue, waits=after(first, begin_at=begin().begin_at, dedupe="k"), retries=Retries(times=1))
    other = submit(queue, waits=after(first))
    store.hset(keys.job(damaged), field, damage)

    run(queue)
    time_goes_by(queue)
    found: set[int] = set()
    while (claimed := claim(queue)) is not None:
        found.add(claimed.job_id)
        end(queue, claimed, 1)
    queue.jobs.cancel(damaged)

    assert other in found


def test_the_dependants_of_a_job_are_listed_by_id_until_it_has_ended(queue: JobQueue) -> None:
    first = submit(queue)
    others = [submit(queue, waits=after(first)) for _ in range(3)]
    assert (others, others[:2]) == tuple(queue.jobs.dependents(first, limit=limit) for limit in (9, 2))
    serve(queue)
    run(queue)
    assert [] == queue.jobs.dependents(first, limit=9)
