"""Which of the fitting devices a job takes: workers claim on their own and leave jobs to better devices."""

from __future__ import annotations

from typing import Any

import pytest
import redis
from bounded import until
from factories import ADA, BOB, claim, end, make_device, make_offer, must_claim, offered, serve, submit

from gpuqueue.model.array import Array
from gpuqueue.model.device import DeviceKind
from gpuqueue.model.job import JobState
from gpuqueue.model.placement import UNKNOWN_UTILISATION, Placement, Preference
from gpuqueue.model.run import RunDevice
from gpuqueue.queue import job_fields as stored
from gpuqueue.queue import keys
from gpuqueue.queue.drains import DrainOrigin
from gpuqueue.queue.jobqueue import JobQueue
from gpuqueue.queue.lease import Alive, Claim, Later, Offer
from gpuqueue.queue.requests import new_nonce
from gpuqueue.queue.wakeup import Subscriber, WakeUp
from gpuqueue.text.units import GIB, MIB

SPREAD, PACK, LEAST_BUSY = (Placement(preference=each) for each in Preference)


def site_of(queue: JobQueue, placement: Preference | None, *offers: Offer) -> None:
    """Serve devices in a site with this default placement."""
    queue.rules.set_policy(half_life_s=86400, urgent=None, shares={}, placement=placement)
    serve(queue, *offers)


def seek(queue: JobQueue, uuid: str, **offer: Any) -> Claim | Later | None:
    """Seek a job as the worker of a device does."""
    return queue.runs.seek(make_offer(uuid, **offer), worker=f"worker-{uuid}", lease_s=300, nonce=new_nonce())


def let_time_pass(store: redis.Redis, *job_ids: int) -> None:
    """Let the moment be over for which these jobs were left to a better device."""
    for job_id in job_ids:
        assert store.hincrby(keys.job(job_id), stored.LEFT_SINCE_MS, -1000) > 0


@pytest.mark.parametrize(("site", "output"), [(Preference.SPREAD, None), (Preference.PACK, SPREAD), (None, SPREAD)])
def test_a_job_goes_to_the_emptiest_device(queue: JobQueue, site: Preference | None, output: Placement | None) -> None:
    """With "spread", a job goes to the emptiest device, whichever worker seeks first."""
    # The wake-up channel names that device. The site's placement applies where the job has none.
    site_of(queue, site, make_offer("GPU-0", external_bytes=10 * GIB), make_offer("GPU-1", external_bytes=5 * GIB))
    serve(queue, make_offer("GPU-2", host="nodeB"))
    job_id = submit(queue, placement=output or Placement())

    with Subscriber(queue.url) as wakeups:
        assert Later(0.2) == seek(queue, "GPU-0", external_bytes=10 * GIB)
        assert WakeUp("work", device="GPU-2") == until(lambda: wakeups.wait(1), what="the wake-up message")
    assert Later(0.2) == seek(queue, "GPU-1", external_bytes=5 * GIB)
    assert JobState.QUEUED is queue.jobs.get(job_id).state
    found = must_claim(queue, "GPU-2", host="nodeB")
    assert (job_id, None) == (found.job_id, seek(queue, "GPU-0", external_bytes=10 * GIB))


@pytest.mark.parametrize(("site", "output"), [(Preference.PACK, None), (Preference.SPREAD, PACK)])
def test_with_pack_a_job_goes_to_the_fullest_device_that_has_room(
    queue: JobQueue, site: Preference, output: Placement | None
) -> None:
    taken = {"GPU-0": 0, "GPU-1": 10 * GIB, "GPU-2": 20 * GIB}
    site_of(queue, site, *(make_offer(uuid, external_bytes=held) for uuid, held in taken.items()))
    job_id = submit(queue, mem_bytes=8 * GIB, placement=output or Placement())

    assert Later(0.2) == seek(queue, "GPU-0")
    assert seek(queue, "GPU-2", external_bytes=20 * GIB) is None
    assert job_id == must_claim(queue, "GPU-1", external_bytes=10 * GIB).job_id


def test_no_job_waits_long_for_a_better_device(queue: JobQueue, store: redis.Redis) -> None:
    """No job waits longer than a moment for a better device, whose worker may hang."""
    # After that moment any seeking worker takes it. After a released claim the job is left to the better device
    # again.
    site_of(queue, Preference.SPREAD, make_offer("GPU-0", external_bytes=5 * GIB), make_offer("GPU-1"))
    job_id = submit(queue)
    assert Later(0.2) == seek(queue, "GPU-0", external_bytes=5 * GIB)
    assert Later(0.2) == seek(queue, "GPU-0", external_bytes=5 * GIB)

    let_time_pass(store, job_id)
    run = must_claim(queue, "GPU-0", external_bytes=5 * GIB)
    assert job_id == run.job_id
    assert queue.runs.release_claim(job_id, run.token, "full")
    assert Later(0.2) == seek(queue, "GPU-0", external_bytes=5 * GIB)


def test_a_clock_that_was_set_back_keeps_no_job_waiting(queue: JobQueue, store: redis.Redis) -> None:
    """A moment noted before the clock was set back does not keep a job waiting."""
    site_of(queue, Preference.SPREAD, make_offer("GPU-0", external_bytes=5 * GIB), make_offer("GPU-1"))
    job_id = submit(queue)
    store.hset(keys.job(job_id), stored.LEFT_SINCE_MS, queue.now_ms() + 10_000_000)

    assert job_id == must_claim(queue, "GPU-0", external_bytes=5 * GIB).job_id


BETTER = {
    "as free": (make_offer("GPU-1", external_bytes=5 * GIB - 100 * MIB), {}),
    "of another pool": (make_offer("GPU-1", pool="lab"), {"pool": "fast"}),
    "another kind": (make_offer("GPU-1", device=make_device("GPU-1", kind=DeviceKind.SIMULATED)), {}),
    "another type": (
        make_offer("GPU-1", device=make_device("GPU-1", name="T4")),
        {"placement": Placement(models=("test",))},
    ),
    "without a slot": (make_offer("GPU-1", slots=0), {}),
    "one of two": (make_offer("GPU-1"), {"gpus": 2}),
    "alone": (make_offer("GPU-1"), {"placement": Placement(exclusive=True)}),
    "named": (make_offer("GPU-1"), {"placement": Placement(devices=("GPU-0",))}),
}


@pytest.mark.parametrize("case", BETTER)
def test_a_device_that_would_not_be_better_is_not_waited_for(queue: JobQueue, case: str) -> None:
    """A device that is not better, or that cannot take the job, is not waited for."""
    other, asked = BETTER[case]
    site_of(queue, Preference.SPREAD, make_offer("GPU-0", external_bytes=5 * GIB, pool="fast"), other)

    assert submit(queue, **asked) == must_claim(queue, "GPU-0", external_bytes=5 * GIB, host="nodeA").job_id


def drained(queue: JobQueue, store: redis.Redis) -> None:
    """Drain the device as a user does."""
    del store
    queue.devices.drain(["GPU-1"], origin=DrainOrigin.PERSON, why="", by="ada")


def silent(queue: JobQueue, store: redis.Redis) -> None:
    """Make the device's worker silent."""
    del queue
    store.hset(keys.host_devices("nodeA"), "GPU-1", f"{24 * GIB}:0:0:1:8::gpu")


def kept(queue: JobQueue, store: redis.Redis) -> None:
    """Reserve the device for another job."""
    del queue
    store.hset(keys.PREFIX + "rsv", "GPU-1", f"99:{GIB}:0:")


@pytest.mark.parametrize("close", [drained, silent, kept])
def test_a_device_that_takes_no_jobs_is_not_waited_for_however_empty_it_is(
    queue: JobQueue, store: redis.Redis, close: Any
) -> None:
    site_of(queue, Preference.SPREAD, make_offer("GPU-0", external_bytes=5 * GIB), make_offer("GPU-1"))
    close(queue, store)

    assert submit(queue) == must_claim(queue, "GPU-0", external_bytes=5 * GIB).job_id


def test_what_a_device_leaves_does_not_keep_it_from_what_is_for_it_alone(queue: JobQueue) -> None:
    """A job that is left to a better device does not stop jobs that only this device can take, of any user."""
    site_of(queue, Preference.SPREAD, make_offer("GPU-0", external_bytes=5 * GIB), make_offer("GPU-1"))
    own = Placement(devices=("GPU-0",))
    submit(queue, account=ADA)
    here = [submit(queue, account=account, placement=own) for account in (ADA, BOB)]

    assert here == sorted(must_claim(queue, "GPU-0", external_bytes=5 * GIB).job_id for _ in here)
    assert Later(0.2) == seek(queue, "GPU-0", external_bytes=5 * GIB)


def test_a_claim_leaves_a_few_jobs_and_then_takes_one(queue: JobQueue, store: redis.Redis) -> None:
    # Each job that it leaves costs the store time, and a stream of them must not keep a device idle.
    site_of(queue, Preference.SPREAD, make_offer("GPU-0", external_bytes=5 * GIB), make_offer("GPU-1"))
    jobs = [submit(queue, mem_bytes=(i + 1) * MIB) for i in range(12)]

    taken = must_claim(queue, "GPU-0", external_bytes=5 * GIB).job_id
    assert jobs[8] == taken
    assert 8 == sum(store.hexists(keys.job(each), stored.LEFT_SINCE_MS) for each in jobs)


def test_devices_fill_evenly(queue: JobQueue) -> None:
    """With "spread", the devices fill evenly when all workers seek until no job is left."""
    names = [f"GPU-{i}" for i in range(4)]
    site_of(queue, Preference.SPREAD, *(make_offer(name) for name in names))
    for _ in range(12):
        submit(queue)

    done = 0
    while done < 12:
        done += sum(isinstance(seek(queue, name), Claim) for name in names)
    assert [3, 3, 3, 3] == [len(each.jobs) for each in queue.devices.all()]


def test_or_one_after_the_other(queue: JobQueue, store: redis.Redis) -> None:
    """With "pack", one card fills before the next: six jobs of 4G fit on one, and an empty card leaves them to it."""
    names = [f"GPU-{i}" for i in range(3)]
    site_of(queue, Preference.PACK, *(make_offer(name) for name in names))
    jobs = [submit(queue, mem_bytes=4 * GIB) for _ in range(7)]

    assert jobs[0] == must_claim(queue, "GPU-1").job_id
    for _ in range(5):
        assert Later(0.2) == seek(queue, "GPU-0")
        assert isinstance(seek(queue, "GPU-1"), Claim)
    assert seek(queue, "GPU-1") is None
    assert jobs[6] == must_claim(queue, "GPU-2").job_id
    assert not store.hexists(keys.job(jobs[1]), stored.LEFT_SINCE_MS)


def test_a_reserved_job_is_left_to_nobody(queue: JobQueue) -> None:
    """A job with a reservation takes its reserved device, even if an emptier one exists."""
    site_of(queue, Preference.SPREAD, make_offer("GPU-0"))
    submit(queue, mem_bytes=20 * GIB)
    run = must_claim(queue, "GPU-0")
    big = submit(queue, mem_bytes=20 * GIB)
    assert [big] == [each.job_id for each in queue.maintenance.reserve(after_s=0, most=1)]
    serve(queue, make_offer("GPU-1", device=make_device("GPU-1", total_bytes=48 * GIB)))
    end(queue, run)

    assert big == must_claim(queue, "GPU-0").job_id


@pytest.mark.parametrize("devices", [1, 8])
def test_what_it_costs_a_claim(queue: JobQueue, store: redis.Redis, devices: int) -> None:
    """The placement costs a claim few store calls: none while idle, one for each device that could be better."""
    site_of(queue, None, *(make_offer(f"GPU-{i}") for i in range(devices)))
    claim(queue)  # the first claim may have to load the function first
    costs = {}
    for site in (None, Preference.SPREAD):
        queue.rules.set_policy(half_life_s=86400, urgent=None, shares={}, placement=site)
        costs[site] = [calls_of(store, lambda: claim(queue))]  # no job waits
        submit(queue)
        costs[site].append(calls_of(store, lambda: must_claim(queue)))
        store.delete(keys.device_leases("GPU-0"))
    idle, taking = (after - before for before, after in zip(costs[None], costs[Preference.SPREAD], strict=True))

    assert (0, {1: 2, 8: 4}[devices]) == (idle, taking)


def calls_of(store: redis.Redis, act: Any) -> int:
    """Return how many commands the store runs for *act*, including those inside scripts."""
    store.config_resetstat()
    act()
    counts: Any = store.info("commandstats")
    return sum(
        each["calls"] for name, each in counts.items() if not name.startswith(("cmdstat_config", "cmdstat_info"))
    )


# ---- the least busy device -------------------------------------------------------------------------------------------


def running(queue: JobQueue, uuid: str, *uses: float | None) -> None:
    """Let the device run jobs of 1 GiB with these expected utilisations."""
    for use in uses:
        here = Placement(devices=(uuid,), preference=Preference.LEAST_BUSY)
        job_id = submit(queue, placement=here, expected_utilisation=use)
        assert job_id == must_claim(queue, uuid).job_id


@pytest.mark.parametrize(("site", "asked"), [(Preference.LEAST_BUSY, None), (Preference.PACK, LEAST_BUSY)])
def test_a_job_goes_to_the_least_busy_device(queue: JobQueue, site: Preference, asked: Placement | None) -> None:
    """With "least-busy", the sum of the expected utilisations decides, and not the free memory."""
    site_of(queue, site, *(make_offer(f"GPU-{i}") for i in range(3)))
    running(queue, "GPU-0", 0.9)
    running(queue, "GPU-1", 0.1, 0.2, 0.2)
    running(queue, "GPU-2", 0.4, 0.4)
    job_id = submit(queue, placement=asked or Placement())

    assert Later(0.2) == seek(queue, "GPU-0")
    assert Later(0.2) == seek(queue, "GPU-2")
    assert job_id == must_claim(queue, "GPU-1").job_id


def test_equally_busy_devices_are_chosen_by_memory(queue: JobQueue) -> None:
    """Sums in the same step of 10 % count as equal: then the device with the most free memory has the job."""
    site_of(queue, Preference.LEAST_BUSY, make_offer("GPU-0"), make_offer("GPU-1"), make_offer("GPU-2"))
    running(queue, "GPU-0", 0.28, 0.34)
    running(queue, "GPU-1", 0.63)
    running(queue, "GPU-2", 0.9)
    job_id = submit(queue)

    assert Later(0.2) == seek(queue, "GPU-0")
    assert job_id == must_claim(queue, "GPU-1").job_id


def test_an_unknown_utilisation_counts_as_in_python(queue: JobQueue) -> None:
    """Three unknown runs count as more than three that use a little less, and as less than three with a little more."""
    # The card with the unknown runs has the most free memory, and so would have the job if the sums were equal.
    site_of(queue, Preference.LEAST_BUSY, make_offer("GPU-0"), make_offer("GPU-2"))
    serve(queue, make_offer(device=make_device("GPU-1", total_bytes=48 * GIB)))
    running(queue, "GPU-0", *[UNKNOWN_UTILISATION - 0.03] * 3)
    running(queue, "GPU-1", None, None, None)
    running(queue, "GPU-2", *[UNKNOWN_UTILISATION + 0.03] * 3)
    first, second = (submit(queue, expected_utilisation=0.2) for _ in range(2))

    assert Later(0.2) == seek(queue, "GPU-1")
    assert first == must_claim(queue, "GPU-0").job_id
    assert Later(0.2) == seek(queue, "GPU-2")
    assert second == must_claim(queue, "GPU-1").job_id


def test_busy_devices_take_jobs_as_well(queue: JobQueue, store: redis.Redis) -> None:
    # No job waits longer than a moment for one that is less busy.
    site_of(queue, Preference.LEAST_BUSY, make_offer("GPU-0"), make_offer("GPU-1"))
    running(queue, "GPU-0", 1.0, 1.0, 1.0)
    running(queue, "GPU-1", 1.0)
    job_id = submit(queue)
    assert Later(0.2) == seek(queue, "GPU-0")

    let_time_pass(store, job_id)
    assert job_id == must_claim(queue, "GPU-0").job_id


def test_a_lease_keeps_the_expected_utilisation(queue: JobQueue, store: redis.Redis) -> None:
    """It is in each lease of the run, through heartbeats, and after the store has lost the run and adopted it again."""
    site_of(queue, Preference.LEAST_BUSY, make_offer("GPU-0"), make_offer("GPU-1"))
    submit(queue, gpus=2, expected_utilisation=0.634)
    run = must_claim(queue, "GPU-0")
    nonce = run.token.partition(".")[2]
    each = f"{GIB}:0:0::63:{nonce}"
    assert [each, each] == [store.hget(keys.device_leases(uuid), str(run.job_id)) for uuid in ("GPU-0", "GPU-1")]

    alive = Alive(job_id=run.job_id, token=run.token, observed={"GPU-0": MIB})
    queue.devices.heartbeat(make_offer("GPU-0"), (alive,), lease_s=300)
    assert f"{GIB}:{MIB}:0::63:{nonce}" == store.hget(keys.device_leases("GPU-0"), str(run.job_id))
    (status,) = (each for each in queue.devices.all() if each.device.uuid == "GPU-0")
    assert [(GIB, MIB)] == [(each.lease_bytes, each.observed_bytes) for each in status.holdings]

    devices = tuple(RunDevice(uuid=uuid, lease_bytes=GIB, total_bytes=24 * GIB) for uuid in run.devices)
    store.flushall()
    queue.recovery.open(0)
    serve(queue, make_offer("GPU-0"), make_offer("GPU-1"))
    assert JobState.RUNNING is queue.runs.adopt(offered(run, devices=devices), lease_s=300)
    assert each == store.hget(keys.device_leases("GPU-1"), str(run.job_id))


def test_an_array_hands_its_utilisation_to_its_members(queue: JobQueue, store: redis.Redis) -> None:
    site_of(queue, Preference.LEAST_BUSY, make_offer("GPU-0"))
    submit(queue, array=Array.parse("0-1"), expected_utilisation=0.4)
    run = must_claim(queue, "GPU-0")

    lease = store.hget(keys.device_leases("GPU-0"), str(run.job_id))
    assert str(lease).endswith(f"::40:{run.token.partition('.')[2]}")


def test_a_value_that_looks_like_the_field_is_none(queue: JobQueue, store: redis.Redis) -> None:
    """Neither a variable nor an argument of that name is taken for the figure, and a site that spreads has none."""
    fakes: dict[str, Any] = {"env": {"expected_utilisation": "1"}, "argv": ("true", '"expected_utilisation":0.1')}
    site_of(queue, Preference.LEAST_BUSY, make_offer("GPU-0"))
    submit(queue, **fakes)
    site_of(queue, Preference.SPREAD, make_offer("GPU-0"))
    submit(queue, expected_utilisation=0.5)
    for _ in range(2):
        run = must_claim(queue, "GPU-0")
        lease = store.hget(keys.device_leases("GPU-0"), str(run.job_id))
        assert f"{GIB}:0:0::{run.token.partition('.')[2]}" == lease


def test_an_idle_device_claims_at_the_cost_of_spread(queue: JobQueue, store: redis.Redis) -> None:
    # A busy one reads the leases of each other device as well.
    site_of(queue, Preference.LEAST_BUSY, *(make_offer(f"GPU-{i}") for i in range(8)))
    claim(queue)  # the first claim may have to load the function first
    for i in range(1, 8):
        running(queue, f"GPU-{i}", 0.9)
    extra = []
    for here in ((), (0.5,)):
        costs = []
        for site in (None, Preference.LEAST_BUSY):
            queue.rules.set_policy(half_life_s=86400, urgent=None, shares={}, placement=site)
            running(queue, "GPU-0", *here)
            submit(queue)
            costs.append(calls_of(store, lambda: must_claim(queue)))
            store.delete(keys.device_leases("GPU-0"))
        extra.append(costs[1] - costs[0])

    assert [4, 4 + 7] == extra
