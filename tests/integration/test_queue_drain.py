"""Who keeps a device from new jobs: each origin has its own say, in one real store."""

from __future__ import annotations

import pytest
from factories import claim, make_offer, make_spec, must_claim, serve

from gpuqueue.queue import keys
from gpuqueue.queue.connect import connect
from gpuqueue.queue.drains import BY_PEOPLE, DrainOrigin, drains
from gpuqueue.queue.jobqueue import JobQueue


def drain(queue: JobQueue, origin: DrainOrigin, why: str = "", *uuids: str) -> None:
    """Drain as Ada would."""
    queue.drain(uuids or ("GPU-0",), origin=origin, why=why, by="ada")


def origins(queue: JobQueue) -> list[str]:
    """Return who drained the only device."""
    (device,) = queue.devices()
    return [str(each.origin) for each in device.drains]


def test_a_drain_says_why_by_whom_and_since_when(queue: JobQueue) -> None:
    """What `gpuqueue gpus` shows; the time is the store's. Said again, the newest words count."""
    serve(queue)
    before_ms = queue.now_ms()

    drain(queue, DrainOrigin.PERSON, "fan")
    drain(queue, DrainOrigin.PERSON, 'fan "2" — défaut')

    (said,) = queue.devices()[0].drains
    assert (DrainOrigin.PERSON, 'fan "2" — défaut', "ada") == (said.origin, said.why, said.by)
    assert said.at is not None
    assert before_ms <= round(said.at.timestamp() * 1000) <= queue.now_ms()


def test_up_takes_back_only_what_down_said(queue: JobQueue) -> None:
    """A card that a person keeps for an RMA must not get jobs because its machine was rebooted."""
    serve(queue)
    queue.submit(make_spec())
    drain(queue, DrainOrigin.PERSON, "RMA")
    drain(queue, DrainOrigin.DOWN, "going down")
    assert ["person", "down"] == origins(queue)

    queue.resume(["GPU-0"], origins=[DrainOrigin.DOWN])

    assert ["person"] == origins(queue)
    assert claim(queue) is None
    queue.resume(["GPU-0"], origins=BY_PEOPLE)
    assert 1 == must_claim(queue).job_id


def test_a_person_does_not_open_a_machine_that_is_going_down(queue: JobQueue) -> None:
    """Else `down` would wait for the jobs that it meant to keep out."""
    serve(queue)
    queue.submit(make_spec())
    drain(queue, DrainOrigin.DOWN)
    drain(queue, DrainOrigin.PERSON)

    queue.resume(["GPU-0"], origins=BY_PEOPLE)

    assert ["down"] == origins(queue)
    assert claim(queue) is None


def test_a_person_s_drain_outlives_the_device_s_absence(queue: JobQueue) -> None:
    """`down` withdraws its devices and `up` announces them again; what `down` itself said is gone by then."""
    serve(queue)
    drain(queue, DrainOrigin.PERSON, "RMA")
    drain(queue, DrainOrigin.DOWN)

    queue.withdraw("nodeA", "GPU-0")
    assert [] == queue.devices()
    serve(queue)

    assert ["person"] == origins(queue)


def test_what_runs_goes_on_and_other_devices_claim(queue: JobQueue) -> None:
    """A drain is about new jobs only, and about the devices named only."""
    serve(queue, make_offer("GPU-0"), make_offer("GPU-1"))
    queue.submit(make_spec())
    queue.submit(make_spec())
    running = must_claim(queue, "GPU-0")

    drain(queue, DrainOrigin.PERSON, "", "GPU-0")

    assert claim(queue, "GPU-0") is None
    assert queue.started(running.job_id, running.token, lease_s=300, log_path="/l", devices=()) is not None
    assert 2 == must_claim(queue, "GPU-1").job_id


@pytest.mark.parametrize("text", ["this machine is going down (gpuqueue down)", "12", "[1]", '"down"', "null", "{"])
def test_a_text_of_the_version_before_is_read_as_downs(queue: JobQueue, store_url: str, text: str) -> None:
    """Only `down` could drain then; the upgrade under `down --leave-jobs` must not leave the devices closed."""
    serve(queue)
    client = connect(store_url)
    client.hset(keys.DRAINED, "GPU-0", text)

    (said,) = queue.devices()[0].drains
    assert (DrainOrigin.DOWN, text, None, None) == (said.origin, said.why, said.by, said.at)
    drain(queue, DrainOrigin.PERSON)
    assert ["person", "down"] == origins(queue)
    queue.resume(["GPU-0"], origins=[DrainOrigin.DOWN])
    assert ["person"] == origins(queue)
    queue.resume(["GPU-0"], origins=BY_PEOPLE)
    assert 0 == client.exists(keys.DRAINED)
    client.close()


def test_no_text_is_no_drain() -> None:
    """The common case."""
    assert () == drains(None)
