from __future__ import annotations

import pytest
import redis
from factories import BOB, make_device, make_offer, make_spec, must_claim, serve, submit

from gpuqueue.errors import Impossible, StoreNotReady, StoreUnreachable
from gpuqueue.model.event import Act
from gpuqueue.model.job import JobState, WaitReason
from gpuqueue.model.job_spec import Priority
from gpuqueue.queue.jobqueue import JobQueue
from gpuqueue.queue.scripts import Scripts
from gpuqueue.text.units import GIB, MIB


def test_a_submitted_job_waits_and_is_in_the_outbox(queue: JobQueue) -> None:
    """A submitted job waits, and the same script writes it to the outbox, so neither exists without the other."""
    spec = make_spec(env={"A": "\udc80"})

    job = queue.requests.submit(spec)

    assert (1, JobState.QUEUED, WaitReason.DEVICE) == (job.id, *_state_of(queue, job.id))
    assert spec == queue.jobs.get(1).spec
    (event,) = queue.outbox.events("0-0")
    assert (Act.SUBMIT, 1, JobState.QUEUED, 0) == (event.act, event.job_id, event.state, event.attempt)
    assert (1, 0) == queue.jobs.counts()


def _state_of(queue: JobQueue, job_id: int) -> tuple[JobState, WaitReason | None]:
    job = queue.jobs.get(job_id)
    return job.state, job.reason


def test_a_submit_sent_twice_makes_one_job(queue: JobQueue) -> None:
    # The first reply may get lost.
    first = queue.requests.submit(make_spec(), nonce="abc")
    again = queue.requests.submit(make_spec(), nonce="abc")

    assert (first.id, first.submitted_at) == (again.id, again.submitted_at)
    assert 1 == len(queue.outbox.events("0-0"))


def test_what_no_device_could_ever_run_is_refused_at_once(queue: JobQueue) -> None:
    # Cases: 80G where the largest device has 24G, three devices where hosts have two, and a pool without devices.
    serve(queue, make_offer("GPU-0"), make_offer("GPU-1", headroom_bytes=GIB), make_offer("GPU-2", host="nodeB"))

    with pytest.raises(Impossible, match=r"80G asked for, but the largest device can give 24G"):
        queue.requests.submit(make_spec(mem_bytes=80 * GIB))
    with pytest.raises(Impossible, match="no host has more than 2"):
        queue.requests.submit(make_spec(gpus=3))
    with pytest.raises(Impossible, match="24G on each of 2 devices"):
        queue.requests.submit(make_spec(gpus=2, mem_bytes=24 * GIB))
    with pytest.raises(Impossible, match="no device is in pool fast"):
        queue.requests.submit(make_spec(pool="fast"))

    assert [] == queue.outbox.events("0-0")
    assert 24 * GIB == queue.requests.submit(make_spec(mem_bytes=24 * GIB)).spec.mem_bytes


def test_a_submit_counts_whole_mib_as_a_claim_does(queue: JobQueue) -> None:
    # Regression: a job that needed the last half MiB was queued and waited for ever.
    device = make_device(total_bytes=24 * GIB + MIB // 2)
    serve(queue, make_offer(device=device))

    with pytest.raises(Impossible, match="the largest device can give"):
        queue.requests.submit(make_spec(mem_bytes=device.total_bytes))


def test_with_no_device_known_nothing_is_called_impossible(queue: JobQueue) -> None:
    """While no device is known, no job is refused as impossible: the workers may come later."""
    assert JobState.QUEUED is queue.requests.submit(make_spec(mem_bytes=500 * GIB)).state


def test_a_store_that_was_never_opened_takes_no_job(store_url: str) -> None:
    # Its ids would start at 1, and the history may already use those ids.
    unopened = JobQueue(store_url)

    with pytest.raises(StoreNotReady, match="gpuqueue up"):
        unopened.requests.submit(make_spec())
    unopened.close()


def test_a_new_store_continues_above_the_last_id_in_the_history(store_url: str) -> None:
    # Ids are never reused, even after the store lost its data.
    reopened = JobQueue(store_url)

    assert reopened.recovery.open(41)
    assert not reopened.recovery.open(0)
    assert 42 == submit(reopened)
    reopened.close()


def test_a_store_that_is_not_there_is_one_clear_line() -> None:
    """An unreachable store gives one line that says what is wrong and what to do."""
    nowhere = JobQueue("unix:///nonexistent/store.sock")

    with pytest.raises(StoreUnreachable, match=r"does not answer: is it running\? Start it with gpuqueue up"):
        nowhere.requests.submit(make_spec())
    nowhere.close()


def test_live_jobs_are_listed_by_id_page_by_page_whatever_their_priority_or_user(queue: JobQueue) -> None:
    serve(queue)
    ids = [submit(queue, account=BOB, priority=Priority.LOW), submit(queue, priority=Priority.URGENT)]
    must_claim(queue)

    assert ids == [job.id for job in queue.jobs.live()]
    assert ids[1:] == [job.id for job in queue.jobs.live(after=ids[0])]
    assert ids[:1] == [job.id for job in queue.jobs.live(limit=1)]


def test_a_script_given_nonsense_writes_nothing(queue: JobQueue, store: redis.Redis) -> None:
    # A script that fails half-way does not undo its writes. Regression: half a job in the index stopped every claim on
    # every device.
    before = sorted(store.keys("*"))
    scripts = Scripts(store)

    for shape in ("6001000448.0:0:1:", "x", "", "1:0:1"):
        with pytest.raises(redis.ResponseError, match="BADARGS"):
            scripts.run("submit", "ada", 1, 5, shape, 1, "{}", "n", "", "")

    assert before == sorted(store.keys("*"))
    serve(queue)
    assert submit(queue) == must_claim(queue).job_id
