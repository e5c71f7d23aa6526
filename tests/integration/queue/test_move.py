"""Moving a job to the front: among its user's jobs, within its priority, and in a rebuilt store as well."""

from __future__ import annotations

import odd
import pytest
import redis
from factories import BOB, claim, must_claim, serve, submit
from history_fixtures import Recorded
from hypothesis import given
from hypothesis import strategies as st
from store_dump import dump, faults

from gpuqueue.errors import Refused
from gpuqueue.model.array import Array
from gpuqueue.model.dependencies import Dependency, Waits
from gpuqueue.model.job import JobState
from gpuqueue.model.job_spec import Account, Priority
from gpuqueue.queue.jobqueue import JobQueue
from gpuqueue.recovery import catch_up
from gpuqueue.text.units import GIB

EVE = Account(name="eve", uid=1002, host="laptop")


def put(queue: JobQueue, count: int, **changes: object) -> list[int]:
    """Queue *count* jobs and return their ids."""
    return [submit(queue, **changes) for _ in range(count)]


def order(queue: JobQueue) -> list[int]:
    """Claim all waiting jobs and return their ids in claim order."""
    found = []
    while (claimed := claim(queue)) is not None:
        found.append(claimed.job_id)
        queue.runs.release_claim(claimed.job_id, claimed.token, detail="only looked")
        queue.jobs.hold(claimed.job_id)
    return found


@pytest.fixture
def served(queue: JobQueue) -> JobQueue:
    """Return a queue with a device that has no real worker."""
    serve(queue)
    return queue


def test_a_moved_job_is_claimed_first(served: JobQueue, store: redis.Redis) -> None:
    # The last moved job is before those moved earlier.
    first, second, third = put(served, 3)
    other = put(served, 1, mem_bytes=2 * GIB)[0]

    assert JobState.QUEUED is served.jobs.move(third, front=True)
    served.jobs.move(other, front=True)

    assert [] == faults(dump(store))
    assert [other, third, first, second] == order(served)
    assert [] == faults(dump(store))


def test_an_undone_move_puts_the_job_back_at_its_old_place(served: JobQueue) -> None:
    jobs = put(served, 3)
    served.jobs.move(jobs[2], front=True)

    served.jobs.move(jobs[2], front=False)

    assert jobs == order(served)


def test_among_users_nothing_changes(served: JobQueue) -> None:
    # The user with less usage goes first, and a higher priority goes before all.
    urgent = put(served, 1, priority=Priority.URGENT)[0]
    assert urgent == must_claim(served).job_id  # ada now has more usage than bob
    mine, theirs = put(served, 2), put(served, 2, account=BOB)
    high = put(served, 1, priority=Priority.HIGH, account=EVE)[0]

    served.jobs.move(mine[1], front=True)

    moved, other = served.jobs.why(mine[1]), served.jobs.why(mine[0])
    assert (1, 1, 0) == (moved.higher, moved.users_before, moved.own_before)
    assert 1 == other.own_before
    assert [high, theirs[0]] == [must_claim(served).job_id, must_claim(served).job_id]


def test_it_stays_in_front_through_all_that_may_happen(served: JobQueue, store: redis.Redis) -> None:
    """A moved job stays in front after a hold and release, a released claim, a dependency and a promotion."""
    first, second, third = put(served, 3)
    served.jobs.move(third, front=True)

    served.jobs.hold(third)
    served.jobs.release(third)
    assert third == must_claim(served, nonce="n1").job_id
    served.runs.release_claim(third, f"1.{'n1'}", detail="not now")
    waiting = put(served, 1, waits=Waits(after=(Dependency(second),)))[0]
    served.jobs.move(waiting, front=True)
    served.jobs.cancel(first)

    assert third == must_claim(served, nonce="n2").job_id
    low = put(served, 2, priority=Priority.LOW, account=BOB)
    served.jobs.move(low[1], front=True)
    assert served.maintenance.promote(after_s=0) > 0
    assert [low[1], low[0]] == [each for each in order(served) if each in low]
    assert [] == faults(dump(store))


def test_an_array_is_moved_as_a_whole(served: JobQueue) -> None:
    """An array is moved as a whole: its members keep their order, before the user's other jobs."""
    single = put(served, 1)[0]
    array = put(served, 1, array=Array.parse("0-2"))[0]

    served.jobs.move(array, front=True)

    taken = [must_claim(served, nonce=f"n{n}").job_id for n in range(4)]
    assert [array + 1, array + 2, array + 3, single] == taken


def test_only_waiting_jobs_can_be_moved_and_only_by_their_owner(served: JobQueue) -> None:
    running = put(served, 1)[0]
    must_claim(served)
    waiting = put(served, 1)[0]

    with pytest.raises(Refused, match=f"job {running} is starting: only a job that waits can be moved"):
        served.jobs.move(running, front=True)
    with pytest.raises(Refused, match=f"job {waiting} is ada's"):
        served.jobs.move(waiting, front=True, by="bob")
    assert served.jobs.move(99, front=True) is None


@pytest.mark.full
@odd.few_examples
@given(
    moves=st.lists(st.tuples(st.integers(0, 7), st.booleans()), max_size=20),
    shapes=st.lists(st.integers(1, 3), min_size=8, max_size=8),
)
def test_any_moves_give_the_requested_order(
    served: JobQueue, store: redis.Redis, moves: list[tuple[int, bool]], shapes: list[int]
) -> None:
    # Each moved job becomes the first, and each undone move puts a job back by arrival.
    for job in served.jobs.live():
        served.jobs.cancel(job.id)
    jobs = [put(served, 1, mem_bytes=size * GIB)[0] for size in shapes]
    front: list[int] = []

    for place, to_front in moves:
        served.jobs.move(jobs[place], front=to_front)
        front = [jobs[place]] * to_front + [each for each in front if each != jobs[place]]

    assert [] == faults(dump(store))
    assert front + [each for each in jobs if each not in front] == order(served)


def test_a_rebuilt_store_keeps_the_order(served: JobQueue, store: redis.Redis, recorded: Recorded) -> None:
    """A rebuilt store keeps the order of moved jobs and arrays, and later moves go before them."""
    first, second, third, fourth = put(served, 4)
    array = put(served, 1, array=Array.parse("0-1"))[0]
    for each in (third, array, second):
        served.jobs.move(each, front=True)
    served.jobs.move(second, front=False)
    recorded.record()
    recorded.rebuild()

    recorded.end_pause()
    serve(served)
    assert [] == faults(dump(store))
    served.jobs.move(fourth, front=True)
    taken = [must_claim(served, nonce=f"n{n}").job_id for n in range(6)]
    assert [fourth, array + 1, array + 2, third, first, second] == taken


def test_a_history_that_lost_its_data_gets_the_moves_back_from_the_store(served: JobQueue, recorded: Recorded) -> None:
    jobs = put(served, 2)
    served.jobs.move(jobs[1], front=True)
    recorded.record()
    assert (None, 1) == tuple(found.job.front for each in jobs if (found := recorded.database.get(each)) is not None)
    with recorded.database._engine.begin() as connection:  # as if the file had been deleted
        for table in ("job_events", "jobs", "outbox_cursor"):
            connection.exec_driver_sql(f"DELETE FROM {table}")

    assert 2 == catch_up(served, recorded.database)

    again = recorded.database.get(jobs[1])
    assert 1 == again.job.front
