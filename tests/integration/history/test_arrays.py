"""Arrays in the history: the record of each member, and the progress of a restored array."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import sqlalchemy as sa
from factories import claim, make_offer, make_spec, must_claim, serve
from store_dump import dump, faults

from gpuqueue.history.database import HistoryDatabase
from gpuqueue.history.tables import jobs
from gpuqueue.model.array import Array, Indexes, Member
from gpuqueue.model.dependencies import Dependency, Waits
from gpuqueue.model.event import Act, Cursor
from gpuqueue.model.history_query import HistoryQuery
from gpuqueue.model.job import Job, JobState, WaitReason
from gpuqueue.model.run import Ending, RunDevice
from gpuqueue.model.sweep import Axis
from gpuqueue.queue import keys
from gpuqueue.queue.connect import connect
from gpuqueue.queue.jobqueue import JobQueue
from gpuqueue.queue.lease import Claim, Stray
from gpuqueue.recovery import catch_up, open_queue
from gpuqueue.settings.settings import Settings
from gpuqueue.text.units import GIB
from workers.services.recorder import Recorder

LEASE_S = 300.0
DEVICE = RunDevice(uuid="GPU-0", lease_bytes=GIB // 64)
SWEEP = Array.sweep([Axis.parse("lr=1e-3,1e-4"), Axis.parse("seed=0..4")], at_once=3)


@pytest.fixture
def record(queue: JobQueue, database: HistoryDatabase) -> Callable[[], None]:
    """Return a function that records the whole outbox in the history."""
    recorder = Recorder(Settings.load(), queue, database)

    def drain() -> None:
        while recorder.record(0):
            pass

    return drain


@pytest.fixture
def first(queue: JobQueue) -> int:
    """Return the id of an array of ten members with a concurrency limit of three."""
    serve(queue, make_offer(slots=100))
    spec = make_spec(argv=("train", "--lr={lr}", "--seed={seed}"), array=SWEEP, mem_bytes=GIB // 64)
    return queue.requests.submit(spec).id


def end(queue: JobQueue, claimed: Claim, code: int = 0) -> None:
    """End a run as its worker would."""
    state = JobState.FAILED if code else JobState.SUCCEEDED
    ending = Ending.from_status(code)
    assert queue.runs.finish(claimed.job_id, claimed.token, state=state, ending=ending, duration_s=1, devices=())


def job_of(queue: JobQueue, job_id: int) -> Job:
    """Return a job that must exist."""
    job = queue.jobs.get(job_id)
    assert job is not None
    return job


def lose_data(queue: JobQueue, database: HistoryDatabase) -> None:
    """Delete all data in the store and rebuild it from the history, with claims allowed at once."""
    client = connect(queue.url)
    client.flushall()
    assert open_queue(queue, database, lease_s=LEASE_S) is not None
    client.hset(keys.META, "claims", 0)
    assert [] == faults(dump(client))
    client.close()
    serve(queue, make_offer(slots=100))


def stray_of(missed: Claim) -> Stray:
    """Return the run of a claim as its worker offers it to a store that may have lost it."""
    return Stray(
        job_id=missed.job_id,
        token=missed.token,
        host="nodeA",
        worker="w",
        devices=(DEVICE,),
        claimed_ms=missed.claimed_ms,
        log_path="/l",
        payload=missed.payload,
    )


def test_each_member_is_in_the_history(
    queue: JobQueue, database: HistoryDatabase, first: int, record: Callable[[], None]
) -> None:
    """Each member is in the history with its own command, under its array, without a copy of the common request."""
    record()
    one, two = must_claim(queue), must_claim(queue)
    end(queue, one)
    end(queue, two, code=3)
    record()

    found = database.history(HistoryQuery(array_id=first, sort=HistoryQuery().sort, reverse=True))

    assert [Member(first, 0), Member(first, 1)] == [each.job.member for each in found]
    assert ["train --lr=1e-3 --seed=0", "train --lr=1e-3 --seed=1"] == [each.job.spec.command for each in found]
    of_array = {"PATH": one.spec.env["PATH"]}  # apart from the request
    assert [one.spec, two.spec] == [replace(each.job.spec, env={**of_array, **each.job.spec.env}) for each in found]
    assert [0, 3] == [each.last_run.ending.exit_code for each in found if each.last_run and each.last_run.ending]
    array = database.get(first)
    assert array is not None
    assert array.job.tally == job_of(queue, first).tally
    assert array.job.submitted_at == found[0].job.submitted_at
    assert array.job.started_at is not None
    assert "train --lr=1e-3 --seed=1" == database.history(HistoryQuery(text="seed=1"))[0].job.spec.command


def test_an_array_that_has_ended_says_so(
    queue: JobQueue, database: HistoryDatabase, first: int, record: Callable[[], None]
) -> None:
    """An ended array has the counts of its members' endings, including members that never began."""
    run = must_claim(queue)
    queue.jobs.cancel(first)
    end(queue, run)
    record()

    found = database.get(first)

    assert found is not None
    assert found.job.tally is not None
    assert JobState.CANCELLED is found.job.state
    assert {"succeeded": 1, "failed": 0, "cancelled": 9, "lost": 0} == found.job.tally.ended
    assert queue.jobs.get(first) is None
    assert [Act.SUBMIT, Act.ARRAY, Act.CANCEL, Act.ARRAY] == [event.act for event in database.events(first)]


def test_it_comes_back_as_far_as_it_had_come(
    queue: JobQueue, database: HistoryDatabase, first: int, record: Callable[[], None]
) -> None:
    """An array is restored with its progress: ended, running, cancelled and held members.

    No member runs twice, and no id is used again.
    """
    ended, running, starting = must_claim(queue), must_claim(queue), must_claim(queue)
    queue.runs.started(running.job_id, running.token, lease_s=LEASE_S, log_path="/l", devices=(DEVICE,))
    end(queue, ended, code=1)
    queue.jobs.part(first, "cancel", Indexes.parse("7-8"))
    queue.jobs.part(first, "hold", Indexes.parse("9"))
    before = [job_of(queue, each) for each in (first, running.job_id, starting.job_id)]
    record()

    lose_data(queue, database)

    assert before == [job_of(queue, each) for each in (first, running.job_id, starting.job_id)]
    tally = job_of(queue, first).tally
    assert tally is not None
    assert ("3-6", "9") == (str(tally.left), str(tally.held))
    assert queue.requests.submit(make_spec(mem_bytes=GIB // 64)).id > first + 10
    third = must_claim(queue)
    assert (Member(first, 3), "--seed=3") == (third.member, third.spec.argv[2])
    for each in (running, starting, third):
        end(queue, each)
    queue.jobs.cancel(first)
    assert claim(queue, nonce="late") is not None, "what was submitted after it"
    record()
    reported = database.get(first)
    assert reported is not None
    assert JobState.CANCELLED is reported.job.state
    assert reported.job.tally is not None
    assert {"succeeded": 3, "failed": 1, "cancelled": 6, "lost": 0} == reported.job.tally.ended


def test_all_members_taken_is_no_array_to_start_again(
    queue: JobQueue, database: HistoryDatabase, record: Callable[[], None]
) -> None:
    """An array whose last member runs is restored as running."""
    serve(queue, make_offer(slots=100))
    first = queue.requests.submit(make_spec(mem_bytes=GIB // 64, array=Array.parse("0-1"))).id
    one, two = must_claim(queue), must_claim(queue)
    end(queue, one)
    record()

    lose_data(queue, database)

    assert claim(queue) is None
    assert JobState.RUNNING is job_of(queue, first).state
    end(queue, two)
    assert JobState.SUCCEEDED is job_of(queue, first).state


def test_a_run_missing_in_the_history_does_not_start_again(
    queue: JobQueue, database: HistoryDatabase, first: int, record: Callable[[], None]
) -> None:
    """A member whose claim is missing in the history is adopted and not started again.

    The store failed right after the claim. The worker offers the run, and no other claim gets the member.
    """
    later = queue.requests.submit(make_spec(mem_bytes=GIB // 64)).id
    record()
    missed = must_claim(queue)

    lose_data(queue, database)
    stray = stray_of(missed)
    assert JobState.RUNNING is queue.runs.adopt(stray, lease_s=LEASE_S)

    client = connect(queue.url)
    assert [] == faults(dump(client))
    client.close()
    assert (Member(first, 0), missed.spec) == (job_of(queue, missed.job_id).member, job_of(queue, missed.job_id).spec)
    assert [Member(first, 1), Member(first, 2), None] == [must_claim(queue).member for _ in range(3)]
    assert later > missed.job_id
    end(queue, missed)
    record()
    reported = database.get(missed.job_id)
    assert reported is not None
    assert (JobState.SUCCEEDED, Member(first, 0)) == (reported.job.state, reported.job.member)
    assert queue.runs.adopt(stray, lease_s=LEASE_S) is None, "it has ended, and is forgotten"


def test_a_second_run_missing_in_the_history_is_adopted(
    queue: JobQueue, database: HistoryDatabase, first: int, record: Callable[[], None]
) -> None:
    """A member's second run that is missing in the history is adopted.

    The member waits in the rebuilt store, and the run is matched by the array and index.
    """
    lost = must_claim(queue)
    queue.runs.lose(lost.job_id, lost.token, loss_limit=3, detail="gone")
    queue.jobs.part(first, "hold", Indexes.parse("1-9"))
    record()
    missed = must_claim(queue)
    assert (lost.job_id, 2) == (missed.job_id, missed.attempt)

    lose_data(queue, database)
    stray = stray_of(missed)
    assert JobState.QUEUED is job_of(queue, missed.job_id).state

    assert JobState.RUNNING is queue.runs.adopt(stray, lease_s=LEASE_S)
    client = connect(queue.url)
    assert [] == faults(dump(client))
    client.close()


def test_a_lost_history_is_filled_again(
    queue: JobQueue, database: HistoryDatabase, first: int, record: Callable[[], None]
) -> None:
    """A lost history gets the array's current progress and its live members."""
    must_claim(queue)
    record()
    client = connect(queue.url)
    client.hset(keys.META, "recorded", "9999999999999-0")  # the history is behind the recorded position: it is a copy
    client.close()

    assert 2 == catch_up(queue, database)

    array, member = database.get(first), database.get(first + 1)
    assert array is not None
    assert member is not None
    assert array.job.tally == job_of(queue, first).tally
    assert (Member(first, 0), "train --lr=1e-3 --seed=0") == (member.job.member, member.job.spec.command)


def test_the_ids_of_members_count_as_seen(
    queue: JobQueue, database: HistoryDatabase, first: int, record: Callable[[], None]
) -> None:
    """The ids of members count for the highest id, by the array's row or by a member's row."""
    record()
    assert first + 10 == database.max_job_id()
    must_claim(queue)
    record()
    assert first + 10 == database.max_job_id()
    assert isinstance(database.cursor(), Cursor)


def test_an_array_that_was_born_held_is_held_after_a_loss(
    queue: JobQueue, database: HistoryDatabase, record: Callable[[], None]
) -> None:
    """An array that was submitted held is held after a rebuild.

    Regression: it came back waiting for its other dependencies and then started on its own.
    """
    parent = queue.requests.submit(make_spec(waits=Waits(hold=True))).id
    waits = Waits(hold=True, after=(Dependency(parent),))
    array = queue.requests.submit(make_spec(array=Array.parse("0-1"), waits=waits)).id
    record()

    lose_data(queue, database)

    after = job_of(queue, array)
    assert (JobState.HELD, WaitReason.HELD) == (after.state, after.reason)
    assert after.tally is not None
    assert ("", "0-1") == (str(after.tally.left), str(after.tally.held))


def test_an_array_began_with_its_first_member(
    queue: JobQueue, database: HistoryDatabase, first: int, record: Callable[[], None]
) -> None:
    """An array's start is that of its first member, whatever waits or is held or changes later."""
    assert None is job_of(queue, first).started_at
    run = must_claim(queue)
    began = job_of(queue, first).started_at
    assert began is not None

    queue.requests.edit(first, lambda spec: replace(spec, array=replace(spec.array, at_once=2) if spec.array else None))
    queue.jobs.move(first, front=True)
    end(queue, run)
    queue.jobs.hold(first)
    record()

    kept = database.get(first)
    assert kept is not None
    assert (JobState.HELD, began, began) == (kept.job.state, kept.job.started_at, job_of(queue, first).started_at)


def test_the_history_lists_members_that_never_began(
    queue: JobQueue, database: HistoryDatabase, first: int, record: Callable[[], None]
) -> None:
    """The history reports the members that never began, which have no rows of their own.

    Members that run, wait or were cancelled on a device are not among them.
    """
    one, _ = must_claim(queue), must_claim(queue)
    record()
    assert Indexes() == database.never_began(first)

    queue.jobs.part(first, "cancel", Indexes.parse("0,3-4,7"))
    queue.jobs.part(first, "hold", Indexes.parse("9"))
    record()

    assert "3-4,7" == str(database.never_began(first))
    assert Indexes() == database.never_began(one.job_id)
    assert Indexes() == database.never_began(999)


@pytest.mark.parametrize("hold", ["", "1", "0-2"])
def test_what_an_array_waited_for_never_came(
    queue: JobQueue, database: HistoryDatabase, record: Callable[[], None], hold: str
) -> None:
    """The members of an array with a failed dependency are cancelled.

    Regression: they waited in the history for ever, and so did jobs that depended on one of them.
    """
    serve(queue, make_offer())
    parent = queue.requests.submit(make_spec(waits=Waits(hold=True))).id
    array = queue.requests.submit(make_spec(array=Array.parse("0-2"), waits=Waits(after=(Dependency(parent),)))).id
    if hold:
        queue.jobs.part(array, "hold", Indexes.parse(hold))
    record()
    queue.jobs.cancel(parent)
    assert claim(queue) is None
    record()

    kept = database.get(array)
    assert kept is not None
    assert kept.job.tally is not None
    assert (JobState.CANCELLED, 3) == (kept.job.state, kept.job.tally.ended["cancelled"])
    assert "0-2" == str(database.never_began(array))
    with database._engine.connect() as connection:
        row = connection.execute(sa.select(jobs.c.array_left, jobs.c.array_held).where(jobs.c.id == array)).one()
    assert ("", "") == tuple(row)

    lose_data(queue, database)
    assert None is queue.jobs.get(array)
    assert "0-2" == str(database.never_began(array))


def test_an_array_that_waits_only_in_the_history_is_corrected(
    queue: JobQueue, database: HistoryDatabase, first: int, record: Callable[[], None]
) -> None:
    """An ended array has no waiting members, whatever its row says."""
    queue.jobs.part(first, "cancel")
    record()
    with database._engine.begin() as connection:
        connection.execute(sa.update(jobs).where(jobs.c.id == first).values(array_left="0-8", array_held="9"))

    kept = database.get(first)
    assert kept is not None
    assert kept.job.tally is not None
    assert ("", "", 10) == (str(kept.job.tally.left), str(kept.job.tally.held), kept.job.tally.ended["cancelled"])
    assert "0-9" == str(database.never_began(first))
