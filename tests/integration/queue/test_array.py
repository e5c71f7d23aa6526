"""Arrays in the store: one entry for all members, and a job for each member once a device takes it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
import redis
from factories import ADA, BOB, claim, end, job_of, make_offer, make_spec, must_claim, serve, submit_and_claim
from store_dump import dump, faults

from gpuqueue.model.array import Array, Indexes, Member
from gpuqueue.model.event import Act
from gpuqueue.model.job import JobState, WaitReason
from gpuqueue.model.job_spec import Priority
from gpuqueue.model.retries import Retries, RetryOn
from gpuqueue.model.sweep import Axis
from gpuqueue.queue import job_fields as stored
from gpuqueue.queue import keys
from gpuqueue.queue.connect import connect
from gpuqueue.queue.jobqueue import JobQueue
from gpuqueue.queue.requests import new_nonce
from gpuqueue.queue.scripts import Scripts
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


def submit(queue: JobQueue, text: str, **changes: object) -> int:
    """Submit an array and return its id."""
    return queue.requests.submit(make_spec(array=Array.parse(text), mem_bytes=GIB // 64, **changes)).id


def left(queue: JobQueue, job_id: int) -> tuple[str, str, dict[str, int]]:
    """Return the waiting members, the held members, and the counts of the endings that occurred."""
    tally = job_of(queue, job_id).tally
    return str(tally.left), str(tally.held), {state: count for state, count in tally.ended.items() if count}


def test_one_submit_makes_one_entry(farm: JobQueue, client: redis.Redis) -> None:
    """One submit of ten thousand members makes one entry and reserves the ids after the array's own for them."""
    first = submit(farm, "0-9999")
    after = farm.requests.submit(make_spec())

    assert [first, first + 10_001] == [job.id for job in farm.jobs.live()] == [first, after.id]
    assert 1 == len([key for key in client.keys("*") if ":s:" in key and key.endswith(f":{first}")])
    job = job_of(farm, first)
    assert (JobState.QUEUED, "0-9999", None) == (job.state, left(farm, first)[0], job.member)


def test_members_come_one_by_one_and_know_who_they_are(farm: JobQueue) -> None:
    """Members are claimed one by one, with their own arguments and environment and the rest of the array's request."""
    sweep = Array.sweep([Axis.parse("lr=1e-3,1e-4"), Axis.parse("seed=0..1")])
    spec = make_spec(argv=("train", "--lr={lr}", '{"a": {}}', "{seed}"), array=sweep, mem_bytes=GIB // 64)
    first = farm.requests.submit(spec).id

    claims = [must_claim(farm) for _ in range(4)]

    assert [(first + 1 + k, Member(first, k), 1) for k in range(4)] == [(c.job_id, c.member, c.attempt) for c in claims]
    assert ("train", "--lr=1e-4", '{"a": {}}', "0") == claims[2].spec.argv
    assert {"GPUQUEUE_ARRAY_INDEX": "2", "GPUQUEUE_SWEEP_LR": "1e-4", "GPUQUEUE_ARRAY_COUNT": "4"}.items() <= (
        claims[2].spec.env.items()
    )
    assert claim(farm) is None
    assert claims[1].spec == job_of(farm, first + 2).spec
    assert JobState.RUNNING is job_of(farm, first).state


def test_an_array_keeps_its_place(farm: JobQueue) -> None:
    """Jobs submitted after an array come after all its members, and a job of higher priority comes first."""
    first = submit(farm, "0-1")
    last = farm.requests.submit(make_spec(mem_bytes=GIB // 64)).id
    taken = [must_claim(farm).job_id]
    urgent = farm.requests.submit(make_spec(priority=Priority.HIGH)).id

    taken += [must_claim(farm).job_id for _ in range(3)]

    assert [first + 1, urgent, first + 2, last] == taken


def test_users_take_turns_with_an_array(farm: JobQueue) -> None:
    """An array's user gains usage with each member, so a million members keep no other user waiting."""
    submit(farm, "0-99", account=ADA)
    bobs = farm.requests.submit(make_spec(account=BOB)).id

    assert bobs in [must_claim(farm).job_id for _ in range(2)]


def test_a_claim_sent_twice_gets_the_same_member(farm: JobQueue) -> None:
    """A claim that is repeated because its reply got lost gets the same member."""
    first, nonce = submit(farm, "0-9"), new_nonce()

    assert must_claim(farm, nonce=nonce) == must_claim(farm, nonce=nonce)
    assert "1-9" == left(farm, first)[0]


def test_at_its_concurrency_limit_an_array_is_skipped_by_claims(farm: JobQueue) -> None:
    # It comes back when a member ends.
    first = submit(farm, "0-9%2")
    one, two = must_claim(farm), must_claim(farm)

    assert claim(farm) is None
    assert (JobState.QUEUED, WaitReason.ARRAY_LIMIT) == (job_of(farm, first).state, job_of(farm, first).reason)
    end(farm, one)
    assert WaitReason.MEMORY is job_of(farm, first).reason
    three = must_claim(farm)
    assert (first + 3, None) == (three.job_id, claim(farm))
    farm.runs.release_claim(two.job_id, two.token, "full")  # a released member still counts, and goes first
    assert (two.job_id, None) == (must_claim(farm).job_id, claim(farm))


@pytest.mark.parametrize(
    ("codes", "state"), [([0, 0], JobState.SUCCEEDED), ([0, 1], JobState.FAILED), ([1, 0], JobState.FAILED)]
)
def test_an_array_ends_with_its_last_member(farm: JobQueue, codes: list[int], state: JobState) -> None:
    # It succeeds if all members succeeded.
    first = submit(farm, "0-1")
    claims = [must_claim(farm), must_claim(farm)]

    end(farm, claims[0], codes[0])
    assert JobState.RUNNING is job_of(farm, first).state
    end(farm, claims[1], codes[1])

    assert state is job_of(farm, first).state
    assert sum(left(farm, first)[2].values()) == 2


def test_a_lost_member_runs_again_as_a_job_of_its_own(farm: JobQueue) -> None:
    first = submit(farm, "0")
    claimed = must_claim(farm)

    assert JobState.QUEUED is farm.runs.lose(claimed.job_id, claimed.token, loss_limit=3, detail="gone")
    again = must_claim(farm)

    assert (first + 1, 2, Member(first, 0), claimed.spec) == (again.job_id, again.attempt, again.member, again.spec)
    end(farm, again)
    assert JobState.SUCCEEDED is job_of(farm, first).state


def test_a_part_is_cancelled(farm: JobQueue) -> None:
    """Members can be cancelled: waiting ones at once, running ones by their worker, and the other members continue."""
    first = submit(farm, "0-9")
    runs = [must_claim(farm) for _ in range(2)]

    done = farm.jobs.part(first, "cancel", Indexes.parse("1,3-5"))

    assert (JobState.QUEUED, 4) == (done.state, done.moved)
    assert ("2,6-9", "", {"cancelled": 3}) == left(farm, first)
    assert [JobState.STARTING, JobState.CANCELLING] == [job_of(farm, each.job_id).state for each in runs]
    assert first + 3 == must_claim(farm).job_id


def test_a_cancelled_array_is_cancelling_until_its_last_run_has_ended(farm: JobQueue) -> None:
    first = submit(farm, "0-9")
    run = must_claim(farm)

    assert JobState.CANCELLING is farm.jobs.cancel(first)
    assert claim(farm) is None
    end(farm, run, -15, state=JobState.CANCELLED)
    assert JobState.CANCELLED is job_of(farm, first).state is farm.jobs.cancel(first)
    waiting = submit(farm, "0-9")
    assert JobState.CANCELLED is farm.jobs.cancel(waiting)


def test_a_part_is_held_and_released(farm: JobQueue) -> None:
    """Held members are skipped, and come back at their old place when they are released."""
    first = submit(farm, "0-5:2,8-9")

    held = farm.jobs.part(first, "hold", Indexes.parse("0-3,9"))
    assert 3 == held.moved
    assert ("4,8", "0-2:2,9", {}) == left(farm, first)
    assert [first + 5, first + 9] == [must_claim(farm).job_id for _ in range(2)]
    assert claim(farm) is None
    released = farm.jobs.part(first, "release", Indexes.parse("2"))
    assert (JobState.QUEUED, 1) == (released.state, released.moved)
    assert first + 3 == must_claim(farm).job_id
    assert ("", "0,9", {}) == left(farm, first)


def test_a_hold_of_an_array_lets_its_runs_continue(farm: JobQueue) -> None:
    # Once they have ended the array is held, until a release.
    first = submit(farm, "0-9")
    run = must_claim(farm)

    assert JobState.RUNNING is farm.jobs.hold(first)
    end(farm, run)
    assert (JobState.HELD, WaitReason.HELD) == (job_of(farm, first).state, job_of(farm, first).reason)
    assert claim(farm) is None
    assert JobState.QUEUED is farm.jobs.release(first)
    assert first + 2 == must_claim(farm).job_id


def test_an_array_is_forgotten_after_its_last_member(farm: JobQueue, client: redis.Redis) -> None:
    """An array is dropped after its last member, because its members use its spec."""
    first = submit(farm, "0-1")
    claims = [must_claim(farm), must_claim(farm)]
    end(farm, claims[0])
    ms, n = farm.outbox.events("0-0")[-1].id.split("-")
    assert 1 == Scripts(client).run("settle", ms, n)
    assert claims[1].spec == job_of(farm, claims[1].job_id).spec

    end(farm, claims[1])
    ms, n = farm.outbox.events("0-0")[-1].id.split("-")
    assert 2 == Scripts(client).run("settle", ms, n)
    assert [] == [key for key in client.keys("*") if f"{first}" in key.split(":")[-1] and ":j:" in key]


def test_a_reservation_is_for_its_next_member(queue: JobQueue) -> None:
    """A reservation of an array is for its next member, and later for the one after it, which waits from then on."""
    serve(queue, make_offer(slots=8))
    small = submit_and_claim(queue, mem_bytes=10 * GIB)
    first = queue.requests.submit(make_spec(mem_bytes=20 * GIB, array=Array.parse("0-3"))).id
    later = queue.requests.submit(make_spec(mem_bytes=8 * GIB)).id

    assert [first] == [each.job_id for each in queue.maintenance.reserve(after_s=0, most=1)]
    assert claim(queue) is None, "it passed the array, and takes the room that is kept"
    found = queue.jobs.why(first)
    assert (JobState.QUEUED, (small.job_id,)) == (found.state, found.start.blockers if found.start else None)
    end(queue, small)
    assert first + 1 == must_claim(queue).job_id
    assert [later] == [each.job_id for each in queue.maintenance.reserve(after_s=0, most=1)], "it has waited longer"
    queue.jobs.cancel(later)
    assert [first] == [each.job_id for each in queue.maintenance.reserve(after_s=0, most=1)]


def test_waiting_counts_from_the_last_member_taken(farm: JobQueue, client: redis.Redis) -> None:
    """Aging of an array counts from the last claimed member, not from the submission."""
    # An array that is being served is not promoted above other jobs.
    first = submit(farm, "0-9")
    client.hset(f"{{gq}}:j:{first}", stored.SUBMITTED_MS, 1_000_000)
    taken = must_claim(farm)

    assert 0 == farm.maintenance.promote(after_s=3600, most=10)
    farm.runs.lose(taken.job_id, taken.token, loss_limit=3, detail="gone")
    assert 0 == farm.maintenance.promote(after_s=3600, most=10), "nor is a member that waits again"
    client.hdel(f"{{gq}}:j:{first}", stored.MEMBER_CLAIMED_MS)
    assert 1 == farm.maintenance.promote(after_s=3600, most=10)


def test_who_keeps_an_array_aside_lets_it_in_again(farm: JobQueue, client: redis.Redis) -> None:
    """A change to some members does not let an array back into the queue while another reason keeps it out."""
    first = submit(farm, "0-9")
    client.hset(f"{{gq}}:j:{first}", stored.REASON, "device")
    client.delete(*(key for key in client.keys("*") if key.split(":")[1] in {"q", "us", "ul", "sh", "su"}))

    farm.jobs.part(first, "cancel", Indexes.parse("3"))

    assert claim(farm) is None
    assert (JobState.QUEUED, WaitReason.DEVICE) == (job_of(farm, first).state, job_of(farm, first).reason)
    assert JobState.CANCELLED is farm.jobs.cancel(first)


def test_no_member_is_there_twice(farm: JobQueue, client: redis.Redis) -> None:
    """A member that is a job already is never made again, even if the text of remaining members is wrong."""
    first = submit(farm, "0-2")
    one = must_claim(farm)
    client.hset(f"{{gq}}:j:{first}", stored.LEFT, "0-2")

    assert [first + 2, first + 3] == [must_claim(farm).job_id for _ in range(2)]
    assert one.spec == job_of(farm, one.job_id).spec


def test_a_million_members_cost_a_claim_no_more(farm: JobQueue, client: redis.Redis) -> None:
    """A claim on a million members costs no more than on a few: the remaining members are one range."""
    first = submit(farm, "0-999999")

    assert first + 1 == must_claim(farm).job_id
    assert "1-999999" == client.hget(f"{{gq}}:j:{first}", stored.LEFT)


@pytest.mark.full
def test_an_edit_of_thousands_of_members_reports_all_of_them(farm: JobQueue, client: redis.Redis) -> None:
    # Regression: Lua returns at most eight thousand values, so the change was made half-way and could not be repeated.
    array = submit(farm, "0-3")
    ids = [str(10**6 + number) for number in range(9000)]
    for number in ids:
        client.hset(keys.job(number), stored.INDEX, 3)
    client.sadd(keys.members(array), *ids)

    _, moved, *others = Scripts(client).run("edit_members", array, "hold", "", "")

    client.delete(keys.members(array), *map(keys.job, ids))
    assert ("0-3", set(ids)) == (moved, set(others))


def failing(queue: JobQueue, text: str, max_failures: int, **changes: object) -> int:
    """Submit an array whose rest is held after *max_failures*, and return its id."""
    array = replace(Array.parse(text), max_failures=max_failures)
    return queue.requests.submit(make_spec(array=array, mem_bytes=GIB // 64, **changes)).id


def test_the_rest_of_an_array_is_held_after_failures_without_a_success(farm: JobQueue) -> None:
    """Members that run go on. The array is held with its last run, and says why; no member starts meanwhile."""
    first = failing(farm, "0-9%4", 2)
    runs = [must_claim(farm) for _ in range(4)]

    end(farm, runs[0], 1)
    assert ("4-9", "") == left(farm, first)[:2]
    end(farm, runs[1], 1)

    assert ("", "4-9", {"failed": 2}) == left(farm, first)
    held = job_of(farm, first)
    assert (JobState.RUNNING, "2 of its members failed and none succeeded") == (held.state, held.because)
    assert claim(farm) is None
    (event,) = [each for each in farm.outbox.events("0-0") if each.act is Act.HOLD]
    assert {"left": "", "held": "4-9", "because": held.because} == event.fields
    end(farm, runs[2])
    end(farm, runs[3], 1)
    after = job_of(farm, first)
    assert (JobState.HELD, WaitReason.HELD, held.because) == (after.state, after.reason, after.because)
    assert claim(farm) is None


def test_a_success_lets_an_array_go_on_however_many_members_fail(farm: JobQueue) -> None:
    first = failing(farm, "0-9", 1)
    end(farm, must_claim(farm), 0)

    for _ in range(3):
        end(farm, must_claim(farm), 1)

    assert ("4-9", "", {"succeeded": 1, "failed": 3}) == left(farm, first)


def test_after_a_release_only_new_failures_hold_an_array(farm: JobQueue) -> None:
    """A release is another try: as many members may fail again. The reason goes with the release."""
    first = failing(farm, "0-9", 2)
    for _ in range(2):
        end(farm, must_claim(farm), 1)
    assert (JobState.HELD, "2-9") == (job_of(farm, first).state, left(farm, first)[1])

    assert JobState.QUEUED is farm.jobs.release(first)

    assert (None, "2-9") == (job_of(farm, first).because, left(farm, first)[0])
    assert "" == farm.outbox.events("0-0")[-1].fields["because"]
    end(farm, must_claim(farm), 1)
    assert "3-9" == left(farm, first)[0]
    end(farm, must_claim(farm), 1)
    assert ("", "4-9") == left(farm, first)[:2]
    assert "4 of its members failed and none succeeded" == job_of(farm, first).because


def test_a_lost_member_counts_as_a_failure(farm: JobQueue) -> None:
    first = failing(farm, "0-9", 2, requeue=False)
    one, other = must_claim(farm), must_claim(farm)
    end(farm, one, 1)

    farm.runs.lose(other.job_id, other.token, loss_limit=1, detail="gone")

    assert ("", "2-9", {"failed": 1, "lost": 1}) == left(farm, first)


def test_a_member_that_is_retried_or_cancelled_is_no_failure(farm: JobQueue) -> None:
    first = failing(farm, "0-9", 1, retries=Retries(times=1, on=(RetryOn.FAILED,)))
    one, other = must_claim(farm), must_claim(farm)

    assert JobState.QUEUED is end(farm, one, 1)
    farm.jobs.cancel(other.job_id)
    end(farm, other, -15, state=JobState.CANCELLED)

    assert ("2-9", "", {"cancelled": 1}) == left(farm, first)


def test_an_array_without_such_a_number_is_never_held(farm: JobQueue) -> None:
    for number in (None, 0):
        first = farm.requests.submit(
            make_spec(array=replace(Array.parse("0-5"), max_failures=number), mem_bytes=GIB // 64)
        ).id
        for _ in range(5):
            end(farm, must_claim(farm), 1)
        assert "5" == left(farm, first)[0]
        end(farm, must_claim(farm), 1)
