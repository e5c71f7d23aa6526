"""Jobs that died for lack of device memory: when the store queues them again, and with how much."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise

import pytest
import redis
from factories import BOB, claim, end, job_of, make_device, make_offer, make_spec, must_claim, offered, serve
from history_fixtures import Recorded
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from outbox import known
from store_dump import dump, faults

from gpuqueue.model.array import Array
from gpuqueue.model.dependencies import Condition, Dependency, Waits
from gpuqueue.model.device import DeviceKind
from gpuqueue.model.job import JobState
from gpuqueue.model.limits import Limits
from gpuqueue.model.mem_source import Shortage
from gpuqueue.model.placement import ANYWHERE, Placement
from gpuqueue.model.retries import Retries, RetryOn
from gpuqueue.model.run import Ending, EndingKind, RunDevice
from gpuqueue.queue import job_fields as stored
from gpuqueue.queue import keys
from gpuqueue.queue.connect import connect
from gpuqueue.queue.jobqueue import JobQueue
from gpuqueue.queue.lease import Claim, ExternalProcess, Offer
from gpuqueue.text.units import GIB, MIB

DIED = Ending.stopped(EndingKind.OUT_OF_MEMORY, 1, "asked 6G")
NOTHING_KNOWN = Shortage()
BLAMED = Shortage(peak_bytes=2 * GIB, blamed="pid 4711 of alice (python train.py, 9.1G)")

#: After each test the store must have no faults.
pytestmark = pytest.mark.usefixtures("store")


@pytest.fixture
def backend() -> str:
    """Return the kind of history database; tests/contract has both."""
    return "sqlite"


@pytest.fixture
def store(queue: JobQueue) -> Iterator[redis.Redis]:
    """Return a connection to the store, which must have no faults after the test."""
    client = connect(queue.url)
    yield client
    assert [] == faults(dump(client))
    client.close()


def card(uuid: str, gib: int, **changes: object) -> Offer:
    """Return the offer of an empty card of so many GiB."""
    return make_offer(uuid, **{"device": make_device(uuid, total_bytes=gib * GIB), **changes})


def die(queue: JobQueue, run: Claim, facts: Shortage | None = NOTHING_KNOWN, ending: Ending = DIED) -> JobState | None:
    """Report the end of a run that died for lack of memory."""
    held = tuple(RunDevice(uuid=uuid, lease_bytes=run.lease_bytes) for uuid in run.devices)
    return queue.runs.finish(
        run.job_id, run.token, state=JobState.FAILED, ending=ending, duration_s=60.0, devices=held, shortage=facts
    )


def submit(queue: JobQueue, **changes: object) -> int:
    """Submit a job that asks for 6 GiB unless *changes* say otherwise, and return its id."""
    return queue.requests.submit(make_spec(**{"mem_bytes": 6 * GIB, **changes})).id


def last_fields(queue: JobQueue) -> dict[str, str]:
    """Return the fields of the newest event, without the report of the end."""
    return {
        name: text for name, text in queue.outbox.events("0-0")[-1].fields.items() if name not in {"ended", "token"}
    }


def test_the_next_run_gets_twice_as_much_and_says_so(queue: JobQueue) -> None:
    """The job is queued again at once, asks for twice as much, and its worker learns that from the claim."""
    serve(queue)
    job_id = submit(queue, mem_source="asked")
    first = must_claim(queue)

    assert JobState.QUEUED is die(queue, first)

    job = job_of(queue, job_id)
    actual = (job.spec.mem_bytes, job.spec.mem_source, job.mem_retries, job.retries, job.attempt)
    assert (12 * GIB, "out_of_memory", 1, 0, 1) == actual
    assert {"again": "out_of_memory", "mem": str(12 * GIB), "mem_retries": "1", "mem_allowed": "2"} == {
        name: text
        for name, text in last_fields(queue).items()
        if name in {"again", "mem", "mem_retries", "mem_allowed"}
    }
    again = must_claim(queue)
    assert (job_id, 2, 12 * GIB, 12 * GIB) == (again.job_id, again.attempt, again.lease_bytes, again.spec.mem_bytes)
    assert die(queue, first) is None  # a report that is sent twice changes nothing
    assert 1 == job_of(queue, job_id).mem_retries


def test_a_failed_allocation_counts_if_it_asks_for_more(queue: JobQueue) -> None:
    """The peak and the allocation that failed count if they are more than twice the request."""
    serve(queue)
    job_id = submit(queue)

    die(queue, must_claim(queue), Shortage(peak_bytes=5 * GIB, tried_bytes=9 * GIB))

    assert 14 * GIB == job_of(queue, job_id).spec.mem_bytes


def test_a_job_is_queued_again_twice_and_after_the_third_lack_of_memory_it_fails(queue: JobQueue) -> None:
    # The reason is in the event.
    serve(queue)
    job_id = submit(queue, mem_bytes=2 * GIB)
    states = [die(queue, must_claim(queue)) for _ in range(3)]

    assert [JobState.QUEUED, JobState.QUEUED, JobState.FAILED] == states
    assert (8 * GIB, 2) == (job_of(queue, job_id).spec.mem_bytes, job_of(queue, job_id).mem_retries)
    assert {"mem_refused": "times", "mem_retries": "2"} == last_fields(queue)


@pytest.mark.parametrize("changes", [{"retries": Retries(mem_times=0)}, {"requeue": False}])
def test_mem_retries_0_and_no_requeue_turn_it_off_without_a_word_about_it(
    queue: JobQueue, changes: dict[str, object]
) -> None:
    serve(queue)
    job_id = submit(queue, **changes)

    assert JobState.FAILED is die(queue, must_claim(queue))
    actual = (job_of(queue, job_id).spec.mem_bytes, job_of(queue, job_id).mem_retries, last_fields(queue))
    assert (6 * GIB, 0, {}) == actual


def test_without_the_workers_facts_as_for_host_memory_the_job_fails_as_before(queue: JobQueue) -> None:
    serve(queue)
    killed = submit(queue)
    assert JobState.FAILED is die(queue, must_claim(queue), None, Ending.from_status(-9))
    unknown = submit(queue)
    assert JobState.FAILED is die(queue, must_claim(queue), None)

    assert [6 * GIB, 6 * GIB] == [job_of(queue, each).spec.mem_bytes for each in (killed, unknown)]


def test_a_cancel_wins_over_a_lack_of_memory(queue: JobQueue) -> None:
    serve(queue)
    job_id = submit(queue)
    run = must_claim(queue)
    queue.runs.started(job_id, run.token, lease_s=300, log_path="/l", devices=())
    queue.jobs.cancel(job_id)

    assert JobState.FAILED is die(queue, run)
    assert 0 == job_of(queue, job_id).mem_retries


def test_the_largest_device_that_the_job_may_use_is_the_most(queue: JobQueue) -> None:
    """A job asks for at most what a device of its own can give, less the headroom. Then it fails and says that."""
    serve(
        queue,
        card("GPU-0", 8, slots=1),
        card("GPU-1", 10, headroom_bytes=512 * MIB),
        card("GPU-2", 80, pool="big"),
        make_offer("cpu-a", device=make_device("cpu-a", kind=DeviceKind.CPU, total_bytes=500 * GIB)),
    )
    job_id = submit(queue, placement=Placement(devices=("GPU-0", "GPU-1")))

    assert JobState.QUEUED is die(queue, must_claim(queue))
    assert 9 * GIB + 512 * MIB == job_of(queue, job_id).spec.mem_bytes
    assert claim(queue) is None  # it fits on the other device only
    assert JobState.FAILED is die(queue, must_claim(queue, "GPU-1"))
    assert {"mem_refused": "devices", "mem_most": str(9 * GIB + 512 * MIB)} == last_fields(queue)


def test_memory_of_the_driver_is_not_given(queue: JobQueue) -> None:
    """External memory of no known process is the driver's: it is not asked for, or the job would wait for ever."""
    serve(queue, make_offer(external_bytes=GIB + MIB))
    job_id = submit(queue, mem_bytes=20 * GIB)

    assert JobState.QUEUED is die(queue, must_claim(queue, external_bytes=GIB + MIB))
    assert 23 * GIB - 64 * MIB == job_of(queue, job_id).spec.mem_bytes


def test_memory_of_external_processes_is_asked_for(queue: JobQueue) -> None:
    # It used to fail: no device gave enough at the time.
    notebook = ExternalProcess(pid=1, held_bytes=13 * GIB, user="eve", command="python", counted_bytes=13 * GIB)
    serve(queue, make_offer(external_bytes=14 * GIB, external_processes=(notebook,)))
    job_id = submit(queue, mem_bytes=10 * GIB)

    assert JobState.QUEUED is die(queue, must_claim(queue, external_bytes=14 * GIB))
    assert 20 * GIB == job_of(queue, job_id).spec.mem_bytes


def test_external_processes_that_ended_are_not_subtracted_twice(queue: JobQueue) -> None:
    """The worker lists external processes with a heartbeat; the memory itself is newer."""
    # A job that died just after a process had ended got the driver's own memory as well, and waited for ever.
    notebook = ExternalProcess(pid=1, held_bytes=20 * GIB, user="eve", command="python", counted_bytes=20 * GIB)
    serve(queue, make_offer(external_bytes=21 * GIB, external_processes=(notebook,)))
    job_id = submit(queue, mem_bytes=12 * GIB)

    assert JobState.QUEUED is die(queue, must_claim(queue, external_bytes=GIB))
    assert 23 * GIB == job_of(queue, job_id).spec.mem_bytes


def test_a_worker_of_an_older_version_does_not_report_the_drivers_memory(queue: JobQueue, store: redis.Redis) -> None:
    """Then the external memory of the moment is not asked for: a job must not wait for memory that never comes."""
    serve(queue)
    store.hset(keys.SEEN, "GPU-0", '{"trouble": null, "blind": false, "external_processes": []}')
    job_id = submit(queue, mem_bytes=12 * GIB)

    assert JobState.QUEUED is die(queue, must_claim(queue, external_bytes=GIB))
    assert 23 * GIB == job_of(queue, job_id).spec.mem_bytes


def test_a_job_on_two_devices_gets_what_the_second_largest_of_one_host_can_give(queue: JobQueue) -> None:
    serve(queue, card("GPU-0", 24), card("GPU-1", 10), card("GPU-2", 40, host="nodeB"))
    job_id = submit(queue, gpus=2)

    assert JobState.QUEUED is die(queue, must_claim(queue))
    assert 10 * GIB == job_of(queue, job_id).spec.mem_bytes


def test_an_exclusive_job_had_the_whole_device(queue: JobQueue) -> None:
    """A job that was alone on its device had all of it: only a larger device helps."""
    serve(queue)
    alone = submit(queue, placement=Placement(exclusive=True))
    assert JobState.FAILED is die(queue, must_claim(queue))
    assert {"mem_refused": "devices", "mem_most": str(24 * GIB)} == last_fields(queue)

    serve(queue, make_offer(), card("GPU-1", 80))
    alone = submit(queue, placement=Placement(exclusive=True))
    assert JobState.QUEUED is die(queue, must_claim(queue))
    assert 48 * GIB == job_of(queue, alone).spec.mem_bytes
    assert claim(queue) is None
    assert (alone, 80 * GIB) == ((run := must_claim(queue, "GPU-1")).job_id, run.lease_bytes)


def test_where_others_took_the_memory_the_job_asks_for_the_same_again(queue: JobQueue) -> None:
    # That counts as well: it is bounded.
    serve(queue)
    job_id = submit(queue)

    assert JobState.QUEUED is die(queue, must_claim(queue), BLAMED)

    assert (6 * GIB, None, 1) == ((job := job_of(queue, job_id)).spec.mem_bytes, job.spec.mem_source, job.mem_retries)
    assert (str(6 * GIB), BLAMED.blamed) == (last_fields(queue)["mem"], last_fields(queue)["blamed"])
    assert JobState.QUEUED is die(queue, must_claim(queue), BLAMED)
    assert JobState.FAILED is die(queue, must_claim(queue), BLAMED)


def test_a_job_gets_no_more_than_limits_allow_and_fails_where_they_allow_no_more(queue: JobQueue) -> None:
    serve(queue)
    queue.rules.set_limits(Limits.parse("*: running_mem=9G", "", {}))
    job_id = submit(queue)

    assert JobState.QUEUED is die(queue, must_claim(queue))
    assert 9 * GIB == job_of(queue, job_id).spec.mem_bytes
    assert JobState.FAILED is die(queue, must_claim(queue))
    assert {"mem_refused": "limit"} == last_fields(queue)


def test_the_lowest_of_several_limits_holds(queue: JobQueue) -> None:
    # With three of them the job used to fail.
    serve(queue)
    job_id = submit(queue, mem_bytes=12 * GIB)
    limits = "ada: running_mem=18G; @lab: running_mem=14G"
    queue.rules.set_limits(Limits.parse(limits, "*: max_mem=20G", {"lab": ("ada", "bob")}))

    assert JobState.QUEUED is die(queue, must_claim(queue))
    assert 14 * GIB == job_of(queue, job_id).spec.mem_bytes


def test_the_next_run_waits_until_the_users_other_runs_leave_room(queue: JobQueue) -> None:
    # It used to be refused, so the job failed.
    serve(queue, card("GPU-0", 24), card("GPU-1", 24))
    queue.rules.set_limits(Limits.parse("*: running_mem=30G/refuse", "", {}))
    submit(queue, mem_bytes=10 * GIB)
    must_claim(queue, "GPU-1")
    job_id = submit(queue, mem_bytes=12 * GIB)

    assert JobState.QUEUED is die(queue, must_claim(queue))
    assert 24 * GIB == job_of(queue, job_id).spec.mem_bytes


def test_a_larger_device_than_a_limit_allows_is_not_asked_for(queue: JobQueue) -> None:
    serve(queue, make_offer(), card("GPU-1", 80))
    queue.rules.set_limits(Limits.parse("*: running_mem=60G", "", {}))
    submit(queue, placement=Placement(exclusive=True))

    assert JobState.FAILED is die(queue, must_claim(queue))
    assert {"mem_refused": "limit"} == last_fields(queue)


def test_the_runs_after_a_lack_of_memory_use_up_no_retry(queue: JobQueue) -> None:
    # The retries begin when they are used up.
    serve(queue)
    job_id = submit(queue, retries=Retries(times=1, on=(RetryOn.OUT_OF_MEMORY,), mem_times=1))

    assert JobState.QUEUED is die(queue, must_claim(queue))
    assert (0, 1) == ((job := job_of(queue, job_id)).retries, job.mem_retries)
    assert JobState.QUEUED is die(queue, must_claim(queue))
    assert (1, 1, 12 * GIB) == ((job := job_of(queue, job_id)).retries, job.mem_retries, job.spec.mem_bytes)


def test_a_dependent_job_waits_for_the_last_run(queue: JobQueue) -> None:
    """A job that waits for the success of another waits for the run that follows a lack of memory."""
    serve(queue)
    first = submit(queue)
    second = submit(queue, waits=Waits(after=(Dependency(first, Condition.OK),)), mem_bytes=GIB)

    die(queue, must_claim(queue))
    assert job_of(queue, second).awaits
    run = must_claim(queue)
    assert first == run.job_id
    end(queue, run)

    assert second == must_claim(queue).job_id


def test_a_member_of_an_array_gets_more_and_the_others_do_not(queue: JobQueue) -> None:
    """Each member has its own memory and its own count; the array ends when its last member has."""
    serve(queue)
    array = submit(queue, array=Array.parse("0-1"), retries=Retries(mem_times=1))
    first, second = must_claim(queue), must_claim(queue)

    assert JobState.QUEUED is die(queue, first)

    assert (12 * GIB, 1) == ((job := job_of(queue, first.job_id)).spec.mem_bytes, job.mem_retries)
    assert (6 * GIB, 0) == ((job := job_of(queue, second.job_id)).spec.mem_bytes, job.mem_retries)
    again = must_claim(queue)
    assert (first.job_id, 12 * GIB, first.member) == (again.job_id, again.spec.mem_bytes, again.member)
    assert JobState.FAILED is die(queue, again)
    assert JobState.RUNNING is job_of(queue, array).state


def test_an_edit_keeps_what_the_job_got(queue: JobQueue) -> None:
    """An edit of something else keeps the memory; an edit of the memory replaces it; the count stays."""
    serve(queue)
    job_id = submit(queue)
    die(queue, must_claim(queue))

    queue.requests.edit(job_id, lambda spec: replace(spec, name="other"))
    job = job_of(queue, job_id)
    actual = (job.spec.name, job.spec.mem_bytes, job.spec.mem_source, job.mem_retries)
    assert ("other", 12 * GIB, "out_of_memory", 1) == actual
    queue.requests.edit(job_id, lambda spec: replace(spec, mem_bytes=7 * GIB, mem_source="asked"))
    job = job_of(queue, job_id)
    assert (7 * GIB, "asked", 1) == (job.spec.mem_bytes, job.spec.mem_source, job.mem_retries)
    assert 7 * GIB == must_claim(queue).lease_bytes


def test_a_run_that_only_its_worker_knows_keeps_its_memory(queue: JobQueue, store: redis.Redis) -> None:
    """A store without the job takes the run back from its worker, with what the run was given."""
    serve(queue)
    submit(queue)
    die(queue, must_claim(queue))
    run = must_claim(queue)
    store.flushall()
    queue.recovery.open(0)
    serve(queue)

    devices = (RunDevice(uuid="GPU-0", lease_bytes=run.lease_bytes, kind=DeviceKind.GPU, total_bytes=24 * GIB),)

    assert JobState.RUNNING is queue.runs.adopt(offered(run, devices=devices), lease_s=300)
    assert (12 * GIB, 1) == ((job := job_of(queue, run.job_id)).spec.mem_bytes, job.mem_retries)
    assert 12 * GIB == queue.devices.all()[0].allocated_bytes


def test_the_history_records_it_and_restores_it_to_a_lost_store(queue: JobQueue, recorded: Recorded) -> None:
    # A store that is rebuilt from it has them too.
    serve(queue)
    job_id = submit(queue)
    die(queue, must_claim(queue), BLAMED)
    die(queue, must_claim(queue))
    array = submit(queue, array=Array.parse("0-1"), account=BOB)
    member = must_claim(queue, external_bytes=13 * GIB)
    assert array + 1 == member.job_id
    die(queue, member)
    recorded.record()

    job = known(recorded.database, job_id).job
    actual = (job.spec.mem_bytes, job.spec.mem_source, job.mem_retries)
    assert (12 * GIB, "out_of_memory", 2) == actual
    assert [6 * GIB, 6 * GIB] == [run.devices[0].lease_bytes for run in known(recorded.database, job_id).runs]
    assert [
        f"out of memory, because others took its memory: {BLAMED.blamed}; queued again with 6G (memory retry 1 of 2)",
        "out of memory: queued again with 12G (memory retry 2 of 2)",
    ] == [note.text for note in known(recorded.database, job_id).notes]
    before = [job_of(queue, each) for each in (job_id, member.job_id)]

    recorded.rebuild()
    recorded.end_pause()
    serve(queue)

    assert before == [job_of(queue, each) for each in (job_id, member.job_id)]
    assert 12 * GIB == must_claim(queue).lease_bytes
    assert JobState.FAILED is die(queue, must_claim_of(queue, job_id))
    recorded.record()
    assert "out of memory, and not queued again with more: it was queued again 2 times already (--mem-retries)" in [
        note.text for note in known(recorded.database, job_id).notes
    ]


def must_claim_of(queue: JobQueue, job_id: int) -> Claim:
    """Return the claim of a job that was claimed before, for its end."""
    job, token = job_of(queue, job_id), connect(queue.url).hget(keys.job(job_id), stored.TOKEN)
    return Claim(
        job_id=job_id,
        token=str(token),
        attempt=job.attempt,
        spec=job.spec,
        lease_bytes=job.spec.mem_bytes,
        devices=job.devices,
        claimed_ms=0,
        payload="",
    )


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    asked=st.integers(1, 30 * GIB),
    peak=st.none() | st.integers(0, 60 * GIB),
    tried=st.none() | st.integers(0, 2**60),
    placement=st.sampled_from([ANYWHERE, Placement(exclusive=True)]),
)
def test_whatever_is_reported_the_next_request_is_larger_and_fits(
    queue: JobQueue, asked: int, peak: int | None, tried: int | None, placement: Placement
) -> None:
    """Each run gets more than the one before, never more than the largest device gives, and the count is kept."""
    serve(queue, card("GPU-0", 30), card("GPU-1", 30, slots=1))
    job_id = submit(queue, mem_bytes=asked, placement=placement)
    sizes = [asked]
    while JobState.QUEUED is die(queue, must_claim(queue), Shortage(peak_bytes=peak, tried_bytes=tried)):
        sizes.append(job_of(queue, job_id).spec.mem_bytes)

    assert len(sizes) <= 3
    for smaller, bigger in pairwise(sizes):
        assert min(2 * smaller, 30 * GIB) <= bigger <= 30 * GIB
    assert len(sizes) == 3 or sizes[-1] == 30 * GIB or placement.exclusive
