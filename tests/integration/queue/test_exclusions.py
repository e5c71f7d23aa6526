"""A host that cannot start a job gives it back and is excluded for it; without another host the job is held."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
from factories import claim, end, job_of, make_device, make_offer, make_spec, must_claim, serve, submit
from store_dump import dump, faults

from gpuqueue.model.array import Array
from gpuqueue.model.device import DeviceKind
from gpuqueue.model.job import JobState, WaitReason
from gpuqueue.model.placement import Placement
from gpuqueue.model.retries import Retries
from gpuqueue.queue.connect import connect
from gpuqueue.queue.drains import DrainOrigin
from gpuqueue.queue.evidence import Evidence
from gpuqueue.queue.explanation import Explanation, Obstacle
from gpuqueue.queue.jobqueue import JobQueue
from gpuqueue.queue.lease import Claim
from gpuqueue.text.units import GIB

MISSING = "cannot enter the working directory /home/ann/proj: No such file or directory"
#: The hosts of these tests, each with one device.
SITE = {"h1": "GPU-1", "h2": "GPU-2"}


@pytest.fixture
def site(queue: JobQueue, store_url: str) -> Iterator[JobQueue]:
    """Return a queue with two hosts. After each test the store must have no faults."""
    for host, uuid in SITE.items():
        serve(queue, make_offer(uuid, host=host, slots=100))
    yield queue
    client = connect(store_url)
    assert [] == faults(dump(client))
    client.close()


def take(queue: JobQueue, host: str) -> Claim | None:
    """Claim a job on this host."""
    return claim(queue, SITE[host], host=host, worker=f"{host}/{SITE[host]}/1")


def refuse(queue: JobQueue, host: str, why: str = MISSING, **more: Evidence) -> JobState | None:
    """Claim a job on this host, and report that the host cannot start it."""
    claimed = take(queue, host)
    return queue.runs.exclude_host(claimed.job_id, claimed.token, why, **more)


def explain(queue: JobQueue, job_id: int) -> Explanation:
    """Return why a waiting job does not run."""
    found = queue.jobs.why(job_id)
    assert found is not None
    return found


def test_a_host_that_cannot_start_a_job_gets_it_no_more(site: JobQueue) -> None:
    """27 of 40 jobs failed for good on a host without their directory, in milliseconds each."""
    # The start counts as no attempt, the host gets other jobs, and ``why`` names the host with the reason.
    job = submit(site)

    assert JobState.QUEUED is refuse(site, "h1")

    assert take(site, "h1") is None
    other = submit(site, cwd="/tmp")
    found = take(site, "h1")
    assert other == found.job_id
    assert {"h1": (Obstacle.EXCLUDED, MISSING), "h2": (Obstacle.FITS, None)} == {
        each.host: (each.obstacle, each.cannot_start) for each in explain(site, job).devices
    }
    actual = (job_of(site, job).attempt, job_of(site, job).state, job_of(site, job).reason)
    assert (0, JobState.QUEUED, WaitReason.MEMORY) == actual
    elsewhere = take(site, "h2")
    assert (job, 1) == (elsewhere.job_id, elsewhere.attempt)


def test_a_job_that_no_host_can_start_is_held_with_the_reasons(site: JobQueue) -> None:
    job = submit(site, placement=Placement(models=("test",)))
    refuse(site, "h1")

    assert JobState.HELD is refuse(site, "h2", "cannot start /opt/py: No such file or directory")

    held = job_of(site, job)
    because = f"no host can start it: h1: {MISSING}; h2: cannot start /opt/py: No such file or directory"
    assert (JobState.HELD, WaitReason.CANNOT_START, because) == (held.state, held.reason, held.because)
    assert [None, None] == [take(site, host) for host in SITE]
    site.jobs.release(job)
    assert job_of(site, job).because is None
    again = take(site, "h1")
    assert job == again.job_id


def test_a_silent_host_may_still_start_the_job(site: JobQueue) -> None:
    # Once it is withdrawn, it does not.
    first = submit(site)
    site.devices.drain(["GPU-2"], origin=DrainOrigin.PERSON, why="", by="")
    assert JobState.QUEUED is refuse(site, "h1")
    assert WaitReason.DRAINED is job_of(site, first).reason

    site.devices.withdraw("h2", "GPU-2")
    site.requests.submit(make_spec())
    assert JobState.HELD is refuse(site, "h1")


def test_a_host_whose_devices_the_job_cannot_use_does_not_keep_it_waiting(site: JobQueue) -> None:
    site.requests.submit(make_spec(placement=Placement(devices=("GPU-1",))))
    assert JobState.HELD is refuse(site, "h1")


def test_a_job_with_retries_is_tried_again_later(site: JobQueue) -> None:
    """``--retries`` covers a start that failed everywhere: a file server may come back. Then each host tries again."""
    job = submit(site, retries=Retries(times=1))
    refuse(site, "h1")

    assert JobState.QUEUED is refuse(site, "h2")

    waiting = job_of(site, job)
    assert (WaitReason.RETRY, 1, 0) == (waiting.reason, waiting.retries, waiting.attempt)
    assert 9 < waiting.begins_at.timestamp() - site.now_ms() / 1000 <= 10
    client = connect(site.url)
    client.hset(f"{{gq}}:j:{job}", "nb", 1)
    client.zadd("{gq}:timers", {str(job): 1})
    refuse(site, "h1")
    assert JobState.HELD is refuse(site, "h2")


def test_an_array_meets_a_bad_host_once(site: JobQueue) -> None:
    """The host is excluded for all members that wait, so 40 members make one round trip and not 40."""
    array = submit(site, array=Array.parse("0-39"), mem_bytes=GIB // 64)

    assert JobState.QUEUED is refuse(site, "h1")

    assert take(site, "h1") is None
    ran = 0
    while (claimed := take(site, "h2")) is not None:
        ran += 1
        end(site, claimed)
    assert (40, JobState.SUCCEEDED) == (ran, job_of(site, array).state)


def test_an_array_that_no_host_can_start_is_held_as_a_whole(site: JobQueue) -> None:
    """The members that wait are held with the first one, and a release of the array starts all of them again."""
    array = submit(site, array=Array.parse("0-9"), mem_bytes=GIB // 64)
    refuse(site, "h1")
    beside = take(site, "h2")

    assert JobState.HELD is refuse(site, "h2")

    tally = job_of(site, array).tally
    assert ("", "3-9") == (str(tally.left), str(tally.held))
    assert job_of(site, array).because == f"no host can start it: h1: {MISSING}; h2: {MISSING}"
    assert JobState.HELD is site.runs.exclude_host(beside.job_id, beside.token, MISSING)
    assert JobState.HELD is refuse(site, "h2")  # the member that h1 gave back
    assert [None, None] == [take(site, host) for host in SITE]
    assert site.jobs.part(array, "release") is not None
    assert job_of(site, array).because is None
    assert {"h1", "h2"} == {host for host in SITE if take(site, host) is not None}


def test_the_devices_of_the_host_show_how_many_jobs_in_a_row_it_could_not_start(site: JobQueue) -> None:
    # A run that succeeds ends the count.
    for _ in range(3):
        site.requests.submit(make_spec())
        refuse(site, "h1")
    refusals = {each.host: each.refusals for each in site.devices.all()}
    assert refusals["h2"] is None
    assert refusals["h1"] is not None
    assert (3, MISSING) == (refusals["h1"].jobs, refusals["h1"].why)

    good = submit(site, placement=Placement(devices=("GPU-1",)))
    claimed = take(site, "h1")
    assert good == claimed.job_id
    end(site, claimed, evidence=Evidence(well=True))
    assert [None, None] == [each.refusals for each in site.devices.all()]


def test_a_cancel_that_arrives_before_the_failed_start_wins(site: JobQueue) -> None:
    job = submit(site)
    claimed = take(site, "h1")
    site.jobs.cancel(job)

    assert JobState.CANCELLED is site.runs.exclude_host(job, claimed.token, MISSING)
    assert site.runs.exclude_host(job, claimed.token, MISSING) is None


@pytest.mark.parametrize("array", [None, Array.parse("0-3")])
def test_another_host_without_gpus_may_start_the_job(queue: JobQueue, array: Array | None) -> None:
    """Two hosts serve their CPUs because they found no GPU. The job was held, as if the other could not start it."""
    for host in SITE:
        cpu = make_device(f"cpu-{host}", kind=DeviceKind.CPU, no_gpu="the driver is not loaded")
        serve(queue, make_offer(cpu.uuid, host=host, device=cpu, slots=100))
    submit(queue, mem_bytes=GIB, array=array)

    claimed = must_claim(queue, "cpu-h1", host="h1", worker="h1/cpu-h1/1")
    assert JobState.QUEUED is queue.runs.exclude_host(claimed.job_id, claimed.token, MISSING)

    assert claim(queue, "cpu-h1", host="h1", worker="h1/cpu-h1/1") is None
    assert claim(queue, "cpu-h2", host="h2", worker="h2/cpu-h2/1") is not None


def test_an_edit_gives_each_host_another_try(site: JobQueue) -> None:
    job = submit(site)
    refuse(site, "h1")

    site.requests.edit(job, lambda spec: replace(spec, mem_bytes=2 * GIB))

    assert must_claim(site, "GPU-1", host="h1").job_id == job
