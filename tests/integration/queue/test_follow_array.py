"""An array that follows another one: each member waits for the member of the same index, as aftercorr in Slurm."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
import redis
from factories import claim, end, job_of, make_offer, make_spec, must_claim, serve
from history_fixtures import Recorded
from store_dump import dump, faults

from gpuqueue.errors import BadRequest, Impossible
from gpuqueue.model.array import Array, Indexes
from gpuqueue.model.dependencies import Condition, Dependency, Waits
from gpuqueue.model.job import JobState, WaitReason
from gpuqueue.model.job_spec import JobSpec
from gpuqueue.model.retries import Retries, RetryOn
from gpuqueue.model.run import Ending, EndingKind
from gpuqueue.queue.connect import connect
from gpuqueue.queue.jobqueue import JobQueue
from gpuqueue.queue.requests import Unknown
from gpuqueue.text.units import GIB


@pytest.fixture
def client(store_url: str) -> Iterator[redis.Redis]:
    """Return a connection to the store. After each test the store must have no faults."""
    connection = connect(store_url)
    yield connection
    assert [] == faults(dump(connection))
    connection.close()


@pytest.fixture
def farm(client: redis.Redis, queue: JobQueue) -> JobQueue:
    """Return a queue with one device that takes a hundred jobs at once."""
    del client
    serve(queue, make_offer(slots=100))
    return queue


def submit(queue: JobQueue, text: str, *after: int, **waits: object) -> int:
    """Submit an array that follows others and return its id."""
    wanted = Waits(after=tuple(Dependency(each, Condition.CORR) for each in after), **waits)
    return queue.requests.submit(make_spec(array=Array.parse(text), mem_bytes=GIB // 64, waits=wanted)).id


def left(queue: JobQueue, job_id: int) -> tuple[str, str, str, dict[str, int]]:
    """Return the waiting, the held and the awaiting members, and the counts of the endings that occurred."""
    tally = job_of(queue, job_id).tally
    ended = {state: count for state, count in tally.ended.items() if count}
    return str(tally.left), str(tally.held), str(tally.awaiting), ended


def test_each_member_waits_for_the_member_of_its_index(farm: JobQueue) -> None:
    """A member is claimed as soon as its counterpart succeeded, in any order; the rest of the array goes on waiting."""
    first = submit(farm, "0-3")
    second = submit(farm, "0-3", first)
    assert WaitReason.DEPENDENCY is job_of(farm, second).reason
    runs = [must_claim(farm) for _ in range(4)]
    assert claim(farm) is None

    end(farm, runs[2])

    assert "0-1,3" == left(farm, second)[2]
    assert (second + 1 + 2, None) == (must_claim(farm).job_id, claim(farm))
    assert (JobState.QUEUED, WaitReason.DEPENDENCY) == (job_of(farm, second).state, job_of(farm, second).reason)
    for run in (runs[3], runs[0], runs[1]):
        end(farm, run)
    followers = [must_claim(farm) for _ in range(3)]
    assert [second + 1, second + 2, second + 4] == [run.job_id for run in followers]
    assert ("", "", "", {}) == left(farm, second)
    assert () == job_of(farm, second).awaits


def test_a_member_whose_counterpart_fails_is_cancelled(farm: JobQueue) -> None:
    """It is cancelled at once, also if it is held, and the others are not. The array says which dependency it was."""
    first = submit(farm, "0-3")
    second = submit(farm, "0-3", first)
    farm.jobs.part(second, "hold", Indexes.parse("0-1"))
    runs = [must_claim(farm) for _ in range(4)]

    end(farm, runs[0], 1)

    assert ("2-3", "1", "1-3", {"cancelled": 1}) == left(farm, second)
    for run in runs[1:]:
        end(farm, run)
    farm.jobs.part(second, "release")
    for _ in range(3):
        end(farm, must_claim(farm))
    assert JobState.CANCELLED is job_of(farm, second).state


def test_if_all_fail_the_array_ends_and_says_why(farm: JobQueue) -> None:
    """An array whose members' counterparts all failed is cancelled, and so is what follows it."""
    first = submit(farm, "0-1")
    second = submit(farm, "0-1", first)
    third = submit(farm, "0-1", second)
    for run in [must_claim(farm), must_claim(farm)]:
        end(farm, run, 1)
    job = job_of(farm, second)
    assert (JobState.CANCELLED, f"dependency {first}_1 did not succeed") == (job.state, job.because)
    assert claim(farm) is None
    assert JobState.CANCELLED is job_of(farm, third).state


def test_members_cancelled_before_they_began_cancel_their_followers(farm: JobQueue) -> None:
    """A part that is cancelled while it waits cancels the same part of the following array; the whole, all of it."""
    first = submit(farm, "0-9")
    second = submit(farm, "0-9", first)
    farm.jobs.part(first, "cancel", Indexes.parse("2-4"))
    run = must_claim(farm)  # updates what is due
    assert ("0-1,5-9", "", "0-1,5-9", {"cancelled": 3}) == left(farm, second)

    farm.jobs.change("cancel", first)
    end(farm, run, state=JobState.CANCELLED, ending=Ending(kind=EndingKind.CANCELLED))
    assert (None, JobState.CANCELLED) == (claim(farm), job_of(farm, second).state)


def test_a_retried_member_decides_by_its_last_run(farm: JobQueue) -> None:
    """A member of the first array that runs again has not ended: its follower waits on."""
    retries = Retries(times=1, on=(RetryOn.FAILED,))
    first = farm.requests.submit(make_spec(array=Array.parse("0"), mem_bytes=GIB // 64, retries=retries)).id
    second = submit(farm, "0", first)
    end(farm, must_claim(farm), 1)
    assert "0" == left(farm, second)[0]


def test_limits_of_members_hold_beside_the_other_array(farm: JobQueue) -> None:
    """%1 and --max-failures of the following array work as without it."""
    first = submit(farm, "0-3")
    array = replace(Array.parse("0-3%1"), max_failures=1)
    waits = Waits(after=(Dependency(first, Condition.CORR),))
    second = farm.requests.submit(make_spec(array=array, mem_bytes=GIB // 64, waits=waits)).id
    for run in [must_claim(farm) for _ in range(3)]:
        end(farm, run)
    one = must_claim(farm)  # the last of the first array comes before
    run = must_claim(farm)
    assert (first + 4, second + 1) == (one.job_id, run.job_id)
    assert (None, WaitReason.ARRAY_LIMIT) == (claim(farm), job_of(farm, second).reason)

    end(farm, run, 1)

    assert (None, ("", "1-3", "3")) == (claim(farm), left(farm, second)[:3])
    end(farm, one)
    farm.jobs.part(second, "release")
    assert second + 2 == must_claim(farm).job_id


def test_steps_and_gaps_are_kept(farm: JobQueue) -> None:
    """Indexes with steps follow as well, in the order in which the counterparts end."""
    first = submit(farm, "0-20:5,30,40-42")
    second = submit(farm, "0-20:5,30,40-42", first)
    runs = {run.member.index: run for run in [must_claim(farm) for _ in range(9)]}
    for index in (10, 41, 0):
        end(farm, runs[index])
    assert "5,15-20:5,30,40,42" == left(farm, second)[2]
    assert [0, 10, 41] == [must_claim(farm).member.index for _ in range(3)]
    assert claim(farm) is None


def test_what_ended_before_the_submit_counts(farm: JobQueue, recorded: Recorded) -> None:
    """Members that ended before the submit count too: those in the store, and those that only the history has."""
    first = submit(farm, "0-5")
    runs = [must_claim(farm) for _ in range(6)]
    end(farm, runs[0])
    end(farm, runs[1], 1)
    assert ("0,2-5", "", "2-5", {"cancelled": 1}) == left(farm, submit(farm, "0-5", first))
    recorded.record()
    with pytest.raises(Unknown) as raised:
        submit(farm, "0-5", first)
    assert ((first,), first) == (raised.value.job_ids, raised.value.followed)
    end(farm, runs[2])

    waits = Waits(after=(Dependency(first, Condition.CORR),))
    spec = make_spec(array=Array.parse("0-5"), mem_bytes=GIB // 64, waits=waits)
    known = {first: recorded.database.member_ends(first)}
    third = farm.requests.submit(spec, ends=known).id

    assert ("0,2-5", "", "3-5", {"cancelled": 1}) == left(farm, third)


def test_an_array_that_is_over_counts_by_its_history(farm: JobQueue, recorded: Recorded) -> None:
    """Members of an array that ended long ago count; if none succeeded, the submit is refused."""
    first, none = submit(farm, "0-2"), submit(farm, "0")
    for code, run in zip((0, 1, 0, 1), [must_claim(farm) for _ in range(4)], strict=True):
        end(farm, run, code)
    recorded.record()

    def follow(array_id: int, text: str) -> int:
        waits = Waits(after=(Dependency(array_id, Condition.CORR),))
        spec = make_spec(array=Array.parse(text), mem_bytes=GIB // 64, waits=waits)
        return farm.requests.submit(spec, ends={array_id: recorded.database.member_ends(array_id)}).id

    second = follow(first, "0-2")
    assert [0, 2] == [must_claim(farm).member.index for _ in range(2)]
    assert (None, {"cancelled": 1}, ()) == (claim(farm), left(farm, second)[3], job_of(farm, second).awaits)
    with pytest.raises(Impossible):
        follow(none, "0")
    with pytest.raises(BadRequest, match=f"job {first} has 0-2, this one 0-3"):
        follow(first, "0-3")


def test_arrays_of_other_indexes_are_refused(farm: JobQueue) -> None:
    """An array can follow only an array of the same indexes, and only one; a single job none."""
    first, job = submit(farm, "0-3"), farm.requests.submit(make_spec()).id
    with pytest.raises(BadRequest, match=f"job {first} has 0-3, this one 0-4"):
        submit(farm, "0-4", first)
    with pytest.raises(BadRequest, match=f"job {job} is no array"):
        submit(farm, "0-3", job)
    with pytest.raises(BadRequest, match="only one other array"):
        submit(farm, "0-3", first, job)
    with pytest.raises(BadRequest, match="is for arrays"):
        make_spec(waits=Waits(after=(Dependency(first, Condition.CORR),)))


def test_an_edit_follows_another_array_or_none(farm: JobQueue) -> None:
    """While no member has begun, an edit can name another array, or none."""
    first, other = submit(farm, "0-1"), submit(farm, "0-1")
    second = submit(farm, "0-1", first)
    runs = [must_claim(farm) for _ in range(4)]

    def after(spec: JobSpec, *wanted: Dependency) -> JobSpec:
        return replace(spec, waits=replace(spec.waits, after=wanted))

    end(farm, runs[2])
    farm.requests.edit(second, lambda spec: after(spec, Dependency(other, Condition.CORR)), after=True)
    assert "1" == left(farm, second)[2]
    farm.requests.edit(second, after, after=True)
    assert ("", ()) == (left(farm, second)[2], job_of(farm, second).awaits)
    assert second + 1 == must_claim(farm).job_id


def test_it_comes_back_with_a_store_that_lost_its_data(recorded: Recorded, farm: JobQueue) -> None:
    """After a rebuild each member still waits for its counterpart, and those that may start do."""
    first = submit(farm, "0-3")
    second = submit(farm, "0-3", first)
    runs = [must_claim(farm) for _ in range(4)]
    end(farm, runs[1])
    end(farm, runs[2], 1)
    recorded.record()
    recorded.rebuild()
    recorded.end_pause()
    serve(farm, make_offer(slots=100))

    assert ("0-1,3", "", {"cancelled": 1}) == tuple(left(farm, second)[place] for place in (0, 1, 3))
    assert (second + 2, None) == (must_claim(farm).job_id, claim(farm))
    end(farm, runs[3])
    end(farm, runs[0], 1)
    assert (second + 4, None) == (must_claim(farm).job_id, claim(farm))
    assert ("", "", "", {"cancelled": 2}) == left(farm, second)


def test_a_large_array_is_followed_by_ranges(farm: JobQueue, client: redis.Redis) -> None:
    """An array of a hundred thousand members is followed by a few texts, whatever its number of members."""
    first = submit(farm, "0-99999")
    keys_before = client.dbsize()
    second = submit(farm, "0-99999", first)
    run = must_claim(farm)
    farm.jobs.part(first, "hold")

    end(farm, run)

    assert (second + 1, None) == (must_claim(farm).job_id, claim(farm))
    assert "1-99999" == left(farm, second)[2]
    assert client.dbsize() - keys_before < 20


def test_a_cancelled_follower_cancels_its_own_followers(farm: JobQueue) -> None:
    """Down a chain only the members of the failed index are cancelled, each at once."""
    first = submit(farm, "0-1")
    second = submit(farm, "0-1", first)
    third = submit(farm, "0-1", second)
    runs = [must_claim(farm), must_claim(farm)]

    end(farm, runs[0], 1)

    assert [("1", "", "1", {"cancelled": 1})] * 2 == [left(farm, second), left(farm, third)]
    end(farm, runs[1])
    end(farm, must_claim(farm))
    assert third + 2 == must_claim(farm).job_id
