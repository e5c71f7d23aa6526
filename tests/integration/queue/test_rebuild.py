"""Rebuild of a store from the history: job by job, by several openers at once, and resumed after a kill."""

from __future__ import annotations

import threading
from datetime import datetime, timezone
from functools import partial

import pytest
import redis
from factories import (
    ADA,
    BOB,
    claim,
    end,
    job_of,
    make_device,
    make_offer,
    make_spec,
    must_claim,
    serve,
    submit,
)
from history_fixtures import Recorded
from store_dump import dump, faults
from template_history import empty_tables

from gpuqueue.errors import Refused, StoreNotOpen
from gpuqueue.history.database import HistoryDatabase
from gpuqueue.model.array import Array, Indexes
from gpuqueue.model.dependencies import Dependency, Waits
from gpuqueue.model.device import DeviceFilter, DeviceKind
from gpuqueue.model.event import Act
from gpuqueue.model.job import JobState, WaitReason
from gpuqueue.model.job_spec import Priority
from gpuqueue.model.limits import Limits
from gpuqueue.model.retries import Retries, RetryOn
from gpuqueue.model.run import Ending, EndingKind, RunDevice
from gpuqueue.queue import job_fields as stored
from gpuqueue.queue import keys
from gpuqueue.queue.connect import connect, translated
from gpuqueue.queue.jobqueue import JobQueue
from gpuqueue.queue.lease import Again, BrokenClaim, Stray
from gpuqueue.queue.requests import Found
from gpuqueue.queue.scripts import ACTS, OPENING, RULES, Scripts
from gpuqueue.recovery import ID_GAP, catch_up, open_queue
from gpuqueue.settings.settings import Settings
from gpuqueue.text.units import GIB

LEASE_S = 300.0
DEVICE = RunDevice(uuid="GPU-0", lease_bytes=GIB)


def start(queue: JobQueue, job_id: int) -> str:
    """Claim and start the job that is next, which must be *job_id*; return the token."""
    claimed = must_claim(queue)
    assert job_id == claimed.job_id
    assert queue.runs.started(job_id, claimed.token, lease_s=LEASE_S, log_path="/l", devices=()) is JobState.RUNNING
    return claimed.token


def test_a_closed_store_accepts_the_rules_only_from_a_rebuild(store_url: str) -> None:
    """A store that is not open takes limits and policy only while it is being opened."""
    # A worker that did not notice the data loss leaves no keys behind.
    queue = JobQueue(store_url)
    client = connect(store_url)
    limits = Limits.parse("ada: queued_jobs=1", "", {})

    with pytest.raises(StoreNotOpen):
        queue.rules.set_limits(limits)
    with pytest.raises(StoreNotOpen):
        queue.rules.set_policy(half_life_s=60, urgent=None, shares={})
    assert [] == client.keys("*")
    queue.recovery.begin()
    assert queue.rules.set_limits(limits)
    assert limits == queue.rules.limits()

    queue.close()
    client.close()


def test_limits_and_policy_hold_before_the_rebuilt_store_opens(queue: JobQueue, recorded: Recorded) -> None:
    # All waiting jobs are back. Without the limits, any user could submit as many again, at any priority, until the
    # first worker tick.
    settings = Settings.load(
        {
            "GPUQUEUE_CONFIG": "/dev/null",
            "GPUQUEUE_STATE_DIR": "/s",
            "GPUQUEUE_LIMITS": "ada: queued_jobs=6; *: queued_jobs=1",
            "GPUQUEUE_POOL_LIMITS": "*: max_gpus=1 default_time=1h",
            "GPUQUEUE_URGENT": "bob",
            "GPUQUEUE_ADMINS": "eve",
            "GPUQUEUE_SHARES": "bob=3",
        }
    )
    serve(queue)
    queue.requests.submit(make_spec())
    held = submit(queue, waits=Waits(hold=True))
    queue.requests.submit(make_spec(waits=Waits(after=(Dependency(held),))))
    array = submit(queue, array=Array.parse("0-4"))
    queue.jobs.part(array, "hold", Indexes.parse("3"))
    queue.jobs.part(array, "cancel", Indexes.parse("4"))
    must_claim(queue)
    must_claim(queue)
    before = queue.rules.uses()
    recorded.record()
    recorded.lose()

    assert recorded.open(settings) is not None

    assert settings.site_limits() == queue.rules.limits()
    assert 5 == queue.rules.uses()["ada"].queued_jobs == before["ada"].queued_jobs
    assert 3600.0 == queue.requests.submit(make_spec()).spec.time_limit_s
    for changes, why in (
        ({}, "ada has 6 jobs waiting, and at most 6 may"),
        ({"gpus": 2, "account": BOB}, "2 devices asked for"),
        ({"priority": Priority.URGENT}, "ada may not use the priority urgent"),
    ):
        with pytest.raises(Refused, match=why):
            queue.requests.submit(make_spec(**changes))
    assert "eve" == queue.rules.admins()


@pytest.mark.parametrize("act", [act for act in ACTS if act not in OPENING | RULES])
def test_a_store_that_is_not_open_or_is_being_rebuilt_refuses_every_script(store_url: str, act: str) -> None:
    # Any answer about jobs, runs or ids would be wrong.
    queue = JobQueue(store_url)
    client = connect(store_url)

    for words, step in (
        ("run gpuqueue up", lambda: None),
        ("being rebuilt: try again in a moment", queue.recovery.begin),
    ):
        step()
        with pytest.raises(StoreNotOpen, match=words):
            queue.jobs.live()  # a list with missing jobs would be worse than none
        with pytest.raises(StoreNotOpen, match=words), translated(store_url):
            Scripts(client).run(act)  # the refusal comes before any check of the arguments
        assert client.keys("*") in ([], [keys.PREFIX + "rebuilding"])

    queue.close()
    client.close()


def test_jobs_come_back_where_they_stood(queue: JobQueue, recorded: Recorded) -> None:
    """A rebuild restores each job's state, priority, user, attempts, losses, times, token and memory."""
    serve(queue)
    running, cancelling, starting, lost, held, queued = (
        submit(queue, mem_bytes=mem, time_limit_s=600.0, name=name)
        for name, mem in zip("rcslhq", (GIB, 2 * GIB, 3 * GIB, 4 * GIB, GIB, GIB), strict=True)
    )
    tokens = {running: start(queue, running), cancelling: start(queue, cancelling)}
    queue.jobs.cancel(cancelling)
    tokens[starting] = must_claim(queue).token
    queue.runs.lose(lost, must_claim(queue).token, loss_limit=3, detail="gone")
    queue.jobs.hold(held)
    before = [job_of(queue, each) for each in range(1, 7)]
    recorded.record()

    opened = recorded.rebuild()

    assert (6, LEASE_S, True) == (opened.jobs, opened.pause_s, opened.lost_data)
    recorded.end_pause()
    serve(queue)
    assert before == [job_of(queue, each) for each in range(1, 7)]
    assert list(range(1, 7)) == [job.id for job in queue.jobs.live()]
    assert (JobState.HELD, WaitReason.HELD) == (job_of(queue, held).state, job_of(queue, held).reason)
    assert (JobState.QUEUED, 1, 1) == (before[lost - 1].state, before[lost - 1].attempt, before[lost - 1].losses)
    (device,) = queue.devices.all()
    assert (6 * GIB, (running, cancelling, starting)) == (device.allocated_bytes, device.jobs)
    for job_id, token in tokens.items():
        state = JobState.CANCELLED if job_id == cancelling else JobState.SUCCEEDED
        assert queue.runs.finish(job_id, token, state=state, ending=Ending.from_status(0), duration_s=1, devices=())
    recorded.end_pause()
    assert [lost, queued] == [must_claim(queue).job_id, must_claim(queue).job_id]
    assert claim(queue) is None
    recorded.record()
    assert [Act.RESTORE, Act.FINISH] == [event.act for event in recorded.database.events(running)][-2:]
    assert Act.RESTORE in [event.act for event in recorded.database.events(held)]


def test_an_old_claim_does_not_start_beside_a_newer_run(queue: JobQueue, recorded: Recorded) -> None:
    # A worker stalls with a claim. The job is taken back and runs elsewhere, and the history has no record of that. The
    # store comes back with the old claim, and its worker continues. The newer run may live until the pause is over.
    serve(queue)
    job_id = submit(queue)
    old = must_claim(queue)
    recorded.record()
    assert queue.runs.lose(job_id, old.token, loss_limit=3, detail="it stalled") is JobState.QUEUED
    start(queue, job_id)
    recorded.rebuild()
    serve(queue)

    started = partial(queue.runs.started, job_id, old.token, lease_s=LEASE_S, log_path="/l", devices=())

    assert started() is None
    assert job_of(queue, job_id).state is JobState.STARTING
    recorded.end_pause()
    assert started() is JobState.RUNNING


def test_what_waits_keeps_its_order(queue: JobQueue, recorded: Recorded) -> None:
    """A rebuilt store claims the waiting jobs in the order that the lost store would have used."""
    roomy = make_offer(slots=100)
    serve(queue, roomy)
    for number in range(12):
        queue.requests.submit(make_spec(account=(ADA, BOB)[number % 2], priority=Priority(number % 3)))
    recorded.record()
    once = [must_claim(queue).job_id for _ in range(12)]

    recorded.rebuild()
    recorded.end_pause()
    serve(queue, roomy)
    late = submit(queue, priority=Priority.LOW)

    assert [*once, late] == [must_claim(queue).job_id for _ in range(13)]


@pytest.mark.parametrize("lost", ["the store", "the history, then the store", "both of them in turn, twice"])
def test_a_job_that_is_meant_for_a_gpu_does_not_find_itself_on_a_cpu(
    queue: JobQueue, recorded: Recorded, history_url: str, lost: str
) -> None:
    """A job that was bound to a GPU at submit does not run on a CPU after a rebuild."""
    # Its request has no device filter. A GPU was known when it was submitted, and that GPU's worker is not back yet.
    on_cpu = make_offer(device=make_device("cpu-0", kind=DeviceKind.CPU))
    serve(queue)
    queue.requests.submit(make_spec(name="meant"))
    queue.requests.submit(make_spec(name="either", device=DeviceFilter.ANY))
    recorded.record()
    for _ in range(lost.count("twice") + 1):
        if "history" in lost or "both" in lost:
            empty_tables(history_url)
            assert 2 == catch_up(queue, recorded.database)
        recorded.rebuild()
        recorded.record()
    recorded.end_pause()
    serve(queue, on_cpu)

    assert "either" == must_claim(queue, "cpu-0").spec.name
    assert claim(queue, "cpu-0") is None
    serve(queue)
    assert "meant" == must_claim(queue).spec.name


def run_on(queue: JobQueue, host: str, kind: DeviceKind) -> None:
    """Run a job on the device of this kind of a host."""
    uuid = f"{kind}-{host}"
    serve(queue, make_offer(uuid, host=host, device=make_device(uuid, kind=kind)))
    submit(queue, device=DeviceFilter.ANY)
    run = must_claim(queue, uuid, host=host)
    known = {"index": 0, "name": "Test 24G", "kind": kind, "total_bytes": 24 * GIB}
    devices = (RunDevice(uuid=uuid, lease_bytes=GIB, **known),)
    queue.runs.started(run.job_id, run.token, lease_s=LEASE_S, log_path="/l", devices=devices)
    end(queue, run, devices=devices)


def test_a_rebuilt_store_knows_which_hosts_have_served_gpus(queue: JobQueue, recorded: Recorded) -> None:
    """A driver that breaks while the store loses its data moves no job to the CPU."""
    run_on(queue, "nodeA", DeviceKind.CPU)
    run_on(queue, "nodeA", DeviceKind.GPU)
    run_on(queue, "nodeA", DeviceKind.SIMULATED)
    recorded.record()

    recorded.rebuild()

    assert {"nodeA"} == recorded.database.gpu_hosts()
    for host in ("nodeA", "nodeB"):
        cpu = make_device(f"cpu-{host}", kind=DeviceKind.CPU, no_gpu="the NVIDIA driver is not loaded")
        serve(queue, make_offer(cpu.uuid, host=host, device=cpu))
    assert ["nodeA"] == [status.host for status in queue.devices.all() if status.lost_gpus]


def test_a_host_that_lost_its_gpus_long_ago_has_none_after_a_rebuild(queue: JobQueue, recorded: Recorded) -> None:
    """Regression: each host that ever had a GPU counted, so that jobs without a device kind waited for ever."""
    run_on(queue, "nodeA", DeviceKind.GPU)
    run_on(queue, "nodeA", DeviceKind.CPU)
    recorded.record()

    recorded.rebuild()

    cpu = make_device("cpu-nodeA", kind=DeviceKind.CPU, no_gpu="the NVIDIA driver is not loaded")
    serve(queue, make_offer(cpu.uuid, device=cpu))
    assert WaitReason.NO_GPU != queue.requests.submit(make_spec()).reason
    recorded.end_pause()
    must_claim(queue, cpu.uuid)


def test_the_number_of_preemptions_of_a_job_is_kept(queue: JobQueue, store: redis.Redis, recorded: Recorded) -> None:
    """A rebuild keeps the preemption count of a job, so that five preemptions stay the maximum."""
    # Other jobs have none.
    serve(queue)
    queue.requests.submit(make_spec())
    for _ in range(2):
        token = start(queue, 1)
        ending = Ending.stopped(EndingKind.PREEMPTED, -15, "preempted for job 2")
        again = Again(reason=WaitReason.RETRY)
        queue.runs.finish(1, token, state=JobState.QUEUED, ending=ending, duration_s=1, devices=(), again=again)
    queue.requests.submit(make_spec())
    recorded.record()

    recorded.rebuild()

    assert ["2", None] == [store.hget(keys.job(each), stored.PREEMPTIONS) for each in (1, 2)]


def test_a_rebuilt_store_allows_no_claim_for_one_lease(queue: JobQueue, store: redis.Redis, recorded: Recorded) -> None:
    # The history may not have the last claims. Within one lease such a run is offered again or is dead.
    queue.requests.submit(make_spec())
    recorded.record()

    recorded.rebuild()
    serve(queue)

    assert claim(queue) is None
    assert (JobState.QUEUED, WaitReason.PAUSE) == (job_of(queue, 1).state, job_of(queue, 1).reason)
    left_ms = int(store.hget(keys.PREFIX + "meta", "claims") or 0) - queue.now_ms()
    assert 0.95 * LEASE_S < left_ms / 1000 <= LEASE_S
    recorded.end_pause()
    assert WaitReason.MEMORY is job_of(queue, 1).reason
    assert must_claim(queue).job_id == 1


def test_a_claim_whose_reply_went_down_with_the_store_is_answered_again(queue: JobQueue, recorded: Recorded) -> None:
    """A claim whose reply got lost with the store is answered again after the rebuild."""
    # The claimer repeats it with the same nonce. The history has the claim, so no other worker can get the job.
    serve(queue)
    queue.requests.submit(make_spec())
    first = must_claim(queue, nonce="abc")
    recorded.record()

    recorded.rebuild()

    assert first == must_claim(queue, nonce="abc")


def test_a_new_site_has_no_pause_because_no_job_can_be_running(store_url: str, database: HistoryDatabase) -> None:
    queue = JobQueue(store_url)

    opened = open_queue(queue, database, lease_s=LEASE_S)

    assert not opened.lost_data
    assert open_queue(queue, database, lease_s=LEASE_S) is None
    serve(queue)
    assert 1 == submit(queue) == must_claim(queue).job_id
    queue.close()


def test_ids_are_never_reused_however_often_the_data_is_lost(queue: JobQueue, recorded: Recorded) -> None:
    given = [submit(queue)]
    recorded.record()
    for _ in range(3):
        given += [submit(queue) for _ in range(3)]
        recorded.rebuild()
        given.append(submit(queue))
        recorded.record()

    assert sorted(set(given)) == given
    assert given[-1] > 3 * ID_GAP


def test_two_and_more_openers_at_once_bring_each_job_back_once(
    queue: JobQueue, history_url: str, recorded: Recorded
) -> None:
    # One opens the store; the others help or come too late.
    for number in range(150):
        queue.requests.submit(make_spec(name=f"n{number}"))
    recorded.record()
    recorded.lose()
    opened = []
    together = threading.Barrier(6)

    def opener() -> None:
        own_queue, own_history = JobQueue(queue.url), HistoryDatabase(history_url)
        together.wait()
        opened.append(open_queue(own_queue, own_history, lease_s=LEASE_S))
        own_queue.close()
        own_history.close()

    threads = [threading.Thread(target=opener) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert 1 == len([each for each in opened if each is not None])
    assert [f"n{number}" for number in range(150)] == [job.spec.name for job in queue.jobs.live()]
    assert [Act.RESTORE] * 150 == [event.act for event in queue.outbox.events("0-0", most=1000)]
    recorded.record()
    assert recorded.database.cursor() is not None
    assert recorded.database.cursor().epoch == queue.epoch()


def test_a_rebuild_that_was_cut_short_is_finished_by_the_next(queue: JobQueue, recorded: Recorded) -> None:
    # Restored jobs stay as they are, and the store opens only when all jobs are restored.
    for _ in range(4):
        queue.requests.submit(make_spec())
    recorded.record()
    recorded.lose()
    known = recorded.database.cursor()
    epoch = queue.recovery.begin()
    assert epoch is not None
    assert recorded.database.turn_to(epoch, expected=known)
    (page,) = recorded.database.survivors()
    assert 2 == queue.recovery.restore(epoch, page[:2], lease_s=LEASE_S)
    with pytest.raises(StoreNotOpen):
        queue.requests.submit(make_spec())

    opened = recorded.open()

    assert 2 == opened.jobs
    assert [1, 2, 3, 4] == [job.id for job in queue.jobs.live()]
    assert 4 == len(queue.outbox.events("0-0"))
    assert queue.recovery.restore(epoch, page, lease_s=LEASE_S) is None, "a straggler must not bring an ended job back"


def test_a_store_that_loses_its_data_during_a_rebuild_starts_a_new_rebuild(queue: JobQueue, recorded: Recorded) -> None:
    # A straggler of the first rebuild cannot write into it.
    queue.requests.submit(make_spec())
    recorded.record()
    recorded.lose()
    first = queue.recovery.begin()
    assert first is not None
    assert recorded.database.turn_to(first, expected=recorded.database.cursor())
    (page,) = recorded.database.survivors()
    recorded.lose()
    second = queue.recovery.begin()

    assert second != first
    assert queue.recovery.restore(first, page, lease_s=LEASE_S) is None
    assert not queue.recovery.open(0, epoch=first)
    opened = recorded.open()
    assert 1 == opened.jobs
    assert second == queue.epoch()


def test_events_of_the_lost_store_cannot_be_recorded_after_the_rebuild(queue: JobQueue, recorded: Recorded) -> None:
    # They would make the data that the rebuild read obsolete, and an ended job would run again.
    queue.requests.submit(make_spec())
    recorded.record()
    queue.jobs.cancel(1)
    held_back, known, epoch = queue.outbox.events("0-0"), recorded.database.cursor(), queue.epoch()
    assert epoch is not None
    recorded.rebuild()

    assert not recorded.database.apply(held_back, expected=known, epoch=epoch)
    assert JobState.QUEUED is job_of(queue, 1).state


def test_a_job_that_cannot_be_read_any_more_comes_back_with_the_others(queue: JobQueue, recorded: Recorded) -> None:
    """A job whose request cannot be decoded any more is restored with the others."""
    # A validation rule may have become stricter since its submission, and the job must not wait in the history for
    # ever.
    for _ in range(3):
        queue.requests.submit(make_spec())
    recorded.record()
    with recorded.database._engine.begin() as connection:
        connection.exec_driver_sql("UPDATE jobs SET spec = '{}' WHERE id = 2")
    opened = recorded.rebuild()

    assert 3 == opened.jobs
    assert [1, 2, 3] == [job.id for job in queue.jobs.live()]
    recorded.end_pause()
    serve(queue)
    assert 1 == must_claim(queue).job_id
    with pytest.raises(BrokenClaim, match="request cannot be read"):
        claim(queue)


def test_a_job_that_makes_no_sense_at_all_keeps_no_other_from_coming_back(
    queue: JobQueue, recorded: Recorded, caplog: pytest.LogCaptureFixture
) -> None:
    """An invalid job, for example after a manual edit of the database, does not stop the rebuild of the others."""
    # It is logged and left out.
    serve(queue)
    for _ in range(3):
        queue.requests.submit(make_spec())
    start(queue, 1)
    recorded.record()
    with recorded.database._engine.begin() as connection:
        connection.exec_driver_sql("UPDATE runs SET host = 'a b' WHERE job_id = 1")
    opened = recorded.rebuild()

    assert 2 == opened.jobs
    assert [2, 3] == [job.id for job in queue.jobs.live()]
    assert "job 1 cannot be put back: BADARGS" in caplog.text


def test_a_running_job_without_a_run_in_the_history_waits_untried(queue: JobQueue, recorded: Recorded) -> None:
    """A running job whose run is missing in the history comes back as waiting, without an attempt."""
    # Its worker can still offer the run.
    serve(queue)
    queue.requests.submit(make_spec())
    token = must_claim(queue).token
    recorded.record()
    with recorded.database._engine.begin() as connection:
        connection.exec_driver_sql("DELETE FROM runs")
    recorded.rebuild()

    assert (JobState.QUEUED, 0) == (job_of(queue, 1).state, job_of(queue, 1).attempt)
    assert token.startswith("1.")


def test_a_parked_run_keeps_its_long_lease_after_the_store_lost_its_data(
    queue: JobQueue, store: redis.Redis, recorded: Recorded
) -> None:
    # Its machine is down for days while its shim lives. With a normal lease a second copy would start after one lease.
    serve(queue)
    queue.requests.submit(make_spec())
    token = start(queue, 1)
    assert queue.runs.park(1, token, lease_s=10 * 86400)
    assert not queue.runs.park(1, "1.other", lease_s=1)
    recorded.record()

    for expected_s in (10 * 86400, LEASE_S):
        recorded.rebuild()
        left_s = ((store.zscore(keys.LEASES, "1") or 0) - queue.now_ms()) / 1000
        assert expected_s / 2 < left_s <= expected_s
        # The machine is back: from now on heartbeats renew its lease.
        stray = Stray(
            job_id=1, token=token, host="nodeA", worker="w", devices=(DEVICE,), claimed_ms=None, log_path="/l"
        )
        assert JobState.RUNNING is queue.runs.adopt(stray, lease_s=LEASE_S)
        recorded.record()


def test_a_rebuild_restores_why_a_job_runs_again(queue: JobQueue, store: redis.Redis, recorded: Recorded) -> None:
    # Regression: a requeue came back with reason "retry" or "begin", and a retry after a loss was forgotten.
    serve(queue)
    retries = Retries(times=2, on=(RetryOn.LOST,))
    asked, tried_and_asked, failed, lost = (
        submit(queue, name=name, retries=kinds)
        for name, kinds in (("a", Retries()), ("t", Retries(times=1)), ("f", Retries(times=1)), ("l", retries))
    )
    for job_id, code in ((asked, 75), (tried_and_asked, 75), (failed, 1)):
        ending = Ending.from_status(code)
        queue.runs.finish(job_id, start(queue, job_id), state=JobState.FAILED, ending=ending, duration_s=1, devices=())
    queue.runs.lose(lost, start(queue, lost), loss_limit=1, detail="its worker vanished")
    ids = (asked, tried_and_asked, failed, lost)
    before = [job_of(queue, each) for each in ids]
    recorded.record()

    recorded.rebuild()

    assert before == [job_of(queue, each) for each in ids]
    assert [WaitReason.REQUEUE, WaitReason.REQUEUE, WaitReason.RETRY, WaitReason.RETRY] == [
        each.reason for each in before
    ]
    assert [None, None, "1", "1"] == [store.hget(keys.job(each), stored.RETRY_AFTER) for each in ids], (
        "the attempt that gave it"
    )


def test_what_waits_comes_back_with_what_it_waits_for(queue: JobQueue, store: redis.Redis, recorded: Recorded) -> None:
    """A rebuild restores dependencies, begin time, dedupe key and retries, and applies ends that happened meanwhile."""
    serve(queue)
    done, failed, parent = (submit(queue, name=name) for name in "dfp")
    begin_at = submit(queue, waits=Waits(begin_at=datetime(2099, 1, 1, tzinfo=timezone.utc)))
    retried = submit(queue, retries=Retries(times=3), waits=Waits(dedupe="k"), priority=Priority.URGENT)
    token = start(queue, retried)
    bad = Ending.from_status(75)
    queue.runs.finish(retried, token, state=JobState.FAILED, ending=bad, duration_s=1, devices=())
    store.zadd(keys.PREFIX + "timers", {str(retried): 1})
    store.hset(keys.job(retried), stored.NOT_BEFORE_MS, 1)
    token = start(queue, retried)
    bad = Ending.from_status(1)
    queue.runs.finish(retried, token, state=JobState.FAILED, ending=bad, duration_s=1, devices=())
    waits = Waits(after=(Dependency(done), Dependency(parent)))
    child, orphan = (submit(queue, waits=waits), submit(queue, waits=Waits(after=(Dependency(failed),))))
    grandchild = submit(queue, waits=Waits(after=(Dependency(orphan),)))
    before = [job_of(queue, each) for each in (parent, begin_at, retried)]
    recorded.record()
    for job_id, state in ((done, JobState.SUCCEEDED), (failed, JobState.FAILED)):
        ending = Ending.from_status(0 if state is JobState.SUCCEEDED else 1)
        queue.runs.finish(job_id, start(queue, job_id), state=state, ending=ending, duration_s=1, devices=())
    # The history records these ends, and the store is lost before the dependants are updated.
    for event in queue.outbox.events("0-0", most=1000):
        if event.job_id in {orphan, child, grandchild}:
            continue
        assert recorded.database.apply([event], expected=recorded.database.cursor(), epoch=queue.epoch() or "")

    recorded.rebuild()
    recorded.end_pause()
    serve(queue)

    assert before == [job_of(queue, each) for each in (parent, begin_at, retried)]
    assert (1, 1, 2) == (before[2].retries, before[2].requeues, before[2].attempt)
    assert [] == faults(dump(store))
    with pytest.raises(Found):
        queue.requests.submit(make_spec(waits=Waits(dedupe="k")))
    queue.maintenance.reap(loss_limit=3, lease_s=LEASE_S, tick_s=10)
    assert (Dependency(parent),) == job_of(queue, child).awaits
    assert [f"dependency {failed} failed", f"dependency {orphan} was cancelled"] == [
        job_of(queue, each).because for each in (orphan, grandchild)
    ]
    assert [] == faults(dump(store))
    recorded.record()
    reported = recorded.database.get(orphan)
    actual = (reported.job.state, reported.job.reason, reported.job.because)
    assert (JobState.CANCELLED, WaitReason.DEPENDENCY, f"dependency {failed} failed") == actual
