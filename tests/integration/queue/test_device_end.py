"""The end of a device: what it takes before, what the rest of the queue knows of it, and what its host does then."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest
import redis
from factories import BOB, claim, end, make_offer, must_claim, serve, start, submit, submit_and_claim

from gpuqueue.clock import from_epoch_ms
from gpuqueue.model.job import JobState, WaitReason
from gpuqueue.model.job_spec import Priority
from gpuqueue.model.placement import Placement, Preference
from gpuqueue.model.run import Ending, EndingKind
from gpuqueue.queue import job_fields as stored
from gpuqueue.queue import keys
from gpuqueue.queue.drains import BY_HOST, BY_PEOPLE, DrainOrigin
from gpuqueue.queue.explanation import Obstacle
from gpuqueue.queue.jobqueue import JobQueue
from gpuqueue.queue.lease import Again, Alive, Claim
from gpuqueue.text.units import GIB

PERSON = DrainOrigin.PERSON


def end_in(queue: JobQueue, seconds: float, *uuids: str, origin: DrainOrigin = PERSON, why: str = "") -> datetime:
    """Give devices an end on the store's clock, and return it."""
    at = from_epoch_ms(queue.now_ms()) + timedelta(seconds=seconds)
    queue.devices.drain(uuids or ("GPU-0",), origin=origin, why=why, by="ada", begins_at=at)
    return at


def obstacle(queue: JobQueue, job_id: int, uuid: str = "GPU-0") -> Obstacle:
    """Return what keeps a job from a device."""
    explanation = queue.jobs.why(job_id)
    assert explanation is not None
    return next(each.obstacle for each in explanation.devices if each.device == uuid)


def reason(queue: JobQueue, job_id: int) -> WaitReason | None:
    """Return the wait reason of a job in the list of all jobs."""
    return next(job.reason for job in queue.jobs.live() if job.id == job_id)


# ---- what a device takes before its end --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("limit_s", "expected_s", "requeue", "is_taken"),
    [
        (600.0, None, True, True),
        (3600.0, None, True, False),
        (3600.0, 60.0, True, False),  # the limit counts, also where runs were shorter
        (600.0, 7200.0, True, True),
        (None, 600.0, False, True),
        (None, 3600.0, True, False),
        (None, None, True, True),
        (None, None, False, False),
    ],
)
def test_a_device_with_an_end_takes_only_jobs_that_are_over_by_then(
    queue: JobQueue, *, limit_s: float | None, expected_s: float | None, requeue: bool, is_taken: bool
) -> None:
    """The time limit counts, else the expected duration. Of unknown duration only a job that may run again is taken."""
    serve(queue)
    end_in(queue, 1800)

    job_id = submit(queue, time_limit_s=limit_s, expected_duration_s=expected_s, requeue=requeue)

    assert (Obstacle.FITS if is_taken else Obstacle.END) is obstacle(queue, job_id)
    assert (WaitReason.MEMORY if is_taken else WaitReason.END) is reason(queue, job_id)
    assert is_taken == (claim(queue) is not None)


def test_a_short_job_passes_a_long_one_that_has_no_time_left(queue: JobQueue) -> None:
    serve(queue)
    end_in(queue, 1800)
    long = submit(queue, time_limit_s=3600.0)
    short = submit(queue, time_limit_s=600.0)

    assert short == must_claim(queue).job_id
    queue.devices.resume(["GPU-0"], origins=BY_PEOPLE)
    assert long == must_claim(queue).job_id


def test_many_shapes_without_time_do_not_hide_the_first_that_has(queue: JobQueue) -> None:
    """A claim notes where its search stopped. With another end the note counts no more."""
    serve(queue)
    end_in(queue, 1800)
    for number in range(12):
        submit(queue, mem_bytes=GIB + number * 2**20, time_limit_s=7200.0)
    short = submit(queue, mem_bytes=3 * GIB, time_limit_s=600.0)

    assert short == must_claim(queue).job_id
    assert claim(queue) is None
    end_in(queue, 3 * 7200)
    assert 1 == must_claim(queue).job_id


def test_at_its_end_a_device_is_drained(queue: JobQueue) -> None:
    """Nothing new starts there, and its run goes on."""
    serve(queue)
    run = submit_and_claim(queue)
    at = end_in(queue, -1, why="new fans")
    job_id = submit(queue)

    (device,) = queue.devices.all()
    assert ("new fans", at, None) == (device.drained, device.drains[0].begins_at, device.ends_at)
    assert Obstacle.DRAINED is obstacle(queue, job_id)
    assert claim(queue) is None
    assert start(queue, run) is JobState.RUNNING


def test_the_status_of_a_device_has_its_end_and_no_drain(queue: JobQueue) -> None:
    serve(queue)
    later = end_in(queue, 7200, origin=DrainOrigin.UNTIL)
    sooner = end_in(queue, 3600)

    (device,) = queue.devices.all()
    assert ((), sooner) == (device.drains, device.ends_at)
    assert [PERSON, DrainOrigin.UNTIL] == [each.origin for each in device.planned_drains]
    queue.devices.resume(["GPU-0"], origins=BY_PEOPLE)
    assert later == queue.devices.all()[0].ends_at
    queue.devices.resume(["GPU-0"], origins=BY_HOST)
    assert queue.devices.all()[0].ends_at is None


def test_a_drain_that_holds_is_not_put_off(queue: JobQueue) -> None:
    serve(queue)
    queue.devices.drain(["GPU-0"], origin=PERSON, why="the fan", by="ada")

    end_in(queue, 3600)

    (device,) = queue.devices.all()
    assert ("the fan", None) == (device.drained, device.ends_at)
    queue.devices.drain(["GPU-0"], origin=PERSON, why="still", by="ada")
    assert "still" == queue.devices.all()[0].drained


def test_a_planned_drain_is_moved_and_then_made_at_once(queue: JobQueue) -> None:
    serve(queue)
    end_in(queue, 3600)
    at = end_in(queue, 7200)
    assert at == queue.devices.all()[0].ends_at

    queue.devices.drain(["GPU-0"], origin=PERSON, why="now", by="ada")

    assert ("now", None) == (queue.devices.all()[0].drained, queue.devices.all()[0].ends_at)


# ---- several devices, other devices ------------------------------------------------------------------------------


def test_a_job_on_several_devices_needs_the_time_on_each(queue: JobQueue) -> None:
    serve(queue, make_offer("GPU-0"), make_offer("GPU-1"), make_offer("GPU-2"))
    end_in(queue, 1800, "GPU-1")
    three = submit(queue, gpus=3, time_limit_s=3600.0)
    two = submit(queue, gpus=2, time_limit_s=3600.0)

    assert (Obstacle.ALONE, Obstacle.END) == (obstacle(queue, three), obstacle(queue, three, "GPU-1"))
    assert WaitReason.END is reason(queue, three)
    claimed = must_claim(queue, "GPU-0")
    assert (two, {"GPU-0", "GPU-2"}) == (claimed.job_id, {*claimed.devices})
    assert claim(queue, "GPU-2") is None


def test_no_job_is_left_to_a_better_device_that_ends_too_soon(queue: JobQueue) -> None:
    queue.rules.set_policy(half_life_s=86400, urgent=None, shares={}, placement=Preference.SPREAD)
    serve(queue, make_offer("GPU-0"), make_offer("GPU-1"))
    submit_and_claim(queue, "GPU-0", mem_bytes=12 * GIB, placement=Placement(devices=("GPU-0",)))
    end_in(queue, 600, "GPU-1")

    job_id = submit(queue, time_limit_s=3600.0)

    assert job_id == must_claim(queue, "GPU-0").job_id


# ---- reservations, forecasts, preemption -------------------------------------------------------------------------


def reserve(queue: JobQueue) -> dict[int, tuple[str, ...]]:
    """Run the reservation tick for all waiting jobs and return the reserved devices of each job."""
    return {each.job_id: each.devices for each in queue.maintenance.reserve(after_s=0, most=1)}


def test_no_device_is_reserved_beyond_its_end(queue: JobQueue) -> None:
    """The run there probably ends in ten minutes, and the job takes an hour: both must be over before the end."""
    serve(queue)
    submit_and_claim(queue, mem_bytes=20 * GIB, time_limit_s=1800.0)
    large = submit(queue, mem_bytes=20 * GIB, time_limit_s=3600.0)
    end_in(queue, 4000)
    assert {} == reserve(queue)

    end_in(queue, 2 * 3600)

    assert {large: ("GPU-0",)} == reserve(queue)
    end_in(queue, 4000)
    assert {} == reserve(queue)


def test_no_room_is_promised_on_a_device_after_its_end(queue: JobQueue) -> None:
    serve(queue, make_offer("GPU-0"), make_offer("GPU-1"))
    for uuid, limit_s in (("GPU-0", 1800.0), ("GPU-1", 7200.0)):
        named = Placement(devices=(uuid,))
        submit_and_claim(queue, uuid, mem_bytes=20 * GIB, time_limit_s=limit_s, placement=named)
    waits = submit(queue, mem_bytes=20 * GIB, time_limit_s=3600.0)

    def room() -> tuple[str, ...]:
        found = queue.jobs.why(waits)
        return found.start.devices if found is not None and found.start is not None else ()

    assert ("GPU-0",) == room()
    end_in(queue, 5000, "GPU-0")
    assert Obstacle.MEMORY is obstacle(queue, waits)
    assert ("GPU-1",) == room()
    end_in(queue, 5000, "GPU-1")
    assert () == room()


def test_no_run_is_preempted_for_a_job_that_has_no_time_left_there(queue: JobQueue, store: redis.Redis) -> None:
    serve(queue)
    low = submit_and_claim(queue, mem_bytes=20 * GIB, priority=Priority.LOW)
    start(queue, low)
    store.hset(keys.job(low.job_id), stored.STARTED_MS, queue.now_ms() - 3600_000)
    high = submit(queue, mem_bytes=20 * GIB, priority=Priority.URGENT, account=BOB, time_limit_s=3600.0)
    may = {Priority.URGENT: (Priority.LOW,)}
    end_in(queue, 3620)  # enough for the job, and not for the grace of the run before it

    assert {} == queue.maintenance.preempt(may, after_s=600.0, grace_s=60.0)
    end_in(queue, 2 * 3600)
    assert {low.job_id: high} == queue.maintenance.preempt(may, after_s=600.0, grace_s=60.0)


# ---- the end of a host -------------------------------------------------------------------------------------------


def preempted(queue: JobQueue, run: Claim) -> float | None:
    """Return how many seconds a run has left by the next heartbeat; None if it is not preempted."""
    alive = Alive(job_id=run.job_id, token=run.token, observed=dict.fromkeys(run.devices, 0))
    asked = queue.devices.heartbeat(make_offer(run.devices[0]), [alive], lease_s=300).preemptions.get(run.token)
    assert asked is None or asked.by == 0
    return None if asked is None else asked.left_s


def test_at_the_end_of_a_host_all_its_runs_are_preempted_once(queue: JobQueue, store: redis.Redis) -> None:
    """A run that has not started yet is preempted by a later call. Nothing happens on other devices."""
    serve(queue, make_offer("GPU-0"), make_offer("GPU-1"))
    runs, starting = [submit_and_claim(queue) for _ in range(2)], submit_and_claim(queue)
    other = submit_and_claim(queue, "GPU-1")
    for run in (*runs, other):
        start(queue, run)
    active = {**{run.job_id: JobState.RUNNING for run in runs}, starting.job_id: JobState.STARTING}

    assert active == queue.devices.preempt(["GPU-0"], grace_s=60.0)
    assert [True, True, False, False] == [preempted(queue, run) is not None for run in (*runs, starting, other)]
    start(queue, starting)
    queue.devices.preempt(["GPU-0"], grace_s=30.0)

    left = [preempted(queue, run) for run in (*runs, starting)]
    assert [60, 60, 30] == [each and round(each, -1) for each in left]
    assert ["1", "1", "1"] == [store.hget(keys.job(run.job_id), stored.PREEMPTIONS) for run in (*runs, starting)]


@pytest.mark.parametrize(("requeue", "after"), [(True, JobState.QUEUED), (False, JobState.FAILED)])
def test_a_job_that_must_not_run_twice_ends_with_its_host(queue: JobQueue, *, requeue: bool, after: JobState) -> None:
    serve(queue)
    run = submit_and_claim(queue, requeue=requeue)
    start(queue, run)
    queue.devices.preempt(["GPU-0"], grace_s=60.0)
    assert queue.jobs.why(run.job_id).preemption.by is None  # type: ignore[union-attr]

    ending, again = Ending.stopped(EndingKind.PREEMPTED, -15, "its time"), Again(reason=WaitReason.RETRY)
    assert after is end(queue, run, state=JobState.QUEUED, ending=ending, again=again)
    if requeue:
        job = queue.jobs.get(run.job_id)
        assert job is not None
        assert (0, 0) == (job.losses, job.retries)


def test_the_end_of_a_host_goes_with_its_device(queue: JobQueue) -> None:
    """A host that comes back without an end has none, and the plans of people stay."""
    serve(queue)
    end_in(queue, 3600, origin=DrainOrigin.UNTIL)
    at = end_in(queue, 7200)

    queue.devices.withdraw("nodeA", "GPU-0")
    serve(queue)

    assert at == queue.devices.all()[0].ends_at
