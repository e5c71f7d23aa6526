"""Drains of a device: each origin drains and resumes independently, in a real store."""

from __future__ import annotations

import json

import pytest
import redis
from factories import claim, end, make_offer, make_spec, must_claim, serve, start, submit, submit_and_claim

from gpuqueue.model.job import WaitReason
from gpuqueue.queue import keys
from gpuqueue.queue.drains import BY_PEOPLE, DrainOrigin
from gpuqueue.queue.evidence import Evidence
from gpuqueue.queue.jobqueue import JobQueue
from gpuqueue.queue.lease import Claim


def drain(queue: JobQueue, origin: DrainOrigin, why: str = "", *uuids: str) -> None:
    """Drain as Ada would."""
    queue.devices.drain(uuids or ("GPU-0",), origin=origin, why=why, by="ada")


def origins(queue: JobQueue) -> list[str]:
    """Return the origins of the drains of the only device."""
    (device,) = queue.devices.all()
    return [str(each.origin) for each in device.drains]


def test_a_drain_records_its_reason_author_and_time_as_gpuqueue_gpus_shows_them(queue: JobQueue) -> None:
    # The time is the store's. A second drain of the same origin replaces the reason.
    serve(queue)
    before_ms = queue.now_ms()

    drain(queue, DrainOrigin.PERSON, "fan")
    drain(queue, DrainOrigin.PERSON, 'fan "2" — défaut')

    (output,) = queue.devices.all()[0].drains
    assert (DrainOrigin.PERSON, 'fan "2" — défaut', "ada") == (output.origin, output.why, output.by)
    assert before_ms <= round(output.at.timestamp() * 1000) <= queue.now_ms()


def test_up_ends_only_the_drains_of_down(queue: JobQueue) -> None:
    # A card that a user drained for an RMA gets no jobs because its machine rebooted.
    serve(queue)
    queue.requests.submit(make_spec())
    drain(queue, DrainOrigin.PERSON, "RMA")
    drain(queue, DrainOrigin.DOWN, "going down")
    assert ["person", "down"] == origins(queue)

    queue.devices.resume(["GPU-0"], origins=[DrainOrigin.DOWN])

    assert ["person"] == origins(queue)
    assert claim(queue) is None
    queue.devices.resume(["GPU-0"], origins=BY_PEOPLE)
    assert 1 == must_claim(queue).job_id


def test_a_users_resume_does_not_remove_the_drain_of_down(queue: JobQueue) -> None:
    # Otherwise `down` would wait for the jobs that it tries to keep out.
    serve(queue)
    queue.requests.submit(make_spec())
    drain(queue, DrainOrigin.DOWN)
    drain(queue, DrainOrigin.PERSON)

    queue.devices.resume(["GPU-0"], origins=BY_PEOPLE)

    assert ["down"] == origins(queue)
    assert claim(queue) is None


def test_a_person_s_drain_outlives_the_device_s_absence(queue: JobQueue) -> None:
    """A user's drain outlives the withdrawal of the device by `down` and its new announcement by `up`."""
    # The drain of `down` itself is gone by then.
    serve(queue)
    drain(queue, DrainOrigin.PERSON, "RMA")
    drain(queue, DrainOrigin.DOWN)

    queue.devices.withdraw("nodeA", "GPU-0")
    assert [] == queue.devices.all()
    serve(queue)

    assert ["person"] == origins(queue)


def test_a_drain_only_stops_new_jobs_and_only_on_the_named_devices(queue: JobQueue) -> None:
    serve(queue, make_offer("GPU-0"), make_offer("GPU-1"))
    queue.requests.submit(make_spec())
    running = submit_and_claim(queue, "GPU-0")

    drain(queue, DrainOrigin.PERSON, "", "GPU-0")

    assert claim(queue, "GPU-0") is None
    assert start(queue, running) is not None
    assert 2 == must_claim(queue, "GPU-1").job_id


@pytest.mark.parametrize("text", ["this machine is going down (gpuqueue down)", "12", "[1]", '"down"', "null", "{"])
def test_a_text_of_the_version_before_is_read_as_downs(queue: JobQueue, store: redis.Redis, text: str) -> None:
    """A drain text of the previous version is read as a drain of `down`, the only origin of that version."""
    # An upgrade under `down --leave-jobs` must not leave the devices drained.
    serve(queue)
    store.hset(keys.DRAINED, "GPU-0", text)

    (output,) = queue.devices.all()[0].drains
    assert (DrainOrigin.DOWN, text, None, None) == (output.origin, output.why, output.by, output.at)
    drain(queue, DrainOrigin.PERSON)
    assert ["person", "down"] == origins(queue)
    queue.devices.resume(["GPU-0"], origins=[DrainOrigin.DOWN])
    assert ["person"] == origins(queue)
    queue.devices.resume(["GPU-0"], origins=BY_PEOPLE)
    assert 0 == store.exists(keys.DRAINED)


# ---- quick deaths ------------------------------------------------------------------------------------------------


def die(queue: JobQueue, why: str = "killed by SIGSEGV", *, lost: bool = False, job_id: int | None = None) -> Claim:
    """Let a job die at once on GPU-0 and report it as its worker would.

    It is a new job, or the waiting job *job_id*.
    """
    if job_id is None:
        queue.requests.submit(make_spec())
    claimed = must_claim(queue)
    assert job_id in {None, claimed.job_id}
    report(queue, claimed, Evidence(against=("GPU-0",), why=why), lost=lost)
    return claimed


def report(queue: JobQueue, claimed: Claim, evidence: Evidence, *, lost: bool = False) -> bool:
    """Report the end of a run twice, because the answer to the first report may get lost."""
    reported = []
    for _ in range(2):
        if lost:
            words = (claimed.job_id, claimed.token)
            reported.append(queue.runs.lose(*words, loss_limit=9, detail="gone", evidence=evidence) is not None)
        else:
            reported.append(end(queue, claimed, -11, evidence=evidence) is not None)
    assert [True, False] == reported
    return reported[0]


def test_three_quick_deaths_in_a_row_drain_the_device(queue: JobQueue) -> None:
    # A device that kills its jobs is always free and would go through the whole queue.
    serve(queue)
    first, second = die(queue), die(queue, "CUDA error: unknown error")
    assert [] == origins(queue)

    third = die(queue, lost=True)

    (output,) = queue.devices.all()[0].drains
    assert (DrainOrigin.DEATHS, "gpuqueue") == (output.origin, output.by)
    assert output.at is not None
    assert (
        f"job {first.job_id} (killed by SIGSEGV), job {second.job_id} (CUDA error: unknown error), "
        f"job {third.job_id} (killed by SIGSEGV); look at their logs and at nvidia-smi, then: gpuqueue resume GPU-0"
    ) in output.why
    assert claim(queue) is None


def test_a_repeated_report_of_a_death_counts_once(queue: JobQueue, store: redis.Redis) -> None:
    # The step that ends the run counts the death, and a second report of the end is stale.
    serve(queue)
    die(queue)
    die(queue)

    assert 2 == len(json.loads(store.hget(keys.DEATHS, "GPU-0")))
    assert [] == origins(queue)


def test_repeated_deaths_of_one_job_do_not_drain_the_device(queue: JobQueue) -> None:
    # The loss limit holds that job.
    serve(queue)
    first = die(queue, lost=True)
    for _ in range(4):
        die(queue, lost=True, job_id=first.job_id)

    assert [] == origins(queue)


@pytest.mark.parametrize("resets", [True, False])
def test_a_run_that_goes_well_ends_the_row_and_one_that_says_nothing_does_not(queue: JobQueue, *, resets: bool) -> None:
    """A run that goes well resets the row of deaths, and a run without evidence does not."""
    # An ImportError between two crashes proves nothing. An hour of training does.
    serve(queue)
    die(queue)
    die(queue)
    queue.requests.submit(make_spec())
    report(queue, must_claim(queue), Evidence(well=True) if resets else Evidence())

    die(queue)

    assert ([] if resets else ["deaths"]) == origins(queue)


def test_a_run_that_goes_well_elsewhere_says_nothing_here(queue: JobQueue) -> None:
    """A run that goes well on another device does not reset the row: each device has its own."""
    serve(queue, make_offer("GPU-0"), make_offer("GPU-1"))
    die(queue)
    die(queue)
    queue.requests.submit(make_spec())
    report(queue, must_claim(queue, "GPU-1"), Evidence(well=True))

    die(queue)

    assert [1, 0] == [len(each.drains) for each in queue.devices.all()]


def test_a_run_on_several_devices_is_evidence_for_each(queue: JobQueue) -> None:
    """The death of a run on several devices counts against each of them, because the cause is unknown."""
    # A run that goes well on one device resets the row of that device only.
    serve(queue, make_offer("GPU-0"), make_offer("GPU-1"))
    for _ in range(3):
        queue.requests.submit(make_spec(gpus=2))
        report(queue, must_claim(queue), Evidence(against=("GPU-0", "GPU-1"), why="killed by SIGKILL"))
        queue.requests.submit(make_spec())
        report(queue, must_claim(queue, "GPU-1"), Evidence(well=True))

    assert [["deaths"], []] == [[str(output.origin) for output in each.drains] for each in queue.devices.all()]


def test_resumed_the_device_starts_with_a_clean_slate(queue: JobQueue) -> None:
    """A resume resets the row of deaths: one more death is not the third of a row."""
    # While the first drain lasts, its reason stays unchanged.
    serve(queue)
    running = [queue.requests.submit(make_spec()) and must_claim(queue) for _ in range(6)]
    for claimed in running[:3]:
        report(queue, claimed, Evidence(against=("GPU-0",), why="killed by SIGSEGV"))
    (first,) = queue.devices.all()[0].drains
    for claimed in running[3:]:
        report(queue, claimed, Evidence(against=("GPU-0",), why="killed by SIGBUS"))
    assert (first,) == queue.devices.all()[0].drains

    queue.devices.resume(["GPU-0"], origins=[DrainOrigin.DOWN])
    assert ["deaths"] == origins(queue)
    queue.devices.resume(["GPU-0"], origins=BY_PEOPLE)

    assert [] == origins(queue)
    die(queue)
    die(queue)
    assert [] == origins(queue)


def test_people_may_resume_before_the_third(queue: JobQueue) -> None:
    """A user's resume resets the row of deaths even before the third, because that user has just checked the card."""
    serve(queue)
    die(queue)
    die(queue)
    queue.devices.resume(["GPU-0"], origins=BY_PEOPLE)

    die(queue)

    assert [] == origins(queue)


def test_the_worker_gets_the_drain_with_its_next_heartbeat_so_that_it_can_log_it(queue: JobQueue) -> None:
    serve(queue)
    for _ in range(3):
        die(queue)

    (output,) = queue.devices.heartbeat(make_offer(), [], lease_s=300).drains

    assert "died one after the other" in output.why


def test_a_damaged_row_keeps_no_run_from_ending(queue: JobQueue, store: redis.Redis) -> None:
    # The count is not worth a job that cannot be finished.
    serve(queue)
    store.hset(keys.DEATHS, "GPU-0", "[1")

    die(queue)

    assert "[1" == store.hget(keys.DEATHS, "GPU-0")
    queue.requests.submit(make_spec())
    report(queue, must_claim(queue), Evidence(well=True))
    assert 0 == store.exists(keys.DEATHS)


def test_a_job_that_only_drained_devices_could_take_says_so(queue: JobQueue) -> None:
    # "memory" would be wrong, because plenty may be free. A device of another pool changes nothing.
    serve(queue, make_offer("GPU-0"), make_offer("GPU-1", pool="fast"))
    job_id = submit(queue, pool="fast")
    queue.devices.drain(["GPU-1"], origin=DrainOrigin.PERSON, why="fan", by="ada")

    assert [(job_id, WaitReason.DRAINED)] == [(job.id, job.reason) for job in queue.jobs.live()]
    queue.devices.resume(["GPU-1"], origins=[DrainOrigin.PERSON])
    assert [WaitReason.MEMORY] == [job.reason for job in queue.jobs.live()]


def test_a_job_waits_with_reason_silent_if_the_workers_of_its_devices_are_silent(
    queue: JobQueue, store: redis.Redis
) -> None:
    # Regression: the reason was "memory" on a host that was gone, with all of its memory free.
    serve(queue, make_offer("GPU-0"), make_offer("GPU-1"))
    queue.requests.submit(make_spec(gpus=2))
    queue.requests.submit(make_spec())
    record = store.hget(keys.host_devices("nodeA"), "GPU-0").split(":")
    record[3] = str(queue.now_ms() - 20_000)
    store.hset(keys.host_devices("nodeA"), "GPU-0", ":".join(record))

    assert [WaitReason.SILENT, WaitReason.MEMORY] == [job.reason for job in queue.jobs.live()]
    queue.devices.drain(["GPU-1"], origin=DrainOrigin.PERSON, why="fan", by="ada")
    assert [WaitReason.DRAINED, WaitReason.SILENT] == [job.reason for job in queue.jobs.live()]


def test_a_job_on_several_devices_of_which_one_is_drained_says_so(queue: JobQueue) -> None:
    # Regression: the reason was "memory", with both cards empty.
    serve(queue, make_offer("GPU-0"), make_offer("GPU-1"))
    queue.devices.drain(["GPU-1"], origin=DrainOrigin.PERSON, why="fan", by="ada")
    queue.requests.submit(make_spec(gpus=2))

    assert [WaitReason.DRAINED] == [job.reason for job in queue.jobs.live()]
