"""Preemption: which runs are preempted, what is reserved for the waiting job, and how both continue."""

from __future__ import annotations

from typing import Any

import pytest
import redis
from factories import ADA, BOB, claim, end, make_offer, make_spec, must_claim, serve, start, submit, submit_and_claim

from gpuqueue.clock import SystemClock
from gpuqueue.model.array import Array
from gpuqueue.model.job import JobState, WaitReason
from gpuqueue.model.job_spec import Priority
from gpuqueue.model.limits import Limits
from gpuqueue.model.placement import Placement
from gpuqueue.model.run import Ending, EndingKind
from gpuqueue.queue import job_fields as stored
from gpuqueue.queue import keys
from gpuqueue.queue.drains import DrainOrigin
from gpuqueue.queue.jobqueue import JobQueue
from gpuqueue.queue.lease import Again, Alive, Claim, Verdicts
from gpuqueue.queue.wakeup import wake_of
from gpuqueue.settings.settings import Settings
from gpuqueue.text.units import GIB, MIB
from workers.services.reaper import Reaper

MAY = {Priority.URGENT: (Priority.LOW, Priority.NORMAL), Priority.HIGH: (Priority.LOW,)}


def running(queue: JobQueue, store: redis.Redis, *, uuid: str = "GPU-0", for_s: float = 3600, **spec: Any) -> Claim:
    """Let a new job run on a device, started *for_s* seconds ago."""
    job_id = submit(queue, **{"priority": Priority.LOW, **spec})
    run = must_claim(queue, uuid)
    assert job_id == run.job_id
    start(queue, run)
    store.hset(keys.job(job_id), stored.STARTED_MS, queue.now_ms() - round(for_s * 1000))
    return run


def urgent(queue: JobQueue, **spec: Any) -> int:
    """Submit a job that may preempt others."""
    return submit(queue, **{"priority": Priority.URGENT, "account": BOB, **spec})


def preempt(queue: JobQueue, **changes: Any) -> dict[int, int]:
    """Run the preemption tick."""
    return queue.maintenance.preempt(MAY, **{"after_s": 600.0, "grace_s": 60.0, **changes})


def heartbeat(queue: JobQueue, run: Claim) -> Verdicts:
    """Send a heartbeat for one run."""
    alive = Alive(job_id=run.job_id, token=run.token, observed=dict.fromkeys(run.devices, 0))
    return queue.devices.heartbeat(make_offer(run.devices[0]), [alive], lease_s=300)


def leave(queue: JobQueue, run: Claim) -> JobState | None:
    """Report the end of a preempted run as its worker does."""
    ending, again = Ending.stopped(EndingKind.PREEMPTED, -15, "made place"), Again(reason=WaitReason.RETRY)
    return end(queue, run, state=JobState.QUEUED, ending=ending, again=again)


def test_a_preempted_job_waits_again_at_its_old_place(queue: JobQueue, store: redis.Redis) -> None:
    """A preempted run's worker is notified, and its job waits again at its old place without a loss."""
    # The memory goes to the job that it was freed for, not to the first claimer.
    serve(queue)
    run = running(queue, store, mem_bytes=20 * GIB)
    job_id = urgent(queue, mem_bytes=10 * GIB, account=ADA)
    assert claim(queue) is None

    assert {run.job_id: job_id} == preempt(queue)

    place = heartbeat(queue, run).preemptions[run.token]
    assert job_id == place.by
    assert 0 < place.left_s <= 60
    assert {} == preempt(queue), "it is under way"
    assert JobState.QUEUED is leave(queue, run)
    other = urgent(queue, mem_bytes=20 * GIB, account=BOB)  # bob has used nothing yet, so his job would be first
    assert job_id == must_claim(queue).job_id
    victim = queue.jobs.get(run.job_id)
    assert (JobState.QUEUED, 1, 0) == (victim.state, victim.attempt, victim.losses)
    queue.jobs.cancel(other), queue.jobs.cancel(job_id)
    assert "preempt" in [fields["act"] for _, fields in store.xrange(keys.OUTBOX)]


def test_only_lower_priorities_that_ran_for_a_while_and_may_run_again(queue: JobQueue, store: redis.Redis) -> None:
    """Only running jobs of a named lower priority that ran long enough and may be requeued are preempted."""
    # Not preempted: a fresh run, a priority that is not named, a job with requeue off, and a job that is starting.
    serve(queue)
    job: dict[str, Any] = {"mem_bytes": 20 * GIB}
    for changes in ({"for_s": 599}, {"priority": Priority.HIGH}, {"requeue": False}):
        run = running(queue, store, **{**job, **changes})
        waiting = urgent(queue, mem_bytes=10 * GIB)
        assert {} == preempt(queue), changes
        queue.jobs.cancel(waiting)
        end(queue, run)
    starting = submit_and_claim(queue, priority=Priority.LOW, **job)
    urgent(queue, mem_bytes=10 * GIB)
    assert {} == preempt(queue, after_s=0.0)
    start(queue, starting)
    assert starting.job_id in preempt(queue, after_s=0.0)


def test_a_job_that_fits_or_waits_for_something_else_preempts_nothing(queue: JobQueue, store: redis.Redis) -> None:
    """No run is preempted for a job that fits already, or that a limit holds: the freed memory would stay unused."""
    serve(queue, make_offer("GPU-0"), make_offer("GPU-1"))
    running(queue, store, mem_bytes=20 * GIB)
    job_id = urgent(queue, mem_bytes=10 * GIB)
    assert {} == preempt(queue), "there is room on the other card"
    queue.jobs.hold(job_id)
    running(queue, store, uuid="GPU-1", mem_bytes=20 * GIB, priority=Priority.URGENT)
    queue.jobs.release(job_id)
    queue.rules.set_limits(Limits.parse("bob: running_jobs=0", "", {}))
    assert {} == preempt(queue)

    queue.rules.set_limits(Limits())

    assert [job_id] == list(preempt(queue).values())


def test_the_least_work_is_lost_and_no_run_goes_in_vain(queue: JobQueue, store: redis.Redis) -> None:
    """Preemption loses the least work: newest runs first, on the cheapest card. Runs that need not go stay."""
    serve(queue, make_offer("GPU-0"), make_offer("GPU-1"))
    old = running(queue, store, uuid="GPU-0", for_s=90_000, mem_bytes=20 * GIB)
    large = running(queue, store, uuid="GPU-1", for_s=7200, mem_bytes=12 * GIB)
    small = running(queue, store, uuid="GPU-1", for_s=3600, mem_bytes=6 * GIB)
    first = urgent(queue, mem_bytes=16 * GIB)

    assert {large.job_id: first} == preempt(queue), "without the small one, which is newer, it would not do"

    leave(queue, large)
    assert first == must_claim(queue, "GPU-1").job_id
    assert JobState.RUNNING is queue.jobs.get(old.job_id).state is queue.jobs.get(small.job_id).state


def test_a_run_that_has_a_card_for_itself_counts_with_all_of_it(queue: JobQueue, store: redis.Redis) -> None:
    # Regression: without --mem it counted with 1 MiB, so such runs seemed the cheapest and were preempted first.
    serve(queue, make_offer("GPU-0"), make_offer("GPU-1"))
    whole = Placement(exclusive=True, whole=True)
    running(queue, store, uuid="GPU-0", for_s=90_000, mem_bytes=MIB, placement=whole)
    small = running(queue, store, uuid="GPU-1", for_s=7200, mem_bytes=12 * GIB)
    job_id = urgent(queue, mem_bytes=16 * GIB)

    assert {small.job_id: job_id} == preempt(queue)


def test_a_job_on_several_cards_preempts_and_is_preempted_once(queue: JobQueue, store: redis.Redis) -> None:
    """A gang is preempted once for all its cards, and all of them are reserved for the waiting gang."""
    serve(queue, make_offer("GPU-0"), make_offer("GPU-1"), make_offer("GPU-2"))
    gang = running(queue, store, uuid="GPU-0", mem_bytes=20 * GIB, gpus=2)
    (third,) = {"GPU-0", "GPU-1", "GPU-2"} - set(gang.devices)
    alone = running(queue, store, uuid=third, for_s=90_000, mem_bytes=20 * GIB)
    job_id = urgent(queue, mem_bytes=20 * GIB, gpus=2)

    assert {gang.job_id: job_id} == preempt(queue)

    assert set(gang.devices) == set(store.hkeys(keys.PREFIX + "rsv"))
    leave(queue, gang)
    assert set(gang.devices) == set(must_claim(queue, gang.devices[0]).devices)
    assert JobState.RUNNING is queue.jobs.get(alone.job_id).state


def test_after_five_times_a_job_is_left_alone(queue: JobQueue, store: redis.Redis) -> None:
    # Otherwise it might never end.
    serve(queue)
    run = running(queue, store, mem_bytes=20 * GIB)
    for _ in range(5):
        job_id = urgent(queue, mem_bytes=20 * GIB)
        assert {run.job_id: job_id} == preempt(queue)
        leave(queue, run)
        taken = must_claim(queue)
        assert job_id == taken.job_id
        end(queue, taken)
        run = must_claim(queue)
        start(queue, run)
        assert heartbeat(queue, run).preemptions == {}, "what was said of its last run holds no more"
        store.hset(keys.job(run.job_id), stored.STARTED_MS, 1)
    urgent(queue, mem_bytes=20 * GIB)

    assert {} == preempt(queue)


def test_a_cancel_wins(queue: JobQueue, store: redis.Redis) -> None:
    """A cancel of a preempted job wins over the requeue, and the reservation for the waiting job stays."""
    serve(queue)
    run = running(queue, store, mem_bytes=20 * GIB)
    job_id = urgent(queue, mem_bytes=10 * GIB)
    preempt(queue)

    queue.jobs.cancel(run.job_id)

    verdicts = heartbeat(queue, run)
    assert run.token in verdicts.cancelled
    assert {} == verdicts.preemptions
    assert JobState.CANCELLED is leave(queue, run)
    assert job_id == must_claim(queue).job_id


def test_the_search_position_is_kept_without_a_reservation(queue: JobQueue, store: redis.Redis) -> None:
    """The memory freed by preemption stays reserved even when the reservation tick is off (`most=0`)."""
    serve(queue)
    run = running(queue, store, mem_bytes=20 * GIB)
    job_id = urgent(queue, mem_bytes=10 * GIB, account=ADA)
    preempt(queue)

    queue.maintenance.reserve(after_s=0, most=0)
    leave(queue, run)
    urgent(queue, mem_bytes=20 * GIB, account=BOB)  # bob has used nothing yet, so his job would be first
    queue.maintenance.reserve(after_s=0, most=0)

    assert job_id == must_claim(queue).job_id


def test_a_promoted_job_preempts_nothing(queue: JobQueue, store: redis.Redis) -> None:
    # Only the submitted priority allows that.
    serve(queue)
    run = running(queue, store, mem_bytes=20 * GIB)
    waiting = submit(queue, account=BOB, mem_bytes=20 * GIB)
    for job_id in (run.job_id, waiting):
        store.hset(keys.job(job_id), stored.SUBMITTED_MS, 1)
    assert 1 == queue.maintenance.promote(after_s=1.0)
    assert "2" == store.hget(keys.job(waiting), stored.PRIORITY)

    assert {} == preempt(queue)


def test_the_worker_gets_a_preemption_at_once_on_the_wake_up_channel(queue: JobQueue, store: redis.Redis) -> None:
    # A malformed message there only means "check for work".
    serve(queue)
    run = running(queue, store, mem_bytes=20 * GIB)
    job_id = urgent(queue, mem_bytes=10 * GIB)
    listener = store.pubsub(ignore_subscribe_messages=True)
    listener.subscribe(keys.CONTROL)
    listener.get_message(timeout=5)
    preempt(queue)

    message = listener.get_message(timeout=5)

    assert message is not None
    wake = wake_of(message["channel"], message["data"])
    assert ("preempt", run.token, job_id, 60.0) == (wake.what, wake.token, wake.by, wake.left_s)
    assert "work" == wake_of(keys.CONTROL, "preempt:1:1.a:x:y").what == wake_of(keys.CONTROL, "preempt:1").what
    listener.close()


def test_nothing_is_preempted_unless_the_site_enables_it(queue: JobQueue, store: redis.Redis) -> None:
    """Preemption is off by default: urgent only means first in the order."""
    serve(queue)
    run = running(queue, store, mem_bytes=20 * GIB)
    urgent(queue, mem_bytes=20 * GIB)
    environ = {"GPUQUEUE_CONFIG": "/dev/null", "GPUQUEUE_STATE_DIR": "/s"}

    Reaper(Settings.load(environ), queue, SystemClock()).serve_long_waits()
    assert {} == heartbeat(queue, run).preemptions

    Reaper(Settings.load({**environ, "GPUQUEUE_PREEMPT": "urgent: low"}), queue, SystemClock()).serve_long_waits()
    assert {run.token} == set(heartbeat(queue, run).preemptions)


def test_a_card_that_a_job_does_not_want_is_no_place_for_it(queue: JobQueue, store: redis.Redis) -> None:
    """An idle card that the job's placement excludes does not stop a preemption on the card that it names."""
    # Regression: the idle card counted as a place for the job, so no run was preempted.
    serve(queue, make_offer("GPU-0"), make_offer("GPU-1"))
    low = running(queue, store, mem_bytes=20 * GIB)

    named = urgent(queue, mem_bytes=20 * GIB, placement=Placement(devices=("GPU-0",)))

    assert {low.job_id: named} == preempt(queue)


def test_an_exclusive_job_preempts_all_runs_of_the_card(queue: JobQueue, store: redis.Redis) -> None:
    """For an exclusive job all runs on the card are preempted, even if its memory would fit beside them."""
    serve(queue)
    runs = [running(queue, store, mem_bytes=GIB) for _ in range(2)]
    alone = urgent(queue, mem_bytes=GIB, placement=Placement(exclusive=True))

    assert dict.fromkeys((run.job_id for run in runs), alone) == preempt(queue)


def test_no_job_joins_a_card_that_is_being_emptied_for_an_exclusive_job(queue: JobQueue, store: redis.Redis) -> None:
    # Regression: until the next tick only the named memory was reserved. A quick claimer took the rest, and the
    # exclusive job went on waiting.
    serve(queue)
    low = running(queue, store, mem_bytes=GIB)
    alone = urgent(queue, mem_bytes=GIB, placement=Placement(exclusive=True))
    queue.requests.submit(make_spec(priority=Priority.URGENT))
    assert {low.job_id: alone} == preempt(queue)

    assert claim(queue) is None
    leave(queue, low)
    assert alone == must_claim(queue).job_id


def test_the_wait_of_a_preempted_job_starts_at_its_preemption(queue: JobQueue, store: redis.Redis) -> None:
    # Regression: it counted from the first submission, so the job got its memory back before all others.
    serve(queue)
    low = running(queue, store, mem_bytes=20 * GIB)
    urgent(queue, mem_bytes=20 * GIB)
    preempt(queue)
    before_ms = queue.now_ms()

    leave(queue, low)

    assert before_ms <= int(store.hget(keys.job(low.job_id), stored.READY_SINCE_MS) or 0)


def test_the_end_of_a_preempted_exclusive_run_is_recorded_in_its_lease(queue: JobQueue, store: redis.Redis) -> None:
    # Regression: the end was not recorded, so the freed memory was not held and the preemption was useless.
    serve(queue)
    alone = running(queue, store, placement=Placement(exclusive=True))
    job_id = urgent(queue)
    latest_ms = queue.now_ms() + 60_000

    assert {alone.job_id: job_id} == preempt(queue)

    _, _, ends, by_right, nonce = str(store.hget(keys.device_leases("GPU-0"), str(alone.job_id))).split(":")
    assert latest_ms <= int(ends) <= queue.now_ms() + 60_000
    assert ("x", alone.token.partition(".")[2]) == (by_right, nonce), "the rest of the lease is as it was"


def reserved(queue: JobQueue) -> dict[int, set[str]]:
    """Run the reservation tick and return the reserved devices of each job."""
    return {each.job_id: set(each.devices) for each in queue.maintenance.reserve(after_s=0, most=4)}


def test_a_reservation_of_a_lower_priority_protects_no_run(queue: JobQueue, store: redis.Redis) -> None:
    # Regression: with the card reserved for a normal job, an urgent job preempted no run and started after the normal
    # job.
    serve(queue)
    low = running(queue, store, mem_bytes=20 * GIB)
    normal = submit(queue, mem_bytes=20 * GIB)
    assert {normal: {"GPU-0"}} == reserved(queue)
    job_id = urgent(queue, mem_bytes=20 * GIB)

    assert {low.job_id: job_id} == preempt(queue)

    assert {job_id: {"GPU-0"}} == reserved(queue), "the next tick gives it back to nobody"
    leave(queue, low)
    assert {} == preempt(queue)
    assert {job_id: {"GPU-0"}} == reserved(queue)
    assert job_id == must_claim(queue).job_id
    assert {normal: {"GPU-0"}} == reserved(queue), "it is planned anew, behind that run"


@pytest.mark.parametrize("priority", [Priority.HIGH, Priority.URGENT])
def test_a_reservation_of_a_priority_that_may_not_be_preempted_stays(
    queue: JobQueue, store: redis.Redis, priority: Priority
) -> None:
    """A reservation for an equal priority, or for one that is not named for preemption, stays."""
    serve(queue)
    running(queue, store, mem_bytes=20 * GIB)
    other = submit(queue, priority=priority, mem_bytes=20 * GIB)
    assert {other: {"GPU-0"}} == reserved(queue)
    urgent(queue, mem_bytes=10 * GIB)

    assert other in preempt(queue).values()

    assert {other: {"GPU-0"}} == reserved(queue)


def test_memory_that_is_being_freed_for_a_lower_priority_may_be_taken_over(queue: JobQueue, store: redis.Redis) -> None:
    # One for an equal priority is left alone. No run is preempted twice, and the job that loses the memory is planned
    # again.
    serve(queue)
    may = {Priority.URGENT: (Priority.LOW, Priority.NORMAL), Priority.NORMAL: (Priority.LOW,)}
    low = running(queue, store, mem_bytes=20 * GIB)
    normal = submit(queue, mem_bytes=20 * GIB)
    assert {low.job_id: normal} == queue.maintenance.preempt(may, after_s=600, grace_s=60)
    first, second = urgent(queue, mem_bytes=20 * GIB), urgent(queue, mem_bytes=10 * GIB)

    assert {} == queue.maintenance.preempt(may, after_s=600, grace_s=60)

    assert {first: {"GPU-0"}} == reserved(queue)
    assert {} == queue.maintenance.preempt(may, after_s=600, grace_s=60)
    leave(queue, low)
    assert first == must_claim(queue).job_id
    assert {JobState.QUEUED} == {queue.jobs.get(each).state for each in (normal, second)}


def test_a_gang_that_loses_one_reserved_card_drops_its_other_reservations(queue: JobQueue, store: redis.Redis) -> None:
    # Otherwise the other card would stay empty for no job.
    serve(queue, make_offer("GPU-0"), make_offer("GPU-1"))
    low = running(queue, store, uuid="GPU-0", mem_bytes=20 * GIB)
    running(queue, store, uuid="GPU-1", mem_bytes=20 * GIB, priority=Priority.URGENT)
    gang = submit(queue, mem_bytes=20 * GIB, gpus=2)
    assert {gang: {"GPU-0", "GPU-1"}} == reserved(queue)
    job_id = urgent(queue, mem_bytes=20 * GIB)

    assert {low.job_id: job_id} == preempt(queue)

    assert ["GPU-0"] == store.hkeys(keys.PREFIX + "rsv")
    assert store.hget(keys.job(gang), stored.RESERVED) is store.hget(keys.job(gang), stored.RESERVED_SINCE_MS) is None


def test_an_empty_card_reserved_for_several_devices_preempts_nothing(queue: JobQueue, store: redis.Redis) -> None:
    """An empty card that is reserved for a gang is taken before any run is preempted."""
    # The urgent job starts there at once.
    serve(queue, make_offer("GPU-0"), make_offer("GPU-1"))
    low = running(queue, store, uuid="GPU-0", mem_bytes=20 * GIB)
    gang = submit(queue, mem_bytes=20 * GIB, gpus=2)
    assert {gang: {"GPU-0", "GPU-1"}} == reserved(queue)
    job_id = urgent(queue, mem_bytes=20 * GIB)
    assert claim(queue, "GPU-1") is None

    assert {} == preempt(queue)

    assert job_id == must_claim(queue, "GPU-1").job_id
    assert JobState.RUNNING is queue.jobs.get(low.job_id).state


def test_runs_beside_which_the_job_fits_are_not_preempted(queue: JobQueue, store: redis.Redis) -> None:
    """A reservation stays if the urgent job fits beside it: the job starts in a moment."""
    serve(queue)
    running(queue, store, mem_bytes=16 * GIB)
    normal = submit(queue, mem_bytes=18 * GIB)
    assert {normal: {"GPU-0"}} == reserved(queue)
    beside = urgent(queue, mem_bytes=6 * GIB)

    assert {} == preempt(queue)

    assert {normal: {"GPU-0"}} == reserved(queue)
    assert beside == must_claim(queue).job_id


def test_of_two_cards_the_unreserved_one_is_used(queue: JobQueue, store: redis.Redis) -> None:
    """Between two cards with equal lost work, preemption picks the card without a reservation."""
    serve(queue, make_offer("GPU-0"), make_offer("GPU-1"))
    runs = {uuid: running(queue, store, uuid=uuid, mem_bytes=20 * GIB) for uuid in ("GPU-0", "GPU-1")}
    for run in runs.values():
        store.hset(keys.job(run.job_id), stored.STARTED_MS, 1)
    normal = submit(queue, mem_bytes=20 * GIB)
    ((card,),) = reserved(queue).values()
    (other,) = {"GPU-0", "GPU-1"} - {card}
    job_id = urgent(queue, mem_bytes=20 * GIB)

    assert {runs[other].job_id: job_id} == preempt(queue)

    assert {normal: {card}, job_id: {other}} == reserved(queue)


def test_no_run_on_a_reserved_card_is_preempted_in_vain(queue: JobQueue, store: redis.Redis) -> None:
    """No run is preempted on a reserved card where another run may not be preempted and leaves too little memory."""
    # The reservation stays as well.
    serve(queue)
    running(queue, store, mem_bytes=12 * GIB, priority=Priority.URGENT)
    running(queue, store, mem_bytes=12 * GIB)
    normal = submit(queue, mem_bytes=20 * GIB)
    assert {normal: {"GPU-0"}} == reserved(queue)
    urgent(queue, mem_bytes=20 * GIB)

    assert {} == preempt(queue)

    assert {normal: {"GPU-0"}} == reserved(queue)


def reservation(store: redis.Redis, uuid: str = "GPU-0") -> list[str]:
    """Return the reservation of a device: job, bytes, start, and the runs in its way."""
    return str(store.hget(keys.RESERVED, uuid) or "").split(":")


def end_by(queue: JobQueue, store: redis.Redis, run: Claim, in_s: float) -> None:
    """Set the end of a run's time limit, in seconds from now. A negative value lies in the past."""
    ends = queue.now_ms() + round(in_s * 1000)
    for uuid in run.devices:
        lease = str(store.hget(keys.device_leases(uuid), str(run.job_id))).split(":")
        store.hset(keys.device_leases(uuid), str(run.job_id), ":".join([*lease[:2], str(ends)]))


def test_room_is_reserved_also_behind_a_run_that_outlasted_a_reservation(queue: JobQueue, store: redis.Redis) -> None:
    """Memory is reserved behind a preempted run even if the queue had given up waiting for that run."""
    # Regression: the reservation was dropped in the same tick in which the run was preempted.
    serve(queue)
    run = running(queue, store, mem_bytes=20 * GIB)
    store.hset(keys.job(run.job_id), stored.IN_VAIN_MS, str(store.hget(keys.job(run.job_id), stored.CLAIMED_MS)))
    job_id = urgent(queue, mem_bytes=22 * GIB)
    assert {run.job_id: job_id} == preempt(queue)

    queue.maintenance.reserve(after_s=0, most=1)

    assert str(job_id) == reservation(store)[0]


@pytest.mark.parametrize("most", [0, 1])
def test_a_reservation_for_freed_memory_stays_on_its_card(queue: JobQueue, store: redis.Redis, most: int) -> None:
    # Regression: it moved to another card that was free a little sooner, and was no longer the memory that had been
    # freed.
    serve(queue, make_offer("GPU-0"), make_offer("GPU-1"))
    run = running(queue, store, mem_bytes=20 * GIB)
    other = running(queue, store, uuid="GPU-1", mem_bytes=20 * GIB, priority=Priority.NORMAL)
    end_by(queue, store, other, 40)
    job_id = urgent(queue, mem_bytes=20 * GIB)
    low = {Priority.URGENT: (Priority.LOW,)}
    assert {run.job_id: job_id} == queue.maintenance.preempt(low, after_s=600, grace_s=60)

    for _ in range(2):
        queue.maintenance.reserve(after_s=0, most=most)

    assert str(job_id) == reservation(store)[0]


def test_a_run_that_does_not_end_at_its_limit_is_no_room_soon(queue: JobQueue, store: redis.Redis) -> None:
    """A run that outlives its time limit (it hangs in the kernel) does not count as about to end."""
    # Regression: as long as it hung, other jobs seemed about to start.
    serve(queue, make_offer("GPU-0"), make_offer("GPU-1"))
    hung = running(queue, store, mem_bytes=20 * GIB, priority=Priority.URGENT)
    run = running(queue, store, uuid="GPU-1", mem_bytes=20 * GIB)
    job_id = urgent(queue, mem_bytes=20 * GIB)
    end_by(queue, store, hung, -5)
    assert {} == preempt(queue), "it is about to go"
    assert [] == queue.maintenance.reserve(after_s=0, most=1)

    end_by(queue, store, hung, -120)

    assert [job_id] == [each.job_id for each in queue.maintenance.reserve(after_s=0, most=1)]
    assert {run.job_id: job_id} == preempt(queue)


@pytest.mark.parametrize("cancelled", [False, True])
def test_an_overdue_preempted_run_is_not_waited_for(queue: JobQueue, store: redis.Redis, *, cancelled: bool) -> None:
    """Another run is preempted if a preempted run hangs beyond its grace time, even if the hung job is cancelled."""
    # Regression: no other run was preempted, because a preemption was under way.
    serve(queue, make_offer("GPU-0"), make_offer("GPU-1"))
    hung = running(queue, store, mem_bytes=20 * GIB)
    run = running(queue, store, uuid="GPU-1", for_s=90_000, mem_bytes=20 * GIB)
    job_id = urgent(queue, mem_bytes=20 * GIB)
    assert {hung.job_id: job_id} == preempt(queue)
    assert {} == preempt(queue)

    end_by(queue, store, hung, -120)
    store.hset(keys.job(hung.job_id), stored.PREEMPT_UNTIL_MS, queue.now_ms() - 120_000)
    if cancelled:
        queue.jobs.cancel(hung.job_id)

    assert {run.job_id: job_id} == preempt(queue)
    assert {} == preempt(queue), "and it is asked once"


def test_the_reservation_moves_away_from_a_hung_run(queue: JobQueue, store: redis.Redis) -> None:
    """The reservation behind a hung run moves to a card whose run has a time limit."""
    # Regression: the end of the hung run is unknown, and small jobs passed the waiting job on the other card.
    serve(queue, make_offer("GPU-0"), make_offer("GPU-1"))
    hung = running(queue, store, mem_bytes=20 * GIB)
    other = running(queue, store, uuid="GPU-1", mem_bytes=20 * GIB, priority=Priority.URGENT)
    job_id = urgent(queue, mem_bytes=20 * GIB)
    assert {hung.job_id: job_id} == preempt(queue)
    end_by(queue, store, hung, -120)
    end_by(queue, store, other, 2400)

    queue.maintenance.reserve(after_s=0, most=1)

    assert [str(job_id), [""]] == [reservation(store, "GPU-1")[0], reservation(store)]


def test_memory_beside_an_exclusive_run_is_no_room(queue: JobQueue, store: redis.Redis) -> None:
    """Memory that external processes free beside an exclusive run is not usable by other jobs."""
    # Regression: it looked like free memory, so no run was preempted.
    serve(queue, make_offer(external_bytes=4 * GIB))
    alone = running(queue, store, mem_bytes=GIB, placement=Placement(exclusive=True))
    store.hset(keys.device_leases("GPU-0"), str(alone.job_id), f"{20 * GIB}:0:0:x")  # claimed beside external processes
    job_id = urgent(queue, mem_bytes=2 * GIB)
    assert claim(queue) is None

    assert {alone.job_id: job_id} == preempt(queue)


def test_jobs_that_no_card_can_take_do_not_use_up_the_sizes_that_one_tick_tries(
    queue: JobQueue, store: redis.Redis
) -> None:
    # Regression: the sizes of one user's jobs for a drained pool filled the whole quota.
    serve(queue, make_offer("GPU-0"), make_offer("GPU-9", pool="drained"))
    run = running(queue, store, mem_bytes=20 * GIB, account=BOB)
    queue.devices.drain(["GPU-9"], origin=DrainOrigin.PERSON, why="", by="ada")
    for number in range(1, 71):
        urgent(queue, account=ADA, pool="drained", mem_bytes=number * 64 * MIB)
    job_id = urgent(queue, mem_bytes=20 * GIB)

    assert [job_id] == [each.job_id for each in queue.maintenance.reserve(after_s=0, most=1)]
    assert {run.job_id: job_id} == preempt(queue)


def test_an_array_member_that_was_promoted_by_aging_preempts_no_run(queue: JobQueue, store: redis.Redis) -> None:
    # Regression: once the member of a promoted array had run and waited again, it counted as submitted with that
    # priority.
    serve(queue)
    array = submit(queue, array=Array.parse("0-1"), mem_bytes=20 * GIB)
    assert 1 == queue.maintenance.promote(after_s=0)
    member = must_claim(queue)
    queue.runs.release_claim(member.job_id, member.token, "its host has no room")
    queue.jobs.hold(member.job_id)
    queue.jobs.hold(array)
    running(queue, store, mem_bytes=20 * GIB)

    queue.jobs.release(member.job_id)

    assert {} == preempt(queue)
