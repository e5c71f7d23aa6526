"""Reservations prevent starvation: a device is reserved for a large job that small jobs would pass for ever."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timezone
from typing import Any

import pytest
import redis
from factories import BOB, claim, end, make_offer, make_spec, must_claim, serve, submit, submit_and_claim
from store_dump import dump, faults

from gpuqueue.model.dependencies import Waits
from gpuqueue.model.job import WaitReason
from gpuqueue.model.job_spec import Priority
from gpuqueue.model.placement import Placement
from gpuqueue.model.retries import Retries
from gpuqueue.queue import job_fields as stored
from gpuqueue.queue import keys
from gpuqueue.queue.connect import connect
from gpuqueue.queue.drains import DrainOrigin
from gpuqueue.queue.explanation import Obstacle
from gpuqueue.queue.jobqueue import JobQueue
from gpuqueue.queue.lease import Claim
from gpuqueue.text.units import GIB, MIB


def token_of(queue: JobQueue, job_id: int) -> str:
    """Return the token of a job's run."""
    client = connect(queue.url)
    token = client.hget(keys.job(job_id), stored.TOKEN)
    client.close()
    return str(token)


def reserve(queue: JobQueue, *, most: int = 1) -> dict[int, tuple[str, ...]]:
    """Run the reservation tick for all waiting jobs and return the reserved devices of each job."""
    return {each.job_id: each.devices for each in queue.maintenance.reserve(after_s=0, most=most, budget=0.1)}


def small(queue: JobQueue, **changes: object) -> int:
    """Queue a job of 4 GiB without a time limit."""
    return submit(queue, mem_bytes=4 * GIB, **changes)


@pytest.mark.promise("P7")
def test_a_large_job_in_a_stream_of_small_ones_gets_its_turn(queue: JobQueue) -> None:
    # Without a reservation, another small job replaces each one that ends, and the large job waits for ever.
    serve(queue)
    for _ in range(6):
        small(queue)
    running = [must_claim(queue) for _ in range(6)]
    large = submit(queue, mem_bytes=23 * GIB)
    for _ in range(6):
        small(queue)

    assert {large: ("GPU-0",)} == reserve(queue)
    for run in running:
        assert claim(queue) is None
        end(queue, run)

    assert large == must_claim(queue).job_id


def test_a_job_that_waits_for_a_reservation_has_that_reason(queue: JobQueue) -> None:
    # The job with the reservation still has reason "memory".
    serve(queue)
    submit_and_claim(queue, mem_bytes=4 * GIB)
    large = submit(queue, mem_bytes=23 * GIB)
    passed = small(queue)

    def reasons() -> list[WaitReason | None]:
        return [job.reason for job in queue.jobs.live() if job.id in {large, passed}]

    assert [WaitReason.MEMORY, WaitReason.MEMORY] == reasons()
    reserve(queue)
    assert [WaitReason.MEMORY, WaitReason.RESERVATION] == reasons()


def test_who_would_have_no_room_anyway_waits_for_memory(queue: JobQueue) -> None:
    """A job that would not fit without the reservation either has reason "memory"."""
    serve(queue)
    submit_and_claim(queue, mem_bytes=4 * GIB)
    large = submit(queue, mem_bytes=23 * GIB)
    assert {large: ("GPU-0",)} == reserve(queue)

    asked = {20: WaitReason.RESERVATION, 21: WaitReason.MEMORY, 23: WaitReason.MEMORY}

    for gib, reason in asked.items():
        job = queue.jobs.get(submit(queue, mem_bytes=gib * GIB))
        assert reason is job.reason, f"{gib} GiB, and 20 are free"
    alone = queue.jobs.get(submit(queue, placement=Placement(exclusive=True)))
    assert WaitReason.MEMORY is alone.reason, "a run is there"


def test_a_job_that_waits_for_a_slot_has_that_reason(queue: JobQueue) -> None:
    """A job that waits for a slot has reason "slots", because the card has enough memory.

    A job for which the memory does not suffice has reason "memory".
    """
    full = make_offer("GPU-1", slots=2, pool="fast")
    serve(queue, make_offer("GPU-0"), full)
    for nonce in ("1" * 12, "2" * 12):
        queue.requests.submit(make_spec(mem_bytes=GIB, pool="fast"))
        assert queue.runs.claim(full, worker="worker-GPU-1", lease_s=300, nonce=nonce)

    def reason(**spec: Any) -> WaitReason | None:
        job = queue.jobs.get(submit(queue, **spec))
        return job.reason

    assert WaitReason.SLOTS is reason(mem_bytes=GIB, pool="fast")
    assert WaitReason.MEMORY is reason(mem_bytes=23 * GIB, pool="fast")
    assert WaitReason.MEMORY is reason(mem_bytes=GIB), "the other card has a slot"
    assert WaitReason.MEMORY is reason(placement=Placement(exclusive=True), pool="fast"), "it waits for the runs"


def test_without_a_reservation_it_is_passed_each_time(queue: JobQueue) -> None:
    # This is the control case of the tests above.
    serve(queue)
    running = submit_and_claim(queue, mem_bytes=4 * GIB)
    queue.requests.submit(make_spec(mem_bytes=23 * GIB))
    after = small(queue)
    end(queue, running)
    queue.jobs.hold(2)
    assert after == must_claim(queue).job_id


def test_others_start_beside_it_where_it_needs_nothing(queue: JobQueue) -> None:
    """Other jobs start beside a reservation where it needs no memory, with or without a time limit."""
    # Of 24 GiB, 21 are reserved once the current run has ended. The other 3 are free for all.
    serve(queue)
    submit_and_claim(queue, mem_bytes=4 * GIB)
    queue.requests.submit(make_spec(mem_bytes=21 * GIB))
    reserve(queue)
    beside = submit(queue, mem_bytes=3 * GIB)
    queue.requests.submit(make_spec(mem_bytes=1 * GIB))

    assert beside == must_claim(queue).job_id
    assert claim(queue) is None, "3 GiB are taken beside it: there is no fourth"


def test_others_start_before_it_where_they_end_in_time(queue: JobQueue) -> None:
    """EASY backfill: a job that ends before the reservation starts may run."""
    # The run in the way has a limit of one hour, so a job of ten minutes delays no job.
    serve(queue)
    submit_and_claim(queue, mem_bytes=10 * GIB, time_limit_s=3600.0)
    queue.requests.submit(make_spec(mem_bytes=23 * GIB))
    (reserved,) = queue.maintenance.reserve(after_s=0, most=1)
    queue.requests.submit(make_spec(mem_bytes=10 * GIB))
    queue.requests.submit(make_spec(mem_bytes=10 * GIB, time_limit_s=2 * 3600.0))
    short = submit(queue, mem_bytes=10 * GIB, time_limit_s=600.0)

    assert short == must_claim(queue).job_id
    assert claim(queue) is None
    assert reserved.start_ms is not None
    assert abs(reserved.start_ms - (queue.now_ms() + 3600_000)) < 60_000


def test_the_start_is_unknown_where_what_must_end_has_no_limit(queue: JobQueue) -> None:
    """The start is None behind a run without a time limit, and then no job is short enough to backfill."""
    serve(queue)
    submit_and_claim(queue, mem_bytes=10 * GIB)
    queue.requests.submit(make_spec(mem_bytes=23 * GIB))
    queue.requests.submit(make_spec(mem_bytes=10 * GIB, time_limit_s=60.0))

    (reserved,) = queue.maintenance.reserve(after_s=0, most=1)

    assert reserved.start_ms is None
    assert claim(queue) is None


@pytest.mark.parametrize(
    ("limit_h", "expected_h", "starts"),
    [
        (3, None, True),
        (None, 3, True),
        (5, 3, True),
        (5, None, False),
        (None, 5, False),
        (5, 5, False),
        (None, None, False),
    ],
)
def test_others_start_before_the_likely_start_by_their_limit_or_earlier_runs(
    queue: JobQueue, store: redis.Redis, *, limit_h: int | None, expected_h: int | None, starts: bool
) -> None:
    """No latest start is known behind a run of four hours without a limit, and four more are likely."""
    serve(queue)
    run = submit_and_claim(queue, mem_bytes=10 * GIB)
    has_run(queue, store, run, 4 * 3600 + 300)
    waited(queue, store, submit(queue, mem_bytes=23 * GIB), 40 * 3600)
    (reserved,) = queue.maintenance.reserve(after_s=0, most=1)
    limit_s, expected_s = (hours and hours * 3600.0 for hours in (limit_h, expected_h))
    other = submit(queue, mem_bytes=10 * GIB, time_limit_s=limit_s, expected_duration_s=expected_s)

    obstacle = queue.jobs.why(other).devices[0].obstacle
    won = claim(queue)

    assert reserved.start_ms is None
    assert (Obstacle.FITS if starts else Obstacle.RESERVED) is obstacle
    assert (other if starts else None) == (won and won.job_id)


def test_nobody_starts_before_a_likely_start_in_the_second_half(queue: JobQueue, store: redis.Redis) -> None:
    """Runs that last longer than expected delay a reservation, so they may begin only in its first half."""
    # Else each of them might make room for the next one. The card is reserved for ten hours.
    serve(queue)
    run = submit_and_claim(queue, mem_bytes=10 * GIB)
    large = submit(queue, mem_bytes=23 * GIB)
    submit(queue, mem_bytes=10 * GIB, expected_duration_s=600.0)
    for passed_h, is_open in ((6, False), (4, True)):
        waited(queue, store, large, (40 + passed_h) * 3600)
        reserve(queue)
        store.hset(keys.job(large), stored.RESERVED_SINCE_MS, queue.now_ms() - passed_h * 3_600_000)
        has_run(queue, store, run, 4000)
        assert [large] == list(reserve(queue))
        assert is_open == (claim(queue) is not None)


def test_the_device_that_has_room_first_is_reserved(queue: JobQueue) -> None:
    """The device that is free first is reserved: after five minutes, not after one hour or at an unknown time."""
    serve(queue, *(make_offer(f"GPU-{i}") for i in range(3)))
    for i, limit_s in enumerate((None, 3600.0, 300.0)):
        submit_and_claim(queue, f"GPU-{i}", mem_bytes=20 * GIB, time_limit_s=limit_s)
    large = submit(queue, mem_bytes=20 * GIB)

    assert {large: ("GPU-2",)} == reserve(queue)


def test_a_job_with_a_reservation_starts_elsewhere_if_there_is_room_first(queue: JobQueue) -> None:
    """A reservation stays on its device, and the job takes any other device that has room before."""
    serve(queue, make_offer("GPU-0"), make_offer("GPU-1"))
    for i, limit_s in enumerate((300.0, None)):
        submit_and_claim(queue, f"GPU-{i}", mem_bytes=20 * GIB, time_limit_s=limit_s)
    large = submit(queue, mem_bytes=20 * GIB)
    assert {large: ("GPU-0",)} == reserve(queue)

    queue.runs.lose(2, token_of(queue, 2), loss_limit=1, detail="gone")

    assert {large: ("GPU-0",)} == reserve(queue)
    assert large == must_claim(queue, "GPU-1").job_id
    assert {} == reserve(queue)


def test_a_gang_gets_its_devices_together(queue: JobQueue) -> None:
    # Their small jobs never end at the same time, and neither device is filled again.
    serve(queue, make_offer("GPU-0"), make_offer("GPU-1"))
    for i in range(2):
        submit_and_claim(queue, f"GPU-{i}", mem_bytes=4 * GIB)
    gang = submit(queue, mem_bytes=22 * GIB, gpus=2)
    for _ in range(3):
        small(queue)

    assert {gang: ("GPU-0", "GPU-1")} == reserve(queue)
    assert [None, None] == [claim(queue, "GPU-0"), claim(queue, "GPU-1")]
    for job_id in (1, 2):
        queue.runs.lose(job_id, token_of(queue, job_id), loss_limit=1, detail="gone")

    taken = must_claim(queue, "GPU-0")
    assert (gang, ("GPU-0", "GPU-1")) == (taken.job_id, taken.devices)


def test_one_job_a_host_unless_more_are_allowed(queue: JobQueue) -> None:
    """One job per host has a reservation unless more are allowed, so that not the whole host runs dry."""
    serve(queue, *(make_offer(f"GPU-{i}") for i in range(3)))
    for i in range(3):
        submit_and_claim(queue, f"GPU-{i}", mem_bytes=4 * GIB)
    first = submit(queue, mem_bytes=23 * GIB)
    second = submit(queue, mem_bytes=22 * GIB, account=BOB)

    assert {first} == reserve(queue).keys()
    reserved = reserve(queue, most=2)
    assert {first, second} == reserved.keys()
    assert reserved[first] != reserved[second]
    assert {} == reserve(queue, most=0)


def test_a_user_has_one_reservation_at_a_time(queue: JobQueue) -> None:
    """If two are allowed, the second is for the first job of another user, also if it came later."""
    serve(queue, make_offer("GPU-0"), make_offer("GPU-1"))
    for i in range(2):
        submit_and_claim(queue, f"GPU-{i}", mem_bytes=4 * GIB)
    first = submit(queue, mem_bytes=23 * GIB)
    submit(queue, mem_bytes=22 * GIB)
    of_bob = submit(queue, mem_bytes=21 * GIB, account=BOB)

    assert [first, of_bob] == sorted(reserve(queue, most=2))


def test_devices_are_reserved_for_one_job_at_a_time(queue: JobQueue, store: redis.Redis) -> None:
    # When its reservation ends, the next job has its turn, then it again. Regression: a job for a card that was
    # occupied for days had the host's only reservation, and a job for the other card waited as long.
    serve(queue, make_offer("GPU-0"), make_offer("GPU-1"))
    cards = ("GPU-0", "GPU-1")
    for uuid in cards:
        submit_and_claim(queue, uuid, mem_bytes=4 * GIB)
    large = {uuid: make_spec(mem_bytes=23 * GIB, placement=Placement(devices=(uuid,))) for uuid in cards}
    first, second = (queue.requests.submit(large[uuid]).id for uuid in cards)

    for job_id, uuid in ((first, "GPU-0"), (second, "GPU-1"), (first, "GPU-0")):
        assert {job_id: (uuid,)} == reserve(queue)
        assert {job_id: (uuid,)} == reserve(queue)
        wait_on(store, job_id, 61)
        assert {} == reserve(queue)
        end_the_pause(store)


def test_a_job_that_waits_anew_has_its_turn_by_the_new_wait(queue: JobQueue, store: redis.Redis) -> None:
    """A reservation that was dropped before the job was held does not put it before those that came meanwhile."""
    serve(queue)
    submit_and_claim(queue, mem_bytes=4 * GIB)
    first = submit(queue, mem_bytes=23 * GIB)
    second = submit(queue, mem_bytes=22 * GIB)
    now_ms = queue.now_ms()
    dropped = {stored.DROPPED_MS: now_ms - 3_600_000, stored.READY_SINCE_MS: now_ms - 600_000}
    store.hset(keys.job(first), mapping=dropped)
    waited(queue, store, second, 1800)

    assert [second] == list(reserve(queue))


def test_the_oldest_job_is_found_behind_many_others(queue: JobQueue) -> None:
    """Jobs are read in steps by age: the oldest one without room is found behind two hundred others that have room."""
    serve(queue)
    submit_and_claim(queue, mem_bytes=4 * GIB)
    for _ in range(200):
        small(queue)
    large = submit(queue, mem_bytes=23 * GIB, account=BOB)
    queue.requests.submit(make_spec(mem_bytes=22 * GIB))

    serve(queue)  # a heartbeat, since a slow machine takes long for so many jobs
    assert [large] == list(reserve(queue))


# ---- what a reservation may cost -------------------------------------------------------------------------------------


def waited(queue: JobQueue, store: redis.Redis, job_id: int, for_s: float) -> None:
    """Let a job have waited for *for_s* seconds."""
    store.hset(keys.job(job_id), stored.SUBMITTED_MS, queue.now_ms() - round(for_s * 1000))


def has_run(queue: JobQueue, store: redis.Redis, run: Claim, for_s: float) -> None:
    """Let a run have lasted for *for_s* seconds."""
    store.hset(keys.job(run.job_id), stored.CLAIMED_MS, queue.now_ms() - round(for_s * 1000))


def test_a_run_without_a_time_limit_is_expected_to_last_as_long_again(queue: JobQueue, store: redis.Redis) -> None:
    # That must be half of the time for which the only device may be reserved, which is a quarter of the wait.
    serve(queue)
    run = submit_and_claim(queue, mem_bytes=4 * GIB)
    large = submit(queue, mem_bytes=23 * GIB)
    has_run(queue, store, run, 4 * 3600)

    waited(queue, store, large, 31 * 3600)
    assert {} == reserve(queue)

    waited(queue, store, large, 33 * 3600)
    assert {large: ("GPU-0",)} == reserve(queue)


def test_a_run_is_expected_to_take_as_long_as_its_users_runs_usually_take(queue: JobQueue, store: redis.Redis) -> None:
    """The user's runs take six hours, so a job that has waited for one hour has bad prospects behind a new run."""
    # A time limit of ten minutes changes that: no run lasts longer than its limit.
    serve(queue)
    run = submit_and_claim(queue, mem_bytes=4 * GIB)
    store.hset(keys.job(run.job_id), stored.USUAL_S, 6 * 3600)
    large = submit(queue, mem_bytes=23 * GIB)
    waited(queue, store, large, 3600)

    assert {} == reserve(queue)

    lease = str(store.hget(keys.device_leases("GPU-0"), str(run.job_id))).split(":")
    lease[2] = str(queue.now_ms() + 600_000)
    store.hset(keys.device_leases("GPU-0"), str(run.job_id), ":".join(lease))
    assert {large: ("GPU-0",)} == reserve(queue)


def test_prospects_are_judged_again_later(queue: JobQueue, store: redis.Redis) -> None:
    """The reply names a time within five minutes: then the prospects may be better although nothing has happened."""
    serve(queue)
    small(queue)
    has_run(queue, store, must_claim(queue), 4 * 3600)
    queue.requests.submit(make_spec(mem_bytes=23 * GIB))

    found = queue.maintenance.check_reservations(after_s=0, most=1)

    assert found.again_ms is not None
    assert 0 < found.again_ms - queue.now_ms() <= 300_000


def test_nothing_is_reserved_until_what_was_idle_is_within_the_budget(queue: JobQueue, store: redis.Redis) -> None:
    """Five sixths of four cards were idle for a minute. With a budget of a tenth that is paid after 500 s."""
    cards = [f"GPU-{number}" for number in range(4)]
    serve(queue, *map(make_offer, cards))
    for uuid in cards:
        submit_and_claim(queue, uuid, mem_bytes=4 * GIB)
    gang = submit(queue, mem_bytes=23 * GIB, gpus=4)
    assert [gang] == list(reserve(queue))
    store.hincrby(keys.META, "fair", 60_000)
    queue.jobs.cancel(gang)
    single = submit(queue, mem_bytes=23 * GIB)

    found = queue.maintenance.check_reservations(after_s=0, most=1, budget=0.1)

    assert ((), 440) == (found.made, pytest.approx(((found.again_ms or 0) - queue.now_ms()) / 1000, abs=10))
    assert [single] == [each.job_id for each in queue.maintenance.reserve(after_s=0, most=1)], "without a budget"
    queue.jobs.cancel(single)
    assert {} == reserve(queue)
    assert queue.maintenance.check_reservations(after_s=0, most=1).again_ms is None


def test_a_large_job_has_its_turn_before_later_ones(queue: JobQueue) -> None:
    """A job on two cards waits until nothing else is reserved, and no younger job gets a reservation meanwhile."""
    cards = [f"GPU-{number}" for number in range(3)]
    serve(queue, *map(make_offer, cards))
    runs = [submit_and_claim(queue, uuid, mem_bytes=4 * GIB) for uuid in cards]
    first = submit(queue, mem_bytes=23 * GIB)
    (reserved,) = reserve(queue)[first]
    gang = submit(queue, mem_bytes=22 * GIB, gpus=2)
    queue.requests.submit(make_spec(mem_bytes=21 * GIB))
    assert [first] == list(reserve(queue, most=1))

    end(queue, runs[cards.index(reserved)])
    assert first == must_claim(queue, reserved).job_id

    assert [gang] == list(reserve(queue))


# ---- the end of a reservation ----------------------------------------------------------------------------------------


def wait_on(store: redis.Redis, job_id: int, passed_s: int = 120) -> None:
    """Let *passed_s* seconds pass since the devices were reserved for a job."""
    store.hincrby(keys.job(job_id), stored.RESERVED_SINCE_MS, -passed_s * 1000)
    store.hincrby(keys.META, "fair", passed_s * 1000)


def end_the_pause(store: redis.Redis) -> None:
    """Let the time pass in which nothing is reserved because much was."""
    store.hdel(keys.META, "reserve_at")


def pair_behind_a_run(queue: JobQueue) -> tuple[Claim, int]:
    """Return a run without a time limit on one card, and a job that needs both cards."""
    serve(queue, make_offer("GPU-0"), make_offer("GPU-1"))
    run = submit_and_claim(queue, "GPU-1", mem_bytes=20 * GIB)
    return run, submit(queue, mem_bytes=23 * GIB, gpus=2)


def test_an_empty_card_is_let_go_where_the_other_has_a_run_that_stays(queue: JobQueue, store: redis.Redis) -> None:
    """An empty card is released from the reservation if the other card has a run that does not end."""
    # Regression: it stayed empty as long as that run, which may be days. Once the run has ended, both cards are
    # reserved again.
    run, pair = pair_behind_a_run(queue)
    others = [small(queue, account=BOB) for _ in range(2)]
    assert {pair: ("GPU-0", "GPU-1")} == {each: tuple(sorted(reserved)) for each, reserved in reserve(queue).items()}
    assert claim(queue, "GPU-0") is None

    wait_on(store, pair)

    assert {} == reserve(queue)
    assert {} == reserve(queue), "nor at the next tick"
    beside = must_claim(queue, "GPU-0")
    assert others[0] == beside.job_id
    end(queue, run)
    end_the_pause(store)
    assert [pair] == list(reserve(queue))
    assert claim(queue, "GPU-0") is None
    assert claim(queue, "GPU-1") is None
    end(queue, beside)
    assert pair == must_claim(queue, "GPU-0").job_id


def test_a_long_wait_gives_a_long_reservation(queue: JobQueue, store: redis.Redis) -> None:
    """On all devices a reservation lasts for a quarter of the time that the job had waited."""
    # It exceeds one day only for a job that waited more than four.
    _, pair = pair_behind_a_run(queue)
    small(queue, account=BOB)
    for waited_s, kept_s in ((30, 60), (3600, 900), (3 * 86400, 18 * 3600), (8 * 86400, 2 * 86400)):
        store.hset(keys.job(pair), stored.SUBMITTED_MS, queue.now_ms() - waited_s * 1000)
        (reserved,) = queue.maintenance.reserve(after_s=0, most=1)
        since_ms = int(str(store.hget(keys.job(pair), stored.RESERVED_SINCE_MS)))
        assert reserved.until_ms is not None
        assert kept_s == pytest.approx((reserved.until_ms - since_ms) / 1000, abs=5), waited_s


def test_on_a_quarter_of_the_devices_a_reservation_lasts_as_long_as_the_wait(
    queue: JobQueue, store: redis.Redis
) -> None:
    """One of four cards is reserved for an hour for a job that has waited for an hour, two cards for half an hour."""
    cards = [f"GPU-{number}" for number in range(4)]
    serve(queue, *map(make_offer, cards))
    for uuid in cards:
        submit_and_claim(queue, uuid, mem_bytes=4 * GIB)
    for gpus, lasts_s in ((1, 3600), (2, 1800)):
        large = submit(queue, mem_bytes=23 * GIB, gpus=gpus)
        waited(queue, store, large, 3600)
        (reserved,) = queue.maintenance.reserve(after_s=0, most=1)
        assert large == reserved.job_id
        assert lasts_s == pytest.approx(((reserved.until_ms or 0) - queue.now_ms()) / 1000, abs=5)
        queue.jobs.cancel(large)


def test_a_reservation_ends_also_before_a_known_start(queue: JobQueue, store: redis.Redis) -> None:
    """A run in the way with a limit of five days keeps no device reserved for five days."""
    # Regression: a host of eight cards was reserved for 66 hours, since the latest start was known.
    serve(queue)
    submit_and_claim(queue, mem_bytes=20 * GIB, time_limit_s=5 * 86400)
    large = submit(queue, mem_bytes=23 * GIB)
    (reserved,) = queue.maintenance.reserve(after_s=0, most=1)
    assert reserved.start_ms is not None
    assert (reserved.until_ms or 0) < reserved.start_ms

    wait_on(store, large)

    assert {} == reserve(queue)


def test_why_reports_no_start_once_the_reservation_has_ended(queue: JobQueue, store: redis.Redis) -> None:
    # For other jobs the card is free.
    run, pair = pair_behind_a_run(queue)
    other = small(queue, account=BOB)
    reserve(queue)
    wait_on(store, pair)
    reserve(queue)

    found = queue.jobs.why(pair)

    assert (run.job_id,) == found.start.blockers
    assert found.start.at_ms is None
    its = queue.jobs.why(other)
    assert [None, None] == [each.reserved_for for each in its.devices]


def test_nothing_is_reserved_for_a_job_that_fits_or_has_not_waited(queue: JobQueue) -> None:
    """No reservation is made for a job that fits or has not waited long enough."""
    # A reservation costs other jobs their turn.
    serve(queue)
    submit_and_claim(queue, mem_bytes=4 * GIB)
    queue.requests.submit(make_spec(mem_bytes=20 * GIB))
    assert {} == reserve(queue)
    queue.jobs.hold(2)
    queue.requests.submit(make_spec(mem_bytes=23 * GIB))

    assert [] == queue.maintenance.reserve(after_s=600, most=1)


def test_nothing_is_reserved_where_external_processes_are_in_the_way(queue: JobQueue) -> None:
    # Their end is not predictable, so an empty device would help no job.
    serve(queue, make_offer(external_bytes=5 * GIB))
    queue.requests.submit(make_spec(mem_bytes=23 * GIB))

    assert {} == reserve(queue)


@pytest.mark.parametrize("way", ["name", "priority", "retries", "promoted"])
def test_a_reservation_stays_if_the_request_is_unchanged(queue: JobQueue, store: redis.Redis, way: str) -> None:
    """A reservation stays after a promotion or an edit of the name, priority or retries."""
    # Otherwise small jobs would take the memory until the next tick.
    serve(queue)
    submit_and_claim(queue, mem_bytes=4 * GIB)
    large = submit(queue, mem_bytes=23 * GIB)
    small(queue)
    assert {large: ("GPU-0",)} == reserve(queue)

    if way == "promoted":
        assert 2 == queue.maintenance.promote(after_s=0)
    else:
        changes = {"name": "other", "priority": Priority.LOW, "retries": Retries(times=2)}
        queue.requests.edit(large, lambda spec: replace(spec, **{way: changes[way]}), priority=way == "priority")

    assert claim(queue) is None, "it is still reserved"
    assert [] == faults(dump(store))
    assert {large: ("GPU-0",)} == reserve(queue)


@pytest.mark.parametrize("way", ["smaller", "later"])
def test_a_reservation_ends_if_an_edit_changes_the_size_or_sets_a_begin_time(
    queue: JobQueue, store: redis.Redis, way: str
) -> None:
    # Another size needs another place, and no device stands empty for a future begin time.
    serve(queue)
    submit_and_claim(queue, mem_bytes=4 * GIB)
    large = submit(queue, mem_bytes=23 * GIB)
    passed = small(queue)
    assert {large: ("GPU-0",)} == reserve(queue)

    if way == "smaller":
        queue.requests.edit(large, lambda spec: replace(spec, mem_bytes=22 * GIB))
    else:
        begin = Waits(begin_at=datetime(2035, 1, 1, tzinfo=timezone.utc))
        queue.requests.edit(large, lambda spec: replace(spec, waits=begin), begin=True)

    assert passed == must_claim(queue).job_id
    assert [] == faults(dump(store))


@pytest.mark.parametrize("way", ["cancel", "hold", "start"])
def test_a_job_that_no_longer_waits_has_no_reservation(queue: JobQueue, store: redis.Redis, way: str) -> None:
    """A job that is cancelled, held or started elsewhere loses its reservation at once."""
    # Other jobs start without waiting for the next tick.
    serve(queue, make_offer("GPU-0"), make_offer("GPU-1"))
    for i in range(2):
        submit_and_claim(queue, f"GPU-{i}", mem_bytes=4 * GIB)
    large = submit(queue, mem_bytes=23 * GIB)
    follower = small(queue)
    assert {large: ("GPU-0",)} == reserve(queue)
    assert claim(queue, "GPU-0") is None
    listener = store.pubsub(ignore_subscribe_messages=True)
    listener.subscribe(keys.WAKEUP_CHANNEL)
    listener.get_message(timeout=5)

    if way == "start":
        queue.runs.lose(2, token_of(queue, 2), loss_limit=1, detail="gone")
        assert large == must_claim(queue, "GPU-1").job_id
    else:
        getattr(queue.jobs, way)(large)

    rung = listener.get_message(timeout=5)
    assert rung is not None, "else no worker looks before its next poll"
    assert "room" == rung["data"]
    assert follower == must_claim(queue, "GPU-0").job_id
    listener.close()


def test_a_silent_or_drained_device_is_not_waited_for(queue: JobQueue) -> None:
    """No reservation is made on a silent or drained device, because it may never take the job."""
    serve(queue, make_offer("GPU-0"), make_offer("GPU-1"))
    for i in range(2):
        submit_and_claim(queue, f"GPU-{i}", mem_bytes=4 * GIB)
    large = submit(queue, mem_bytes=23 * GIB)
    assert {large: ("GPU-0",)} == reserve(queue)

    queue.devices.drain(["GPU-0"], origin=DrainOrigin.PERSON, why="", by="ada")

    assert {large: ("GPU-1",)} == reserve(queue)
    queue.devices.drain(["GPU-1"], origin=DrainOrigin.PERSON, why="", by="ada")
    assert {} == reserve(queue)


def test_every_start_says_how_it_came(queue: JobQueue) -> None:
    """Each start records its kind: immediate, backfill or reserved."""
    # Immediate is first in the order, backfill passes a job that does not fit, and reserved uses a reserved device.
    serve(queue)
    for mem_bytes in (10 * GIB, 20 * GIB, 10 * GIB):
        queue.requests.submit(make_spec(mem_bytes=mem_bytes))
    first, third = must_claim(queue), must_claim(queue)
    reserve(queue)
    end(queue, first)
    end(queue, third)
    second = must_claim(queue)

    starts = {event.job_id: event.fields["start"] for event in queue.outbox.events("0-0") if event.act.value == "claim"}
    assert {first.job_id: "immediate", third.job_id: "backfill", second.job_id: "reserved"} == starts


def test_a_job_for_another_pool_is_not_passed(queue: JobQueue) -> None:
    """A job of another pool does not count as passed, because it could never run on this device."""
    serve(queue, make_offer("GPU-0"), make_offer("GPU-1", pool="fast"))
    queue.requests.submit(make_spec(pool="fast"))
    queue.requests.submit(make_spec(account=BOB))

    claimed = must_claim(queue, "GPU-0")

    (event,) = [event for event in queue.outbox.events("0-0") if event.act.value == "claim"]
    assert (2, "immediate") == (claimed.job_id, event.fields["start"])


def test_a_reservation_counts_whole_mib_as_a_claim_does(queue: JobQueue, store: redis.Redis) -> None:
    # Otherwise other jobs beside a request of half a MiB could leave too little.
    serve(queue)
    submit_and_claim(queue, mem_bytes=4 * GIB)
    queue.requests.submit(make_spec(mem_bytes=23 * GIB - MIB // 2))

    reserve(queue)

    assert str(23 * GIB) == str(store.hget(keys.RESERVED, "GPU-0")).split(":")[1]


def test_room_is_reserved_for_a_job_that_lost_its_figure(queue: JobQueue, store: redis.Redis) -> None:
    """A job with a lost memory field still gets its reservation, because its shape has the size."""
    # Regression: the reservation was made and dropped in turns.
    serve(queue)
    submit_and_claim(queue, mem_bytes=4 * GIB)
    large = submit(queue, mem_bytes=23 * GIB)
    store.hdel(keys.job(large), stored.MEM_BYTES)

    for _ in range(3):
        assert {large: ("GPU-0",)} == reserve(queue)


# ---- what reservations cost ------------------------------------------------------------------------------------------


def idle_after(queue: JobQueue, store: redis.Redis, passed_s: int) -> float:
    """Let *passed_s* seconds pass on the clock of usage, tick, and return the device-seconds so far."""
    store.hincrby(keys.META, "fair", passed_s * 1000)
    queue.maintenance.reserve(after_s=0, most=1)
    return queue.maintenance.reserved_idle_device_s()


def test_free_memory_counts_while_it_is_reserved(queue: JobQueue, store: redis.Redis) -> None:
    """Of 24 GiB, 18 are reserved, and a run holds 12: half of the device is idle, until the large job starts."""
    serve(queue)
    run = submit_and_claim(queue, mem_bytes=12 * GIB)
    large = submit(queue, mem_bytes=18 * GIB)
    assert 0 == idle_after(queue, store, 1000), "nothing was reserved before"

    assert 50 == idle_after(queue, store, 100)
    assert 75 == idle_after(queue, store, 50)

    end(queue, run)
    assert 80 == idle_after(queue, store, 10)
    assert 80 + 0.75 * 10 == idle_after(queue, store, 10), "no more than is reserved: 18 of 24 GiB"
    assert large == must_claim(queue).job_id
    counted = idle_after(queue, store, 0)
    assert counted == idle_after(queue, store, 1000)


def test_all_devices_of_a_reservation_count(queue: JobQueue, store: redis.Redis) -> None:
    """A job on two cards has one empty card reserved, and one that another run fills."""
    serve(queue, make_offer("GPU-0"), make_offer("GPU-1"))
    submit_and_claim(queue, "GPU-1", mem_bytes=24 * GIB)
    queue.requests.submit(make_spec(mem_bytes=24 * GIB, gpus=2))
    idle_after(queue, store, 0)

    assert 60 == idle_after(queue, store, 60)


def test_an_empty_device_costs_nothing_if_it_is_not_reserved(queue: JobQueue, store: redis.Redis) -> None:
    serve(queue)

    assert 0 == idle_after(queue, store, 1000)
    assert 0 == idle_after(queue, store, 1000)
    assert not store.hexists(keys.META, "reserved_idle")


def test_damaged_figures_count_as_none(queue: JobQueue, store: redis.Redis) -> None:
    """A tick does not fail on entries of the store that are no numbers, and counts anew."""
    serve(queue)
    submit_and_claim(queue, mem_bytes=12 * GIB)
    queue.requests.submit(make_spec(mem_bytes=18 * GIB))
    idle_after(queue, store, 0)
    for field, text in (("reserved_idle", "inf"), ("reserved_idle_at", "-7"), ("reserved_idle_ms", "1e999")):
        store.hset(keys.META, field, text)

    assert 0 == idle_after(queue, store, 100)
    assert 50 == idle_after(queue, store, 100)
