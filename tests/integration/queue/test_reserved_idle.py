"""The store counts for how long devices are idle because they are reserved: what reservations cost."""

from __future__ import annotations

import redis
from factories import make_offer, make_spec, must_claim, serve, start, submit

from gpuqueue.model.job import JobState
from gpuqueue.model.run import Ending
from gpuqueue.queue import keys
from gpuqueue.queue.jobqueue import JobQueue
from gpuqueue.queue.lease import Claim
from gpuqueue.text.units import GIB


def after(queue: JobQueue, store: redis.Redis, passed_s: int) -> float:
    """Let *passed_s* seconds pass on the clock of usage, tick, and return the device-seconds so far."""
    store.hincrby(keys.META, "fair", passed_s * 1000)
    queue.maintenance.reserve(after_s=0, most=1)
    return queue.maintenance.reserved_idle_device_s()


def end(queue: JobQueue, run: Claim) -> None:
    """End a run successfully."""
    start(queue, run)
    ending = Ending.from_status(0)
    assert queue.runs.finish(run.job_id, run.token, state=JobState.SUCCEEDED, ending=ending, duration_s=1.0, devices=())


def test_free_memory_counts_while_it_is_reserved(queue: JobQueue, store: redis.Redis) -> None:
    """Of 24 GiB, 18 are reserved, and a run holds 12: half of the device is idle, until the large job starts."""
    serve(queue)
    queue.requests.submit(make_spec(mem_bytes=12 * GIB))
    run = must_claim(queue)
    large = submit(queue, mem_bytes=18 * GIB)
    assert 0 == after(queue, store, 1000), "nothing was reserved before"

    assert 50 == after(queue, store, 100)
    assert 75 == after(queue, store, 50)

    end(queue, run)
    assert 80 == after(queue, store, 10)
    assert 80 + 0.75 * 10 == after(queue, store, 10), "no more than is reserved: 18 of 24 GiB"
    assert large == must_claim(queue).job_id
    counted = after(queue, store, 0)
    assert counted == after(queue, store, 1000)


def test_all_devices_of_a_reservation_count(queue: JobQueue, store: redis.Redis) -> None:
    """A job on two cards has one empty card reserved, and one that another run fills."""
    serve(queue, make_offer("GPU-0"), make_offer("GPU-1"))
    queue.requests.submit(make_spec(mem_bytes=24 * GIB))
    must_claim(queue, "GPU-1")
    queue.requests.submit(make_spec(mem_bytes=24 * GIB, gpus=2))
    after(queue, store, 0)

    assert 60 == after(queue, store, 60)


def test_an_empty_device_costs_nothing_if_it_is_not_reserved(queue: JobQueue, store: redis.Redis) -> None:
    serve(queue)

    assert 0 == after(queue, store, 1000)
    assert 0 == after(queue, store, 1000)
    assert not store.hexists(keys.META, "reserved_idle")


def test_damaged_figures_count_as_none(queue: JobQueue, store: redis.Redis) -> None:
    """A tick does not fail on entries of the store that are no numbers, and counts anew."""
    serve(queue)
    queue.requests.submit(make_spec(mem_bytes=12 * GIB))
    must_claim(queue)
    queue.requests.submit(make_spec(mem_bytes=18 * GIB))
    after(queue, store, 0)
    for field, text in (("reserved_idle", "inf"), ("reserved_idle_at", "-7"), ("reserved_idle_ms", "1e999")):
        store.hset(keys.META, field, text)

    assert 0 == after(queue, store, 100)
    assert 50 == after(queue, store, 100)
