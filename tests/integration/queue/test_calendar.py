"""Calendar reservations: whose jobs a device takes before, at and after them, and what the rest of the queue knows."""

from __future__ import annotations

import json
from datetime import datetime, timedelta

import pytest
import redis
from factories import ADA, BOB, claim, make_offer, must_claim, serve, start, submit, submit_and_claim

from gpuqueue.clock import from_epoch_ms
from gpuqueue.errors import BadRequest, Refused
from gpuqueue.model.calendar import CalendarReservation, together
from gpuqueue.model.job import WaitReason
from gpuqueue.model.job_spec import Account, Priority
from gpuqueue.model.placement import Placement
from gpuqueue.queue import keys
from gpuqueue.queue.drains import BY_PEOPLE, DrainOrigin
from gpuqueue.queue.explanation import Obstacle
from gpuqueue.queue.jobqueue import JobQueue
from gpuqueue.queue.lease import Alive, Claim
from gpuqueue.text.units import GIB

HOUR = 3600.0
EVE = Account(name="eve", uid=1003, host="laptop")


def reserve(
    queue: JobQueue,
    begins_s: float,
    ends_s: float,
    *uuids: str,
    users: tuple[str, ...] = ("bob",),
    by: str = "root",
    most_s: float | None = None,
) -> int:
    """Reserve devices for users, on the store's clock, and return the id."""
    now = from_epoch_ms(queue.now_ms())
    wanted = CalendarReservation(
        id=0,
        users=users,
        begins_at=now + timedelta(seconds=begins_s),
        ends_at=now + timedelta(seconds=ends_s),
        why="course",
        by=by,
        devices=uuids or ("GPU-0",),
    )
    return queue.devices.reserve(wanted, grace_s=60, most_s=most_s)


def passes(store: redis.Redis, seconds: float) -> None:
    """Let the calendar of all devices be as it is in *seconds*."""
    for device, text in store.hgetall(keys.DRAINED).items():
        drains = json.loads(text)
        for entry in drains["calendar"]:
            entry.update({name: str(int(entry[name]) - int(1000 * seconds)) for name in ("from", "until")})
        store.hset(keys.DRAINED, device, json.dumps(drains))


def obstacle(queue: JobQueue, job_id: int, uuid: str = "GPU-0") -> Obstacle:
    """Return what keeps a job from a device."""
    explanation = queue.jobs.why(job_id)
    assert explanation is not None
    return next(verdict.obstacle for verdict in explanation.devices if verdict.device == uuid)


def reason(queue: JobQueue, job_id: int) -> WaitReason | None:
    """Return the wait reason of a job in the list of all jobs."""
    return next(job.reason for job in queue.jobs.live() if job.id == job_id)


# ---- who starts there ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("account", "limit_s", "requeue", "is_taken"),
    [
        (ADA, 600.0, False, True),
        (ADA, HOUR, True, False),
        (ADA, None, True, True),
        (ADA, None, False, False),
        (BOB, HOUR, False, True),
        (BOB, None, False, True),
    ],
)
def test_before_its_start_a_reservation_is_an_end_for_the_jobs_of_others(
    queue: JobQueue, *, account: Account, limit_s: float | None, requeue: bool, is_taken: bool
) -> None:
    """It is none for its users: their jobs may go on into it."""
    serve(queue)
    reserve(queue, 1800, 2 * HOUR)

    job_id = submit(queue, account=account, time_limit_s=limit_s, requeue=requeue)

    assert (Obstacle.FITS if is_taken else Obstacle.END) is obstacle(queue, job_id)
    assert (WaitReason.MEMORY if is_taken else WaitReason.END) is reason(queue, job_id)
    assert is_taken == (claim(queue) is not None)


def test_from_start_to_end_only_jobs_of_its_users_start_there(queue: JobQueue, store: redis.Redis) -> None:
    """After the end everything is as before, without any process that undoes it."""
    serve(queue)
    reserve(queue, -1, HOUR, users=("bob", "eve"))
    of_ada = submit(queue, account=ADA, priority=Priority.URGENT, time_limit_s=1.0)
    of_bob, of_eve = (submit(queue, account=account, mem_bytes=8 * GIB) for account in (BOB, EVE))

    assert Obstacle.CALENDAR is obstacle(queue, of_ada)
    assert WaitReason.CALENDAR is reason(queue, of_ada)
    assert {of_bob, of_eve} == {must_claim(queue).job_id, must_claim(queue).job_id}
    assert claim(queue) is None

    passes(store, HOUR)

    assert Obstacle.FITS is obstacle(queue, of_ada)
    assert of_ada == must_claim(queue).job_id
    assert () == queue.devices.all()[0].calendar


def test_many_shapes_of_others_do_not_hide_a_job_of_a_user(queue: JobQueue) -> None:
    """The user waits behind others, and with many shapes, of which only one is small enough."""
    serve(queue)
    submit_and_claim(queue, mem_bytes=12 * GIB)
    reserve(queue, -1, HOUR)
    for number in range(20):
        submit(queue, account=ADA, mem_bytes=GIB + number * 2**20)
        submit(queue, account=BOB, mem_bytes=20 * GIB + number * 2**20)
    wanted = submit(queue, account=BOB, mem_bytes=2 * GIB)

    assert wanted == must_claim(queue).job_id


def test_a_drain_holds_for_the_users_of_a_reservation_too(queue: JobQueue) -> None:
    serve(queue)
    reserve(queue, -1, HOUR)
    queue.devices.drain(["GPU-0"], origin=DrainOrigin.PERSON, why="the fan", by="ann")
    job_id = submit(queue, account=BOB)

    assert claim(queue) is None
    queue.devices.resume(["GPU-0"], origins=BY_PEOPLE)
    assert job_id == must_claim(queue).job_id, "the reservation is still there"
    assert ("bob",) == queue.devices.all()[0].calendar[0].users


def test_a_job_on_several_devices_needs_each_to_be_free_for_its_user(queue: JobQueue) -> None:
    serve(queue, make_offer("GPU-0"), make_offer("GPU-1"), make_offer("GPU-2"))
    reserve(queue, -1, HOUR, "GPU-0", "GPU-1")
    of_ada = submit(queue, account=ADA, gpus=2)
    of_bob = submit(queue, account=BOB, gpus=3)

    assert claim(queue, "GPU-2") is None, "a device that is not reserved leaves it to one that is"
    claimed = must_claim(queue, "GPU-1")
    assert (of_bob, 3) == (claimed.job_id, len(claimed.devices))
    assert Obstacle.ALONE is obstacle(queue, of_ada, "GPU-2")


def test_a_job_is_not_left_to_a_better_device_that_is_reserved_for_others(queue: JobQueue) -> None:
    serve(queue, make_offer("GPU-0"), make_offer("GPU-1"))
    submit_and_claim(queue, "GPU-0", mem_bytes=12 * GIB, placement=Placement(devices=("GPU-0",)))
    reserve(queue, 60, HOUR, "GPU-1")

    job_id = submit(queue, account=ADA, time_limit_s=HOUR)

    assert job_id == must_claim(queue, "GPU-0").job_id


# ---- what runs at the start ----------------------------------------------------------------------------------------


def left_s(queue: JobQueue, run: Claim) -> float | None:
    """Return how many seconds a run has left by the next heartbeat; None if it is not preempted."""
    alive = Alive(job_id=run.job_id, token=run.token, observed=dict.fromkeys(run.devices, 0))
    verdicts = queue.devices.heartbeat(make_offer(run.devices[0]), [alive], lease_s=300)
    request = verdicts.preemptions.get(run.token)
    return None if request is None else request.left_s


def test_at_its_start_runs_of_others_are_preempted_if_they_may_run_again(queue: JobQueue, store: redis.Redis) -> None:
    serve(queue)
    of_ada, once, of_bob = (
        submit_and_claim(queue, account=account, requeue=requeue, time_limit_s=None)
        for account, requeue in ((ADA, True), (ADA, False), (BOB, True))
    )
    for run in (of_ada, once, of_bob):
        start(queue, run)
    reserve(queue, 600, HOUR)
    assert [None] * 3 == [left_s(queue, run) for run in (of_ada, once, of_bob)]

    passes(store, 600)

    assert left_s(queue, of_ada) == pytest.approx(60, abs=10)
    assert [None, None] == [left_s(queue, run) for run in (once, of_bob)]


def test_a_run_on_several_devices_is_preempted_for_the_second_too(queue: JobQueue) -> None:
    """The worker of the second device finds it, and the worker that has the run learns of it."""
    serve(queue, make_offer("GPU-0"), make_offer("GPU-1"))
    run = submit_and_claim(queue, "GPU-0", gpus=2)
    start(queue, run)
    reserve(queue, -1, HOUR, run.devices[1])

    queue.devices.heartbeat(make_offer(run.devices[1]), [], lease_s=300)

    assert left_s(queue, run) is not None


def test_a_heartbeat_forgets_what_is_over(queue: JobQueue, store: redis.Redis) -> None:
    """So a claim reads nothing more once the last reservation of the site is over."""
    serve(queue)
    reserve(queue, 0, HOUR)
    passes(store, HOUR)

    queue.devices.heartbeat(make_offer(), [], lease_s=300)

    assert 0 == store.exists(keys.DRAINED)


# ---- the queue's own reservations, forecasts, preemption -----------------------------------------------------------


def test_no_device_is_reserved_for_a_job_whose_user_has_no_time_there(queue: JobQueue) -> None:
    serve(queue)
    submit_and_claim(queue, mem_bytes=20 * GIB, time_limit_s=1800.0)
    of_ada = submit(queue, account=ADA, mem_bytes=20 * GIB, time_limit_s=HOUR)
    of_bob = submit(queue, account=BOB, mem_bytes=20 * GIB, time_limit_s=HOUR)
    reserve(queue, 4000, 3 * HOUR)

    made = queue.maintenance.reserve(after_s=0, most=1)

    assert [of_bob] == [entry.job_id for entry in made]
    for job_id, devices in ((of_ada, ()), (of_bob, ("GPU-0",))):
        why = queue.jobs.why(job_id)
        assert why is not None
        assert devices == (() if why.start is None else why.start.devices)


def test_a_reservation_that_begins_takes_the_device_from_a_job_that_waited_for_it(
    queue: JobQueue, store: redis.Redis
) -> None:
    serve(queue)
    submit_and_claim(queue, mem_bytes=8 * GIB, time_limit_s=60.0)
    of_ada = submit(queue, account=ADA, mem_bytes=20 * GIB, time_limit_s=60.0)
    of_bob = submit(queue, account=BOB, mem_bytes=4 * GIB)
    reserve(queue, 2 * HOUR, 3 * HOUR)
    assert [of_ada] == [entry.job_id for entry in queue.maintenance.reserve(after_s=0, most=1)]

    passes(store, 2 * HOUR)

    assert [] == [*queue.maintenance.reserve(after_s=0, most=1)]
    assert of_bob == must_claim(queue).job_id


def test_no_run_is_preempted_for_a_job_where_its_user_may_not_start(queue: JobQueue, store: redis.Redis) -> None:
    serve(queue)
    low = submit_and_claim(queue, account=BOB, mem_bytes=20 * GIB, priority=Priority.LOW)
    start(queue, low)
    reserve(queue, -1, HOUR)
    submit(queue, account=ADA, mem_bytes=20 * GIB, priority=Priority.URGENT)
    may = {Priority.URGENT: (Priority.LOW,)}

    assert {} == queue.maintenance.preempt(may, after_s=0, grace_s=60.0)

    passes(store, HOUR)
    assert {low.job_id} == {*queue.maintenance.preempt(may, after_s=0, grace_s=60.0)}


# ---- making, listing, cancelling -----------------------------------------------------------------------------------


def test_a_reservation_of_several_devices_is_one(queue: JobQueue) -> None:
    serve(queue, make_offer("GPU-0"), make_offer("GPU-1"))
    late = reserve(queue, HOUR, 2 * HOUR, "GPU-0", "GPU-1")
    early = reserve(queue, 0, HOUR - 60, "GPU-1", users=("ada",))

    calendar = together(entry for status in queue.devices.all() for entry in status.calendar)

    assert [(early, ("GPU-1",)), (late, ("GPU-0", "GPU-1"))] == [(entry.id, entry.devices) for entry in calendar]
    assert ("course", "root", ("ada",)) == (calendar[0].why, calendar[0].by, calendar[0].users)
    assert queue.devices.cancel_reservation(late, user=None)
    assert not queue.devices.cancel_reservation(late, user=None)
    assert [early] == [entry.id for status in queue.devices.all() for entry in status.calendar]


@pytest.mark.parametrize(("begins_s", "ends_s", "is_refused"), [(0, 3600, False), (7200, 9000, False), (0, 3601, True)])
def test_reservations_of_a_device_do_not_overlap(
    queue: JobQueue, *, begins_s: float, ends_s: float, is_refused: bool
) -> None:
    """All devices are reserved, or none."""
    serve(queue, make_offer("GPU-0"), make_offer("GPU-1"))
    now = datetime.now().astimezone() + timedelta(minutes=1)

    def reserve_at(begins: float, ends: float, *uuids: str) -> int:
        span = {"begins_at": now + timedelta(seconds=begins), "ends_at": now + timedelta(seconds=ends)}
        return queue.devices.reserve(
            CalendarReservation(id=0, users=("bob",), by="root", devices=uuids, **span), grace_s=1
        )

    first = reserve_at(3600, 7200, "GPU-1")
    if is_refused:
        with pytest.raises(Refused, match=f"nodeA:0 is reserved then, by reservation {first}"):
            reserve_at(begins_s, ends_s, "GPU-0", "GPU-1")
    else:
        reserve_at(begins_s, ends_s, "GPU-0", "GPU-1")
    assert (0 if is_refused else 1) == len(queue.devices.all()[0].calendar)


def test_an_account_reserves_no_more_device_hours_than_it_may(queue: JobQueue) -> None:
    """What is over, and what others reserved for it, does not count."""
    serve(queue, make_offer("GPU-0"), make_offer("GPU-1"))
    reserve(queue, 0, 5 * HOUR, "GPU-0", by="root")
    reserve(queue, -HOUR, HOUR, "GPU-1", by="bob", most_s=4 * HOUR)

    with pytest.raises(Refused, match=r"you have 1 device-hours reserved, and may have 4 at a time"):
        reserve(queue, 6 * HOUR, 8 * HOUR, "GPU-0", "GPU-1", by="bob", most_s=4 * HOUR)
    reserve(queue, 6 * HOUR, 7 * HOUR, "GPU-0", "GPU-1", by="bob", most_s=4 * HOUR)


def test_only_its_maker_or_its_one_user_cancels_a_reservation(queue: JobQueue) -> None:
    serve(queue)
    of_bob = reserve(queue, 0, HOUR)
    of_two = reserve(queue, HOUR, 2 * HOUR, users=("ada", "bob"))

    for reservation, user in ((of_bob, "ada"), (of_two, "bob")):
        with pytest.raises(Refused, match=f"reservation {reservation} is not yours"):
            queue.devices.cancel_reservation(reservation, user=user)
    assert queue.devices.cancel_reservation(of_bob, user="bob")
    assert queue.devices.cancel_reservation(of_two, user="root")


@pytest.mark.parametrize(("begins_s", "ends_s"), [(-20, -10), (20, 10)])
def test_a_reservation_that_ends_before_it_holds_is_refused(queue: JobQueue, begins_s: float, ends_s: float) -> None:
    serve(queue)

    with pytest.raises(BadRequest, match="give a later --until"):
        reserve(queue, begins_s, ends_s)


def test_a_device_has_at_most_fifty_reservations(queue: JobQueue) -> None:
    serve(queue)
    for number in range(50):
        reserve(queue, number * HOUR, (number + 1) * HOUR)

    with pytest.raises(Refused, match="nodeA:0 is reserved too often"):
        reserve(queue, 90 * HOUR, 91 * HOUR)


@pytest.mark.parametrize(
    "entry", ['{"users": 3}', "7", '{"users": "bob", "from": "x", "until": "9999999999999"}', "[]"]
)
def test_a_damaged_reservation_stops_nobody(queue: JobQueue, store: redis.Redis, entry: str) -> None:
    serve(queue)
    store.hset(keys.DRAINED, "GPU-0", f'{{"calendar": [{entry}]}}')
    job_id = submit(queue)

    assert Obstacle.FITS is obstacle(queue, job_id)
    assert job_id == must_claim(queue).job_id
    assert () == queue.devices.all()[0].calendar
