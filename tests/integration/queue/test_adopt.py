"""When a store adopts a run that its worker offers, and when it refuses."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import redis
from factories import claim, make_device, make_offer, make_spec, must_claim, serve, submit, submit_and_claim

from gpuqueue.codec.request import decode_started, encode_spec
from gpuqueue.model.device import DeviceKind
from gpuqueue.model.event import Act, Event
from gpuqueue.model.job import JobState
from gpuqueue.model.job_spec import JobSpec
from gpuqueue.model.placement import Placement
from gpuqueue.model.run import Ending, RunDevice
from gpuqueue.queue.connect import connect
from gpuqueue.queue.jobqueue import JobQueue
from gpuqueue.queue.lease import Alive, Claim, Stray
from gpuqueue.text.units import GIB

DEVICE = RunDevice(uuid="GPU-0", lease_bytes=GIB, name="A10", total_bytes=24 * GIB)


def stray(job_id: int = 1, token: str = "1.abc", spec: JobSpec | None = None, **changes: Any) -> Stray:
    """Return a run as its worker would offer it."""
    offered = Stray(
        job_id=job_id,
        token=token,
        host="nodeA",
        worker="w0",
        devices=(DEVICE,),
        claimed_ms=1_700_000_000_123,
        log_path="/runs/log",
        payload=encode_spec(spec or make_spec()),
    )
    return replace(offered, **changes)


def of_claim(claimed: Claim) -> Stray:
    """Return the run of a claim as its worker would offer it."""
    return stray(claimed.job_id, claimed.token, claimed.spec)


def last_event(queue: JobQueue) -> Event:
    """Return the last event in the outbox."""
    return queue.outbox.events("0-0", most=1000)[-1]


def finish(queue: JobQueue, token: str, job_id: int = 1) -> bool:
    """Finish a run as its worker would."""
    ending = Ending.from_status(0)
    return queue.runs.finish(job_id, token, state=JobState.SUCCEEDED, ending=ending, duration_s=1.0, devices=())


@pytest.fixture
def rebuilt(store_url: str) -> Iterator[JobQueue]:
    """Return a queue whose store lost its data. The history has jobs up to 5."""
    queue = JobQueue(store_url)
    queue.recovery.open(100, last=5)
    serve(queue)
    yield queue
    queue.close()


def test_a_run_whose_claim_is_not_in_the_history_is_adopted(queue: JobQueue) -> None:
    # It keeps its token and memory, and no other worker can claim its job.
    serve(queue)
    queue.requests.submit(make_spec())

    assert JobState.RUNNING is queue.runs.adopt(stray(), lease_s=300)

    assert claim(queue) is None
    job = queue.jobs.get(1)
    assert (JobState.RUNNING, 1, "nodeA", ("GPU-0",)) == (job.state, job.attempt, job.host, job.devices)
    assert (GIB, (1,)) == (queue.devices.all()[0].allocated_bytes, queue.devices.all()[0].jobs)
    alive = [Alive(job_id=1, token="1.abc", observed={"GPU-0": 7})]
    assert {"1.abc"} == queue.devices.heartbeat(make_offer(), alive, lease_s=300).go_on
    event = last_event(queue)
    assert (Act.ADOPT, JobState.RUNNING, 1) == (event.act, event.state, event.attempt)
    assert ("/runs/log", (DEVICE,), {}) == decode_started(event.fields["started"])
    assert ("nodeA", "w0", "GPU-0", str(GIB), "1700000000123") == tuple(
        event.fields[name] for name in ("host", "worker", "devices", "lease", "claimed")
    )
    assert finish(queue, "1.abc")
    assert (0, 0) == queue.jobs.counts()


def test_a_held_job_that_runs_is_taken_back(queue: JobQueue) -> None:
    """A held job with a run is adopted: it was released in the last moments."""
    serve(queue)
    queue.requests.submit(make_spec())
    queue.jobs.hold(1)

    assert JobState.RUNNING is queue.runs.adopt(stray(), lease_s=300)
    assert claim(queue) is None
    assert JobState.RUNNING is queue.jobs.release(1)


def test_a_run_that_the_store_knows_only_renews_its_lease(queue: JobQueue, store: redis.Redis) -> None:
    # Every starting worker can offer its runs at any time.
    serve(queue)
    claimed = submit_and_claim(queue)
    queue.runs.started(1, claimed.token, lease_s=300, log_path="/l", devices=())
    before = len(queue.outbox.events("0-0"))
    store.zadd("{gq}:leases", {"1": 1})

    assert JobState.RUNNING is queue.runs.adopt(of_claim(claimed), lease_s=300)
    assert (store.zscore("{gq}:leases", "1") or 0) > queue.now_ms()
    queue.jobs.cancel(1)
    assert JobState.CANCELLING is queue.runs.adopt(of_claim(claimed), lease_s=300)
    assert before + 1 == len(queue.outbox.events("0-0"))


def test_a_run_with_an_id_beyond_the_maximum_is_not_adopted(rebuilt: JobQueue) -> None:
    # Its directory was damaged, and all later jobs would have had the same id.
    assert rebuilt.runs.adopt(stray(2**52 + 1), lease_s=300) is None

    assert 101 == submit(rebuilt)
    assert JobState.RUNNING is rebuilt.runs.adopt(stray(2**52), lease_s=300)
    assert [2**52 + 1, 2**52 + 2] == [submit(rebuilt) for _ in range(2)]


def test_the_adoption_of_a_claimed_run_records_its_start(queue: JobQueue) -> None:
    # The history has only the claim and needs the log path.
    serve(queue)
    claimed = submit_and_claim(queue)

    assert JobState.RUNNING is queue.runs.adopt(of_claim(claimed), lease_s=300)

    event = last_event(queue)
    assert (Act.ADOPT, {"token", "claimed", "started"}) == (event.act, set(event.fields))


def test_a_run_that_ended_for_the_store_is_not_adopted_as_two_copies_would_live(queue: JobQueue) -> None:
    # It was lost and its job waits again, or the job has another run.
    serve(queue)
    first = submit_and_claim(queue)
    queue.runs.lose(1, first.token, loss_limit=3, detail="no worker renewed its lease in time")

    assert queue.runs.adopt(of_claim(first), lease_s=300) is None
    second = must_claim(queue)
    assert queue.runs.adopt(of_claim(first), lease_s=300) is None
    assert second.token != first.token
    assert finish(queue, second.token)
    assert queue.runs.adopt(of_claim(first), lease_s=300) is None


def test_a_reported_end_is_known_until_it_is_in_the_history(queue: JobQueue) -> None:
    # The run directory is reserved for as long.
    serve(queue)
    claimed = submit_and_claim(queue)
    finish(queue, claimed.token)
    epoch = queue.epoch()
    assert epoch is not None

    assert JobState.SUCCEEDED is queue.runs.adopt(of_claim(claimed), lease_s=300)
    assert {claimed.token: JobState.SUCCEEDED} == queue.runs.unrecorded(epoch, {1: claimed.token})
    assert {} == queue.runs.unrecorded(epoch, {1: "1.other"})
    assert queue.runs.unrecorded("another", {1: claimed.token}) is None


def test_a_cancelled_job_is_not_brought_back_by_its_run(queue: JobQueue) -> None:
    """A job that was cancelled before its worker came is not restored by its run. The run is ended."""
    queue.requests.submit(make_spec())
    queue.jobs.cancel(1)

    assert queue.runs.adopt(stray(), lease_s=300) is None


def test_an_unrecorded_job_of_a_lost_store_is_restored_with_its_run(rebuilt: JobQueue) -> None:
    # The worker's copy of the request is the only one.
    spec = make_spec(name="unheard", time_limit_s=60.0, pool="")

    assert JobState.RUNNING is rebuilt.runs.adopt(stray(7, spec=spec), lease_s=300)

    job = rebuilt.jobs.get(7)
    assert (spec, JobState.RUNNING) == (job.spec, job.state)
    assert [7] == [each.id for each in rebuilt.jobs.live()]
    assert encode_spec(spec) == last_event(rebuilt).fields["spec"]
    assert finish(rebuilt, "1.abc", 7)
    assert 101 == submit(rebuilt)


@pytest.mark.parametrize(("kind", "meant"), [(DeviceKind.GPU, "gpu"), (DeviceKind.CPU, None)])
def test_a_job_that_was_made_up_of_a_run_on_a_gpu_goes_on_only_there(
    rebuilt: JobQueue, kind: DeviceKind, meant: str | None
) -> None:
    """A job created from a run on a GPU is bound to GPUs, should the run be lost."""
    # Its request has no device filter, and no GPU may be known by then.
    uuid = "GPU-0" if kind is DeviceKind.GPU else "cpu-0"
    assert rebuilt.runs.adopt(stray(7, devices=(replace(DEVICE, kind=kind, uuid=uuid),)), lease_s=300)
    assert meant == last_event(rebuilt).fields.get("meant")
    rebuilt.devices.withdraw("nodeA", "GPU-0")

    rebuilt.runs.lose(7, "1.abc", loss_limit=3, detail="gone")
    serve(rebuilt, make_offer(device=make_device("cpu-0", kind=DeviceKind.CPU)))

    assert (claim(rebuilt, "cpu-0") is None) == (meant is not None)


def test_a_job_that_ended_is_never_made_up_again(rebuilt: JobQueue, store_url: str) -> None:
    # The history had all jobs up to 5, so a missing job up to 5 has ended. Jobs 101 and 7 were in this store, and the
    # history has them by now.
    rebuilt.requests.submit(make_spec())
    assert rebuilt.runs.adopt(stray(7), lease_s=300)
    client = connect(store_url)
    for job_id in (7, 101):
        client.delete("{gq}:j:" + str(job_id))  # as settle.lua does

    assert [None] * 4 == [rebuilt.runs.adopt(stray(each), lease_s=300) for each in (3, 5, 7, 101)]
    client.close()


def test_a_job_cannot_be_created_from_a_run_without_a_readable_spec(rebuilt: JobQueue) -> None:
    # The spec is damaged, missing in that older version, or invalid.
    for payload in (None, "", "{", "{}"):
        assert rebuilt.runs.adopt(stray(7, payload=payload), lease_s=300) is None
    assert [] == rebuilt.jobs.live()


def test_a_run_keeps_its_id_if_store_and_history_are_lost(store_url: str) -> None:
    # No new job gets that id, and runs with lower ids are adopted later as well.
    queue = JobQueue(store_url)
    queue.recovery.open(0)

    assert JobState.RUNNING is queue.runs.adopt(stray(9), lease_s=300)
    assert JobState.RUNNING is queue.runs.adopt(stray(4), lease_s=300)
    assert 10 == submit(queue)
    queue.close()


def test_a_run_is_not_taken_for_that_of_another_job_of_the_same_id(queue: JobQueue) -> None:
    # After the loss of the store and the history ids start again.
    queue.requests.submit(make_spec(name="new"))

    assert queue.runs.adopt(stray(1, spec=make_spec(name="old")), lease_s=300) is None
    assert JobState.QUEUED is queue.jobs.get(1).state


def test_a_run_on_several_devices_gets_its_memory_on_each(queue: JobQueue) -> None:
    serve(queue, make_offer("GPU-0"), make_offer("GPU-1"))
    spec = make_spec(gpus=2)
    queue.requests.submit(spec)

    queue.runs.adopt(stray(spec=spec, devices=(DEVICE, replace(DEVICE, uuid="GPU-1"))), lease_s=300)

    assert [GIB, GIB] == [device.allocated_bytes for device in queue.devices.all()]
    assert finish(queue, "1.abc")
    assert [0, 0] == [device.allocated_bytes for device in queue.devices.all()]


def test_the_start_kind_of_an_earlier_run_is_not_that_of_a_later_one(queue: JobQueue) -> None:
    # The claim of the offered run was lost with the store, so its start kind is None.
    serve(queue)
    queue.requests.submit(make_spec())
    queue.runs.lose(1, must_claim(queue).token, loss_limit=3, detail="gone")

    assert JobState.RUNNING is queue.runs.adopt(stray(token="2.abc"), lease_s=300)

    record = queue.jobs.record(1)
    assert ("2.abc", None) == (record.last_run.token, record.last_run.start_kind)


def test_a_run_that_was_alone_on_its_card_is_alone_again(rebuilt: JobQueue) -> None:
    # The history records that it holds all memory of the card.
    alone = make_spec(placement=Placement(exclusive=True, models=("test",)))
    assert JobState.RUNNING is rebuilt.runs.adopt(stray(50, spec=alone), lease_s=300)
    adopted = last_event(rebuilt)

    assert str(24 * GIB) == adopted.fields["lease"]
    (status,) = rebuilt.devices.all()
    assert (True, 24 * GIB, 0) == (status.exclusive, status.allocated_bytes, status.free_bytes)
    rebuilt.requests.submit(make_spec())
    assert claim(rebuilt) is None
    rebuilt.devices.heartbeat(make_offer(), [Alive(job_id=50, token="1.abc", observed={"GPU-0": 1})], lease_s=300)
    assert claim(rebuilt) is None
    assert finish(rebuilt, "1.abc", 50)
    assert claim(rebuilt) is not None
