"""Whole cards, models and named devices, as the scripts handle them."""

from __future__ import annotations

from typing import Any

import pytest
from factories import ADA, BOB, claim, end, make_device, make_offer, make_spec, must_claim, serve, submit

from gpuqueue.errors import Impossible
from gpuqueue.model.job import WaitReason
from gpuqueue.model.job_spec import Priority
from gpuqueue.model.placement import EXTERNAL_SHARE, Placement, fits_model
from gpuqueue.queue.connect import connect
from gpuqueue.queue.explanation import Obstacle
from gpuqueue.queue.jobqueue import JobQueue
from gpuqueue.queue.lease import Alive, Claim, Offer
from gpuqueue.text.units import GIB, MIB

ALONE = Placement(exclusive=True)
WHOLE = Placement(exclusive=True, whole=True)
A100, H100 = "NVIDIA A100-SXM4-80GB", "NVIDIA H100 80GB HBM3"


def obstacles(queue: JobQueue, job_id: int) -> dict[str, Obstacle]:
    """Return the obstacle on each device for a job."""
    found = queue.jobs.why(job_id)
    return {each.device: each.obstacle for each in found.devices}


def usage(store_url: str, user: str) -> float:
    """Return the decayed device-seconds of a user, as the store counts them."""
    client = connect(store_url)
    try:
        return float(client.zscore("{gq}:fair", user) or 0)
    finally:
        client.close()


# ---- exclusive cards -------------------------------------------------------------------------------------------------


def test_who_wants_a_card_alone_waits_until_it_is_empty(queue: JobQueue) -> None:
    """An exclusive job waits until a card is empty, however little memory it asks for and however much is free."""
    serve(queue)
    submit(queue)
    small = must_claim(queue)
    alone = submit(queue, placement=ALONE)

    assert claim(queue) is None
    assert {"GPU-0": Obstacle.OCCUPIED} == obstacles(queue, alone)
    end(queue, small)
    assert alone == must_claim(queue).job_id


def test_no_job_joins_an_exclusive_run_in_memory_or_slots(queue: JobQueue) -> None:
    # That also holds when an external process ends and frees memory, and after a heartbeat.
    serve(queue, make_offer(external_bytes=10 * GIB))
    alone = submit(queue, mem_bytes=4 * GIB, placement=ALONE)
    small = submit(queue, mem_bytes=MIB)
    run = must_claim(queue, external_bytes=10 * GIB)
    queue.devices.heartbeat(
        make_offer(external_bytes=0), [Alive(job_id=alone, token=run.token, observed={"GPU-0": GIB})], lease_s=300
    )

    assert (alone, 14 * GIB) == (run.job_id, run.lease_bytes)
    assert claim(queue, external_bytes=0, observed={alone: GIB}) is None
    assert {"GPU-0": Obstacle.EXCLUSIVE} == obstacles(queue, small)
    (status,) = queue.devices.all()
    assert (True, 0, 14 * GIB) == (status.exclusive, status.free_bytes, status.allocated_bytes)
    end(queue, run)
    assert small == must_claim(queue).job_id


def test_external_processes_may_share_with_a_job_of_a_given_size(queue: JobQueue) -> None:
    # A job without a size means the whole card. A display's small use does not keep a whole-card job waiting.
    serve(queue, make_offer(external_bytes=8 * GIB))
    whole = submit(queue, mem_bytes=MIB, placement=WHOLE)
    assert claim(queue, external_bytes=8 * GIB) is None
    assert {"GPU-0": Obstacle.OCCUPIED} == obstacles(queue, whole)

    sized = submit(queue, mem_bytes=4 * GIB, placement=ALONE)
    assert sized == must_claim(queue, external_bytes=8 * GIB).job_id
    queue.jobs.cancel(sized)
    serve(queue, make_offer("GPU-1", external_bytes=GIB))
    assert (whole, 23 * GIB) == _reported(must_claim(queue, "GPU-1", external_bytes=GIB))


def test_the_external_share_of_a_whole_card_is_that_of_python(queue: JobQueue) -> None:
    """The scripts and Python use the same limit for external processes on a whole card, to the byte."""
    most = make_device("GPU-0").total_bytes // EXTERNAL_SHARE
    serve(queue, make_offer(external_bytes=most))
    whole = submit(queue, mem_bytes=MIB, placement=WHOLE)

    assert claim(queue, external_bytes=most + 1) is None
    assert whole == must_claim(queue, external_bytes=most).job_id


def _reported(run: Claim) -> tuple[int, int]:
    return run.job_id, run.lease_bytes


def test_a_whole_card_costs_a_whole_card(queue: JobQueue, store_url: str) -> None:
    # A claim deposits ten minutes. Ada's job has two cards, Bob's has a quarter of one.
    serve(queue, make_offer("GPU-0"), make_offer("GPU-1"), make_offer("GPU-2"))
    submit(queue, gpus=2, placement=WHOLE, mem_bytes=MIB, account=ADA)
    must_claim(queue)
    submit(queue, mem_bytes=6 * GIB, account=BOB)
    must_claim(queue, "GPU-2")

    assert 8 == pytest.approx(usage(store_url, "ada") / usage(store_url, "bob"), rel=1e-3)


def test_a_gang_is_alone_on_each_of_its_cards(queue: JobQueue) -> None:
    # Its claim reports the memory that it has on every card.
    sizes = {"GPU-0": 24, "GPU-1": 24, "GPU-2": 48}
    serve(queue, *(make_offer(uuid, device=make_device(uuid, total_bytes=size * GIB)) for uuid, size in sizes.items()))
    submit(queue)
    small = must_claim(queue, "GPU-1")
    pair = submit(queue, gpus=2, placement=ALONE)
    triple = submit(queue, gpus=3, placement=ALONE)

    run = must_claim(queue, "GPU-2")
    assert (pair, 24 * GIB, {"GPU-0", "GPU-2"}) == (run.job_id, run.lease_bytes, set(run.devices))
    assert {24 * GIB, 48 * GIB, GIB} == {each.allocated_bytes for each in queue.devices.all()}
    end(queue, small)
    assert [None, None, None] == [claim(queue, uuid) for uuid in sizes]
    end(queue, run)
    assert triple == must_claim(queue).job_id


def test_a_repeated_claim_of_a_whole_card_gets_the_same_reply(queue: JobQueue) -> None:
    # The amount is stored with the device, not with the job.
    serve(queue, make_offer("GPU-0"), make_offer("GPU-1", device=make_device("GPU-1", total_bytes=48 * GIB)))
    submit(queue, gpus=2, mem_bytes=MIB, placement=WHOLE)

    first, again = (claim(queue, nonce="abc") for _ in range(2))
    assert (24 * GIB, first) == (first.lease_bytes, again)


def test_a_card_in_a_stream_of_small_jobs_is_emptied_for_one(queue: JobQueue) -> None:
    """A card in a stream of small jobs is emptied for an exclusive job: no job starts on the reserved card."""
    serve(queue)
    submit(queue)
    before = must_claim(queue)
    alone = submit(queue, placement=ALONE)
    small = [submit(queue, priority=Priority.HIGH) for _ in range(2)]
    first = must_claim(queue)
    assert small[0] == first.job_id

    (reserved,) = queue.maintenance.reserve(after_s=0, most=1)
    assert (alone, ("GPU-0",)) == (reserved.job_id, reserved.devices)
    assert claim(queue) is None
    assert {"GPU-0": Obstacle.RESERVED} == obstacles(queue, small[1])
    for run in (before, first):
        end(queue, run)
    assert alone == must_claim(queue).job_id
    assert claim(queue) is None


def test_why_reports_that_a_job_waits_for_an_exclusive_run_and_until_when(queue: JobQueue) -> None:
    serve(queue)
    submit(queue, placement=ALONE, time_limit_s=300.0)
    run = must_claim(queue)
    small = submit(queue)

    found = queue.jobs.why(small)
    assert ((run.job_id,), run.claimed_ms + 300_000) == (found.start.blockers, found.start.at_ms)


def test_an_exclusive_job_that_ends_in_time_starts_before_a_reservation(queue: JobQueue) -> None:
    # One without a time limit does not. That holds even where the reservation would leave half of the card.
    serve(queue, make_offer("GPU-0"), make_offer("GPU-1"))
    submit(queue, time_limit_s=7200.0)
    must_claim(queue)
    pair = submit(queue, gpus=2, mem_bytes=24 * GIB)
    assert [pair] == [each.job_id for each in queue.maintenance.reserve(after_s=0, most=1)]
    submit(queue, placement=ALONE)
    assert claim(queue, "GPU-1") is None

    short = submit(queue, placement=ALONE, time_limit_s=300.0)
    assert short == must_claim(queue, "GPU-1").job_id


# ---- models ----------------------------------------------------------------------------------------------------------


def of_model(uuid: str, name: str, **changes: Any) -> Offer:
    """Return the offer of a card of that model."""
    return make_offer(uuid, device=make_device(uuid, name=name), **changes)


@pytest.mark.parametrize("pattern", ["A100", "h100", "80gb", "a100-80gb", "A10", "hbm3 h100", "nvidia"])
def test_a_job_runs_only_on_the_device_model_that_it_asks_for(queue: JobQueue, pattern: str) -> None:
    # The scripts and Python use the same rule.
    names = {"GPU-0": A100, "GPU-1": H100}
    serve(queue, *(of_model(uuid, name) for uuid, name in names.items()))
    fitting = {uuid for uuid, name in names.items() if fits_model(pattern, name)}
    spec = make_spec(placement=Placement(models=(pattern,)))
    if not fitting:
        with pytest.raises(Impossible, match=f"no device of type {pattern}: there are 1 of {A100}, 1 of {H100}"):
            queue.requests.submit(spec)
        return

    for uuid in names:
        job = queue.requests.submit(spec)
        assert (claim(queue, uuid) is not None) == (uuid in fitting)
        if uuid not in fitting:
            assert Obstacle.MODEL is obstacles(queue, job.id)[uuid]
            queue.jobs.cancel(job.id)


def test_several_models_mean_any_of_them_and_a_gang_may_mix_them(queue: JobQueue) -> None:
    serve(queue, of_model("GPU-0", A100), of_model("GPU-1", H100), of_model("GPU-2", "Tesla T4"))
    submit(queue, gpus=2, placement=Placement(models=("H100", "A100")))

    assert claim(queue, "GPU-2") is None
    assert {"GPU-0", "GPU-1"} == set(must_claim(queue, "GPU-1").devices)


def test_a_type_that_is_not_in_the_pool_is_refused(queue: JobQueue) -> None:
    """A model that the pool lacks, or that no host has enough of, is refused, and the message lists what exists."""
    serve(queue, of_model("GPU-0", A100, pool="lab"), of_model("GPU-1", H100, pool="fast"))

    with pytest.raises(Impossible, match=f"no device of type A100 in pool fast: there are 1 of {H100}"):
        queue.requests.submit(make_spec(pool="fast", placement=Placement(models=("A100",))))
    with pytest.raises(Impossible, match="2 devices asked for, but no host has more than 1 of type A100"):
        queue.requests.submit(make_spec(gpus=2, placement=Placement(models=("A100",))))
    with pytest.raises(Impossible, match="80G asked for, but the largest device of type A100 can give 24G"):
        queue.requests.submit(make_spec(mem_bytes=80 * GIB, placement=Placement(models=("A100",))))


def test_a_type_is_waited_for_where_nothing_is_known(queue: JobQueue) -> None:
    """A model is waited for while no device is known: the site may be down for an hour."""
    job = queue.requests.submit(make_spec(placement=Placement(models=("A100",))))

    assert WaitReason.DEVICE is job.reason
    serve(queue, of_model("GPU-0", A100))
    assert job.id == must_claim(queue).job_id


# ---- named devices ---------------------------------------------------------------------------------------------------


def test_a_job_that_names_a_device_runs_on_it_however_free_the_others_are(queue: JobQueue) -> None:
    serve(queue, *(make_offer(f"GPU-{i}") for i in range(3)))
    job_id = submit(queue, placement=Placement(devices=("GPU-1",)))

    assert [None, None] == [claim(queue, uuid) for uuid in ("GPU-0", "GPU-2")]
    assert {"GPU-0": Obstacle.NAMED, "GPU-1": Obstacle.FITS, "GPU-2": Obstacle.NAMED} == obstacles(queue, job_id)
    assert job_id == must_claim(queue, "GPU-1").job_id


def test_a_gang_is_chosen_among_those_that_are_named(queue: JobQueue) -> None:
    """A gang gets its devices among the named ones: exactly those, if it names as many as it needs."""
    serve(queue, *(make_offer(f"GPU-{i}") for i in range(4)))
    submit(queue, gpus=2, placement=Placement(devices=("GPU-1", "GPU-3")))

    assert [None, None] == [claim(queue, uuid) for uuid in ("GPU-0", "GPU-2")]
    assert ("GPU-3", "GPU-1") == must_claim(queue, "GPU-3").devices


def test_an_impossible_named_device_is_refused_at_once(queue: JobQueue) -> None:
    """A named device that can never take the job is refused at submit: in another pool, too small, or on two hosts."""
    serve(queue, make_offer("GPU-0", pool="lab"), make_offer("GPU-1", host="nodeB"))

    with pytest.raises(Impossible, match="no device that was named in pool lab fits the rest of what was asked"):
        queue.requests.submit(make_spec(placement=Placement(devices=("GPU-1",), models=("Test",)), pool="lab"))
    with pytest.raises(Impossible, match="the largest device of those that were named can give 24G"):
        queue.requests.submit(make_spec(mem_bytes=30 * GIB, placement=Placement(devices=("GPU-0",))))
    with pytest.raises(Impossible, match="no host has more than 1 of those that were named"):
        queue.requests.submit(make_spec(gpus=2, placement=Placement(devices=("GPU-0", "GPU-1"))))


def test_a_named_device_that_was_withdrawn_is_waited_for(queue: JobQueue) -> None:
    serve(queue, make_offer("GPU-0"), make_offer("GPU-1"))
    job_id = submit(queue, placement=Placement(devices=("GPU-1",)))
    queue.devices.withdraw("nodeA", "GPU-1")

    assert [WaitReason.DEVICE] == [job.reason for job in queue.jobs.live()]
    assert claim(queue) is None
    serve(queue, make_offer("GPU-1"))
    assert job_id == must_claim(queue, "GPU-1").job_id
