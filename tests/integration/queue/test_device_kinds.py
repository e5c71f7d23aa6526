from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import redis
from factories import ADA, BOB, claim, end, job_of, make_device, make_offer, make_spec, must_claim, serve, submit

from gpuqueue.errors import Impossible
from gpuqueue.model.device import DeviceFilter, DeviceKind, suits
from gpuqueue.model.job import JobState, WaitReason
from gpuqueue.model.job_spec import Priority
from gpuqueue.model.placement import Placement
from gpuqueue.queue import keys
from gpuqueue.queue.connect import connect
from gpuqueue.queue.drains import DrainOrigin
from gpuqueue.queue.jobqueue import JobQueue
from gpuqueue.queue.lease import Offer
from gpuqueue.queue.scripts import Scripts
from gpuqueue.text.units import GIB, MIB

GOLDEN = Path(__file__).parents[2] / "golden"

GPU, CPU, SIMULATED, SLURM = DeviceKind.GPU, DeviceKind.CPU, DeviceKind.SIMULATED, DeviceKind.SLURM
MIG = {"mig_parent": "GPU-9"}


def offer_of(uuid: str, kind: DeviceKind, *, pool: str = "", **device: Any) -> Offer:
    return make_offer(uuid, device=make_device(uuid, kind=kind, **device), pool=pool)


def may_run(queue: JobQueue, uuid: str, **spec: Any) -> bool:
    """Return whether the device *uuid* takes a newly submitted job of this spec."""
    job = queue.requests.submit(make_spec(**spec))
    claimed = claim(queue, uuid)
    if claimed is None:
        queue.jobs.cancel(job.id)
    return claimed is not None


@pytest.mark.parametrize(
    ("device_filter", "known", "takers"),
    [
        (None, {GPU}, {GPU}),
        (None, {SIMULATED}, {SIMULATED}),
        (None, {CPU}, {CPU}),
        (None, {GPU, CPU}, {GPU}),
        (None, {SIMULATED, CPU}, {SIMULATED}),
        (DeviceFilter.GPU, {GPU}, {GPU}),
        (DeviceFilter.GPU, {SIMULATED}, {SIMULATED}),
        (DeviceFilter.GPU, {CPU}, set()),
        (DeviceFilter.GPU, {GPU, CPU}, {GPU}),
        (DeviceFilter.GPU, {SIMULATED, CPU}, {SIMULATED}),
        (DeviceFilter.CPU, {GPU}, set()),
        (DeviceFilter.CPU, {SIMULATED}, set()),
        (DeviceFilter.CPU, {CPU}, {CPU}),
        (DeviceFilter.CPU, {GPU, CPU}, {CPU}),
        (DeviceFilter.CPU, {SIMULATED, CPU}, {CPU}),
        (DeviceFilter.ANY, {GPU}, {GPU}),
        (DeviceFilter.ANY, {SIMULATED}, {SIMULATED}),
        (DeviceFilter.ANY, {CPU}, {CPU}),
        (DeviceFilter.ANY, {GPU, CPU}, {GPU, CPU}),
        (DeviceFilter.ANY, {SIMULATED, CPU}, {SIMULATED, CPU}),
        (None, {CPU, SLURM}, {CPU}),
        (None, {SLURM}, set()),
        (DeviceFilter.GPU, {GPU, SLURM}, {GPU}),
        (DeviceFilter.CPU, {CPU, SLURM}, {CPU}),
        (DeviceFilter.ANY, {GPU, CPU, SLURM}, {GPU, CPU}),
        (DeviceFilter.SLURM, {GPU, CPU, SLURM}, {SLURM}),
        (DeviceFilter.SLURM, {GPU, CPU}, set()),
    ],
)
def test_which_device_takes_which_device_kind(
    queue: JobQueue, device_filter: DeviceFilter | None, known: set[DeviceKind], takers: set[DeviceKind]
) -> None:
    """The claim script and the Python rule agree on which device kinds a device filter admits.

    A job whose kind of device does not exist has reason "device".
    """
    serve(queue, *(offer_of(f"dev-{kind}", kind) for kind in known))

    assert takers == {kind for kind in known if may_run(queue, f"dev-{kind}", device=device_filter)}
    assert takers == {kind for kind in known if suits(device_filter, kind, gpus_known=bool(known & {GPU, SIMULATED}))}
    waiting = queue.requests.submit(make_spec(device=device_filter))
    reason = WaitReason.MEMORY if takers else WaitReason.DEVICE
    assert (reason, reason) == (waiting.reason, queue.jobs.get(waiting.id).reason)


def lose(queue: JobQueue, store_url: str) -> None:
    """Make the driver not answer for the device."""
    del store_url
    queue.devices.heartbeat(make_offer(external_bytes=24 * GIB, trouble="the GPU is lost"), [], lease_s=300)


def drain(queue: JobQueue, store_url: str) -> None:
    """Drain the device as a user does."""
    del store_url
    queue.devices.drain(["GPU-0"], origin=DrainOrigin.PERSON, why="maintenance", by="ada")


def silence(queue: JobQueue, store_url: str) -> None:
    """Make the device's worker silent since 1970."""
    del queue
    client = connect(store_url)
    client.hset(keys.host_devices("nodeA"), "GPU-0", f"{24 * GIB}:0:0:1:8::gpu")
    client.close()


@pytest.mark.parametrize("close", [lose, drain, silence])
def test_a_gpu_that_takes_nothing_is_still_waited_for(queue: JobQueue, store_url: str, close: Any) -> None:
    """A job without a device filter waits for a GPU that takes no jobs at the moment."""
    # It must not run for a day on the CPU because a card was unavailable for a minute.
    serve(queue, make_offer(), offer_of("cpu-nodeA", CPU))
    close(queue, store_url)
    job = queue.requests.submit(make_spec())

    assert claim(queue, "cpu-nodeA") is None
    assert JobState.QUEUED is queue.jobs.get(job.id).state
    queue.devices.withdraw("nodeA", "GPU-0")
    assert claim(queue, "cpu-nodeA") is None  # the submit bound it to a GPU, and that stays
    later = queue.requests.submit(make_spec())
    assert later.id == must_claim(queue, "cpu-nodeA").job_id


def test_a_gpu_of_another_host_is_waited_for(queue: JobQueue) -> None:
    """A job also waits for a GPU of another host: the rule is about the queue, not about a host."""
    serve(queue, make_offer(host="nodeB"), offer_of("cpu-nodeA", CPU))

    assert not may_run(queue, "cpu-nodeA")


def test_the_cpu_of_a_gpu_host_leaves_the_gpus_their_jobs_before_they_are_announced(queue: JobQueue) -> None:
    # When a host starts, its CPU worker is ready first: the driver's session takes a moment.
    serve(queue, offer_of("cpu-nodeA", CPU))
    unsaid = queue.requests.submit(make_spec())
    asked = queue.requests.submit(make_spec(device=DeviceFilter.CPU))

    assert asked.id == must_claim(queue, "cpu-nodeA", gpus_here=True).job_id
    assert claim(queue, "cpu-nodeA", gpus_here=True) is None
    assert unsaid.id == must_claim(queue, "cpu-nodeA").job_id


def test_the_cpu_finds_its_job_behind_those_of_the_gpus(queue: JobQueue) -> None:
    """The CPU finds its jobs behind GPU jobs of any priority, user and shape, and takes its own in order of arrival."""
    serve(queue, make_offer(), offer_of("cpu-nodeA", CPU))
    for i in range(80):
        priority = Priority.HIGH if i % 3 else Priority.LOW
        queue.requests.submit(make_spec(mem_bytes=(i + 1) * MIB, account=(ADA, BOB)[i % 2], priority=priority))
    asked = [
        submit(queue, device=device_filter, priority=Priority.LOW)
        for device_filter in (DeviceFilter.CPU, DeviceFilter.ANY)
    ]

    assert asked == [must_claim(queue, "cpu-nodeA").job_id for _ in asked]
    assert claim(queue, "cpu-nodeA") is None


def test_a_pool_may_have_the_name_of_a_device_kind(queue: JobQueue) -> None:
    # In a shape without a filter the last field is the pool.
    serve(queue, *(offer_of(f"dev-{kind}", kind, pool=word) for kind, word in ((GPU, "cpu"), (CPU, "any"))))

    assert not may_run(queue, "dev-cpu", pool="any")
    assert may_run(queue, "dev-cpu", pool="any", device=DeviceFilter.ANY)
    assert may_run(queue, "dev-gpu", pool="cpu")


def test_a_reservation_does_not_bypass_the_device_filter(queue: JobQueue, store: redis.Redis) -> None:
    # A device that is reserved for a job of another kind serves its own jobs.
    serve(queue, offer_of("cpu-nodeA", CPU))
    queue.requests.submit(make_spec(device=DeviceFilter.GPU))
    store.hset(keys.PREFIX + "rsv", "cpu-nodeA", f"1:{GIB}:{queue.now_ms() + 1000_000}")

    assert claim(queue, "cpu-nodeA") is None
    assert may_run(queue, "cpu-nodeA", device=DeviceFilter.CPU)


# ---- several devices -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("device_filter", [None, DeviceFilter.GPU, DeviceFilter.ANY])
def test_a_gang_never_mixes_kinds(queue: JobQueue, device_filter: DeviceFilter | None) -> None:
    # The fullest neighbour is tried first, here the CPU or the simulated device.
    job = queue.requests.submit(
        make_spec(gpus=2, device=device_filter)
    )  # no device is known yet, so the claim must decide
    serve(
        queue,
        make_offer("GPU-0"),
        offer_of("cpu-nodeA", CPU, total_bytes=8 * GIB),
        offer_of("sim-0", SIMULATED, total_bytes=8 * GIB),
    )

    assert [None, None, None] == [claim(queue, uuid) for uuid in ("GPU-0", "cpu-nodeA", "sim-0")]
    serve(queue, make_offer("GPU-1"))
    gang = must_claim(queue, "GPU-0")
    assert (job.id, ("GPU-0", "GPU-1")) == (gang.job_id, gang.devices)


def test_a_gang_takes_no_mig_instance(queue: JobQueue) -> None:
    # A CUDA process sees only one of them, so the job would die or run on half of its request.
    queue.requests.submit(make_spec(gpus=2))
    parts = [offer_of(f"MIG-{i}", GPU, total_bytes=8 * GIB, **MIG) for i in range(2)]
    serve(queue, *parts, make_offer("GPU-0"))

    assert [None, None, None] == [claim(queue, uuid) for uuid in ("MIG-0", "MIG-1", "GPU-0")]
    assert may_run(queue, "MIG-0")
    serve(queue, make_offer("GPU-1"))
    assert ("GPU-0", "GPU-1") == must_claim(queue, "GPU-0").devices


def test_a_gang_that_only_mig_instances_could_serve_is_refused_with_advice(queue: JobQueue) -> None:
    # Whole cards beside them change the answer.
    serve(queue, *(offer_of(f"MIG-{i}", GPU, **MIG) for i in range(4)), make_offer("GPU-0"))

    with pytest.raises(Impossible, match=r"a program can use only one MIG instance.*ask for one device"):
        queue.requests.submit(make_spec(gpus=2))
    assert JobState.QUEUED is queue.requests.submit(make_spec()).state
    serve(queue, make_offer("GPU-1"))
    assert JobState.QUEUED is queue.requests.submit(make_spec(gpus=2)).state
    with pytest.raises(Impossible, match="the largest device can give 24G"):
        queue.requests.submit(make_spec(gpus=2, mem_bytes=80 * GIB))


# ---- refused jobs and waiting jobs -----------------------------------------------------------------------------------


def test_only_devices_of_the_kind_can_make_a_job_possible(queue: JobQueue) -> None:
    # The host's 512G do not help a job that wants a GPU, and a device of another kind is no second device for a gang.
    serve(queue, make_offer(), offer_of("cpu-nodeA", CPU, total_bytes=512 * GIB))

    with pytest.raises(Impossible, match="80G asked for, but the largest GPU can give 24G"):
        queue.requests.submit(make_spec(mem_bytes=80 * GIB, device=DeviceFilter.GPU))
    with pytest.raises(Impossible, match="80G asked for, but the largest device can give 24G"):
        queue.requests.submit(make_spec(mem_bytes=80 * GIB))
    with pytest.raises(Impossible, match="600G asked for, but the largest CPU can give 512G"):
        queue.requests.submit(make_spec(mem_bytes=600 * GIB, device=DeviceFilter.CPU))
    with pytest.raises(Impossible, match="2 GPUs asked for, but no host has more than 1"):
        queue.requests.submit(make_spec(gpus=2, device=DeviceFilter.GPU))
    with pytest.raises(Impossible, match="2 devices asked for, but no host has more than 1"):
        queue.requests.submit(make_spec(gpus=2, device=DeviceFilter.ANY))
    for device_filter in (DeviceFilter.CPU, DeviceFilter.ANY):
        assert JobState.QUEUED is queue.requests.submit(make_spec(mem_bytes=80 * GIB, device=device_filter)).state


def test_the_refusal_says_that_too_few_devices_are_large_enough(queue: JobQueue) -> None:
    # Regression: with one device of three large enough, it said that the largest can give 16G to a job that asks for
    # 12G on each of two.
    large = make_offer("GPU-2", device=make_device("GPU-2", total_bytes=16 * GIB))
    small = (make_offer(uuid, device=make_device(uuid, total_bytes=8 * GIB)) for uuid in ("GPU-0", "GPU-1"))
    serve(queue, large, *small)

    with pytest.raises(
        Impossible, match=r"12G on each of 2 devices asked for, but no host has that many .* the largest can give 16G"
    ):
        queue.requests.submit(make_spec(gpus=2, mem_bytes=12 * GIB))
    assert JobState.QUEUED is queue.requests.submit(make_spec(gpus=2, mem_bytes=8 * GIB)).state


def test_a_job_may_wait_for_a_device_kind_that_does_not_exist_at_the_moment(queue: JobQueue) -> None:
    # A GPU host that is down for an hour has withdrawn its devices, and its users must not be refused.
    serve(queue, offer_of("cpu-nodeA", CPU))
    spec = make_spec(mem_bytes=500 * GIB, gpus=4, device=DeviceFilter.GPU)

    first, again = (queue.requests.submit(spec, nonce="abc") for _ in range(2))

    assert (WaitReason.DEVICE, WaitReason.DEVICE) == (first.reason, again.reason)
    assert first == again
    assert [WaitReason.DEVICE] == [job.reason for job in queue.jobs.live()]
    serve(queue, make_offer())
    assert [WaitReason.MEMORY] == [job.reason for job in queue.jobs.live()]


def test_the_device_kind_is_looked_up_in_the_jobs_own_pool(queue: JobQueue) -> None:
    # A pool that has only a CPU may have its GPUs away. A pool without any device counts as a typing error and is
    # refused.
    serve(queue, make_offer(pool="fast"), offer_of("cpu-nodeA", CPU, pool="lab"))

    assert WaitReason.DEVICE is queue.requests.submit(make_spec(pool="lab", device=DeviceFilter.GPU)).reason
    assert WaitReason.DEVICE is queue.requests.submit(make_spec(pool="lab")).reason
    assert [WaitReason.DEVICE] * 2 == [job.reason for job in queue.jobs.live()]
    assert claim(queue, "cpu-nodeA") is None
    assert may_run(queue, "cpu-nodeA", pool="lab", device=DeviceFilter.ANY)
    with pytest.raises(Impossible, match="no device is in pool nowhere"):
        queue.requests.submit(make_spec(pool="nowhere", device=DeviceFilter.GPU))


# ---- a newer version -------------------------------------------------------------------------------------------------


def written_by_hand(client: redis.Redis, shape: str, spec: str) -> None:
    """Put job 1 of ada into the queue, key by key."""
    fields = {"st": "queued", "u": "ada", "pr": "1", "sh": shape, "mem": shape.split(":", maxsplit=1)[0], "rq": "1"}
    client.hset(keys.job(1), mapping={**fields, "at": "0", "ls": "0", "ts": "1"})
    client.set(keys.spec(1), spec)
    client.zadd(keys.LIVE, {"1": 1})
    client.zadd(f"{keys.PREFIX}q:1:ada:{shape}", {"1": 1})
    client.zadd(f"{keys.PREFIX}us:1:ada", {shape: 1})
    client.sadd(f"{keys.PREFIX}su:1:{shape}", "ada")
    client.zadd(f"{keys.PREFIX}sh:1", {shape: int(shape.split(":", maxsplit=1)[0])})
    client.zadd(f"{keys.PREFIX}ul:1", {"ada": 0})


def test_a_device_kind_of_a_newer_version_is_left_to_it(queue: JobQueue, store: redis.Redis) -> None:
    # No device takes such a job, as it may be the wrong one, and the store refuses it from this client.
    written_by_hand(store, f"{GIB}:0:1::npu", (GOLDEN / "spec-v1.json").read_text())
    serve(queue, make_offer(), offer_of("cpu-nodeA", CPU))

    assert [None, None] == [claim(queue, uuid) for uuid in ("GPU-0", "cpu-nodeA")]
    with pytest.raises(redis.ResponseError, match="BADARGS"):
        Scripts(store).run("submit", "ada", 1, 5, f"{GIB}:0:1::npu", 1, "{}", "n", "", "")


# ---- a CPU that is served because no GPU was found -------------------------------------------------------------------

WORDS = "the NVIDIA driver is not loaded (NVML error 9)"


def in_place_of_gpus(host: str = "nodeA", **device: Any) -> Offer:
    """Return the offer of the CPU of a host that has looked for GPUs and found none."""
    uuid = f"cpu-{host}"
    return make_offer(uuid, host=host, device=make_device(uuid, kind=CPU, no_gpu=WORDS, **device))


@pytest.mark.parametrize(
    ("device_filter", "runs"),
    [(None, False), (DeviceFilter.GPU, False), (DeviceFilter.CPU, True), (DeviceFilter.ANY, True)],
)
def test_the_cpu_of_a_host_that_lost_its_gpus_takes_only_jobs_that_ask_for_it(
    queue: JobQueue, device_filter: DeviceFilter | None, *, runs: bool
) -> None:
    """The GPUs were withdrawn, as `down` does, and the driver broke: the CPU ran every waiting job, in silence."""
    serve(queue, make_offer())
    queue.devices.withdraw("nodeA", "GPU-0")
    serve(queue, in_place_of_gpus())

    job = queue.requests.submit(make_spec(device=device_filter))

    reason = WaitReason.MEMORY if runs else WaitReason.NO_GPU
    assert (reason, reason) == (job.reason, job_of(queue, job.id).reason)
    claimed = claim(queue, "cpu-nodeA")
    assert runs == (claimed is not None)
    (status,) = queue.devices.all()
    assert (True, WORDS) == (status.lost_gpus, status.device.no_gpu)


def test_a_job_that_waited_before_the_gpus_were_lost_waits_for_one(queue: JobQueue) -> None:
    """A job of a queue without any device means no kind yet: only the claim can keep the CPU from it."""
    job = queue.requests.submit(make_spec())
    serve(queue, make_offer())
    queue.devices.withdraw("nodeA", "GPU-0")
    serve(queue, in_place_of_gpus())

    assert claim(queue, "cpu-nodeA") is None
    assert WaitReason.NO_GPU is job_of(queue, job.id).reason
    serve(queue, make_offer("GPU-0"))
    assert job.id == must_claim(queue, "GPU-0").job_id


def test_a_host_that_never_served_a_gpu_runs_jobs_on_its_cpu_and_says_so(queue: JobQueue) -> None:
    serve(queue, in_place_of_gpus())
    calls: list[bool] = []

    job = queue.requests.submit(make_spec(), on_cpu=lambda: calls.append(True))
    queue.requests.submit(make_spec(device=DeviceFilter.ANY), on_cpu=lambda: calls.append(True))

    assert ([True], WaitReason.MEMORY) == (calls, job.reason)
    assert job.id == must_claim(queue, "cpu-nodeA").job_id
    assert not queue.devices.all()[0].lost_gpus


def test_a_simulated_device_is_no_gpu_that_was_lost(queue: JobQueue) -> None:
    """Somebody who tried simulated devices first has lost none."""
    serve(queue, offer_of("sim-0", SIMULATED))
    queue.devices.withdraw("nodeA", "sim-0")
    serve(queue, in_place_of_gpus())

    assert may_run(queue, "cpu-nodeA")


def test_a_cpu_that_was_asked_for_takes_all_jobs_also_where_gpus_were_served(queue: JobQueue) -> None:
    """So a person says that the machine has no GPU any more: with the devices `cpu`."""
    serve(queue, make_offer())
    queue.devices.withdraw("nodeA", "GPU-0")
    serve(queue, in_place_of_gpus())
    serve(queue, offer_of("cpu-nodeA", CPU))

    assert may_run(queue, "cpu-nodeA")


def test_while_a_host_has_lost_its_gpus_no_other_cpu_takes_their_jobs(queue: JobQueue) -> None:
    """The rule is about the queue, as for a GPU that is drained or silent. With the host, it ends."""
    serve(queue, make_offer())
    queue.devices.withdraw("nodeA", "GPU-0")
    serve(queue, in_place_of_gpus(), make_offer("cpu-nodeB", host="nodeB", device=make_device("cpu-nodeB", kind=CPU)))
    submit(queue)

    assert claim(queue, "cpu-nodeB", host="nodeB") is None
    queue.devices.withdraw("nodeA", "cpu-nodeA")
    later = submit(queue)
    assert later == must_claim(queue, "cpu-nodeB", host="nodeB").job_id


def test_silent_gpus_of_a_host_that_finds_none_are_withdrawn_unless_they_hold_a_run(
    queue: JobQueue, store: redis.Redis
) -> None:
    """After a reboot without the driver the workers of the GPUs stay silent: nobody need look after them there."""
    serve(queue, make_offer(), make_offer("GPU-1", device=make_device("GPU-1", index=1)))
    submit(queue)
    run = must_claim(queue, "GPU-0")
    for uuid in ("GPU-0", "GPU-1"):
        store.hset(keys.host_devices("nodeA"), uuid, f"{24 * GIB}:0:0:1:8::gpu")
    store.delete(keys.GPU_HOSTS)  # an older version served them

    serve(queue, in_place_of_gpus())

    assert ["GPU-0", "cpu-nodeA"] == sorted(each.device.uuid for each in queue.devices.all())
    end(queue, run)
    serve(queue, in_place_of_gpus())
    assert WaitReason.NO_GPU is queue.requests.submit(make_spec()).reason


def test_a_type_of_gpu_is_waited_for_where_the_gpus_are_lost(queue: JobQueue) -> None:
    """It was refused: no device has these words in its name."""
    serve(queue, make_offer())
    queue.devices.withdraw("nodeA", "GPU-0")
    serve(queue, in_place_of_gpus())

    assert WaitReason.NO_GPU is queue.requests.submit(make_spec(placement=Placement(models=("a100",)))).reason


def test_a_site_that_borrows_devices_refuses_no_job_for_lack_of_one(queue: JobQueue) -> None:
    """A job for which only a pilot would have room waits for it. A device that it names must be there all the same.

    It was refused, so nobody could submit it before the pilot ran, and no rule ever asked for the pilot.
    """
    serve(queue, make_offer())
    queue.rules.set_policy(half_life_s=60, urgent=None, shares={}, borrows=True)
    wishes: list[dict[str, Any]] = [
        {"mem_bytes": 80 * GIB},
        {"gpus": 8},
        {"pool": "cluster"},
        {"placement": Placement(models=("H100",))},
    ]
    for wish in wishes:
        job = queue.requests.submit(make_spec(**wish))
        assert (JobState.QUEUED, WaitReason.DEVICE) == (job.state, job.reason)
        assert claim(queue) is None
    with pytest.raises(Impossible):  # pilots have GPUs
        queue.requests.submit(make_spec(mem_bytes=600 * GIB, device=DeviceFilter.CPU, pool="cluster"))

    queue.rules.set_policy(half_life_s=60, urgent=None, shares={})
    for wish in wishes:
        with pytest.raises(Impossible):
            queue.requests.submit(make_spec(**wish))
