"""Arrays in a store that lost its data: no member runs twice, however scattered the remaining members are."""

from __future__ import annotations

from dataclasses import replace

import pytest
import sqlalchemy as sa
from factories import claim, end, job_of, make_offer, make_spec, must_claim, serve
from findings import findings
from history_fixtures import Recorded
from store_dump import dump, faults

from gpuqueue.doctor.queue import arrays
from gpuqueue.doctor.site import Site
from gpuqueue.history.tables import jobs
from gpuqueue.model.array import MOST_MEMBERS, Array, Indexes, Member, Tally
from gpuqueue.model.dependencies import Dependency, Waits
from gpuqueue.model.finding import Finding, Grade
from gpuqueue.model.job import JobState, WaitReason
from gpuqueue.queue import job_fields as stored
from gpuqueue.queue import keys
from gpuqueue.queue.connect import connect
from gpuqueue.queue.diagnostics import queue_facts
from gpuqueue.queue.jobqueue import JobQueue
from gpuqueue.settings.settings import Settings
from gpuqueue.text.units import GIB

LEASE_S = 300.0


def submit(queue: JobQueue, indexes: str) -> int:
    """Submit an array that the device can take and return its id."""
    serve(queue, make_offer(slots=100))
    return queue.requests.submit(make_spec(mem_bytes=GIB // 64, array=Array.parse(indexes))).id


def tally(queue: JobQueue, array_id: int) -> Tally:
    """Return the progress of an array."""
    found = job_of(queue, array_id).tally
    assert found is not None
    return found


def lose_data(recorded: Recorded) -> None:
    """Rebuild the store from the history, with claims allowed at once."""
    recorded.rebuild()
    recorded.end_pause()
    assert [] == faults(dump(recorded.store))
    serve(recorded.queue, make_offer(slots=100))


def whats_wrong(queue: JobQueue) -> list[str]:
    """Return the faults of the store."""
    client = connect(queue.url)
    found = faults(dump(client))
    client.close()
    return found


def doctor_of(queue: JobQueue) -> Finding:
    """Return the doctor's finding about the arrays of the queue."""
    site = Site(Settings.load())
    site.queue = lambda: queue_facts(queue.url)
    (found,) = findings([arrays], site)
    return found


@pytest.mark.full
def test_a_scattered_array_with_a_long_text_of_remaining_members_is_restored(
    queue: JobQueue, recorded: Recorded
) -> None:
    # Regression: the text was too long for the rebuild script, so all members were held, including those that had run.
    array = submit(queue, "0-2999")
    for _ in range(40):
        end(queue, must_claim(queue))
    running = must_claim(queue)
    queue.jobs.hold(array)
    cancelled = range(1000, 3000, 2)
    for index in cancelled:
        queue.jobs.part(array, "cancel", Indexes.parse(str(index)))
    recorded.record()
    before = job_of(queue, array)
    assert len(str(before.tally.held)) > 4096

    lose_data(recorded)

    assert before == job_of(queue, array)
    queue.jobs.release(array)
    assert set(range(41, 3000)).difference(cancelled) == set(tally(queue, array).left)
    assert [Member(array, 41), Member(array, 42)] == [must_claim(queue).member for _ in range(2)]
    end(queue, running)
    queue.jobs.part(array, "cancel", Indexes.parse("43-2998"))
    queue.jobs.cancel(array)
    assert claim(queue) is None
    assert [] == whats_wrong(queue)


def failing_twice(queue: JobQueue) -> int:
    """Submit an array that is held after two failures, let two members fail, and return its id."""
    serve(queue, make_offer(slots=100))
    array = replace(Array.parse("0-9%1"), max_failures=2)
    array_id = queue.requests.submit(make_spec(mem_bytes=GIB // 64, array=array)).id
    for _ in range(2):
        end(queue, must_claim(queue), 1)
    assert JobState.HELD is job_of(queue, array_id).state
    return array_id


def test_an_array_that_was_released_after_failures_stays_released(queue: JobQueue, recorded: Recorded) -> None:
    """Regression: the store did not know of the release any more, and the next claim held the rest again."""
    array = failing_twice(queue)
    queue.jobs.release(array)
    recorded.record()

    lose_data(recorded)

    assert Member(array, 2) == must_claim(queue).member
    assert ("3-9", "") == (str(tally(queue, array).left), str(tally(queue, array).held))
    assert [] == whats_wrong(queue)


def test_the_rest_keeps_its_reason_until_all_of_it_is_released(queue: JobQueue) -> None:
    """Regression: a release of one member, or of one that runs, took the reason from all others."""
    array = failing_twice(queue)
    why = job_of(queue, array).because

    queue.jobs.part(array, "release", Indexes.parse("0"))
    assert why == job_of(queue, array).because == "2 of its members failed and none succeeded"
    queue.jobs.part(array, "release", Indexes.parse("5"))
    assert (why, "5") == (job_of(queue, array).because, str(tally(queue, array).left))
    queue.jobs.release(array)
    assert job_of(queue, array).because is None


@pytest.mark.full
def test_the_most_scattered_array_comes_back(queue: JobQueue, recorded: Recorded) -> None:
    # It has a million members, of which every second one was cancelled and half of the others are held.
    array = submit(queue, f"0-{MOST_MEMBERS - 1}")
    recorded.record()
    left, held = (",".join(map(str, range(first, MOST_MEMBERS, 4))) for first in (0, 2))
    pairs = ",".join(f"{first}-{first + 1}" for first in range(0, MOST_MEMBERS - 1, 3))  # the longest possible text
    for one, other, count in ((left, held, MOST_MEMBERS // 2), (pairs, "", 2 * len(pairs.split(",")))):
        with recorded.database._engine.begin() as connection:
            connection.execute(sa.update(jobs).where(jobs.c.id == array).values(array_left=one, array_held=other))
        client = connect(queue.url)
        recorded.rebuild()

        kept = client.hmget(
            keys.job(array), stored.LEFT, stored.HELD, stored.CANCELLED, stored.STATE, stored.PROGRESS_UNKNOWN
        )
        assert [one, other, str(MOST_MEMBERS - count), "queued", None] == kept
        client.close()


@pytest.mark.parametrize(
    ("left", "held"),
    [("no indexes", ""), ("0-9", ""), ("2-9,", ""), ("2-9", "0-1"), ("2-9", "x"), ("9-2", ""), ("2-1000000", "")],
)
def test_an_array_that_cannot_be_put_back_runs_nothing_twice(
    queue: JobQueue,
    recorded: Recorded,
    caplog: pytest.LogCaptureFixture,
    left: str,
    held: str,
) -> None:
    """An array whose progress is invalid is held, with no member left to release, and the reason is reported."""
    # The cause may be a manual edit of the database.
    array = submit(queue, "0-9")
    ended, running = must_claim(queue), must_claim(queue)
    end(queue, ended)
    recorded.record()
    with recorded.database._engine.begin() as connection:
        connection.execute(sa.update(jobs).where(jobs.c.id == array).values(array_left=left, array_held=held))

    lose_data(recorded)

    assert f"array {array} cannot be put back, it is held: " in caplog.text
    assert JobState.RUNNING is job_of(queue, array).state
    assert claim(queue) is None
    end(queue, running)
    assert not whats_wrong(queue)
    for act in ("release", "hold"):
        queue.jobs.change(act, array)
        after = job_of(queue, array)
        assert (JobState.HELD, WaitReason.HELD) == (after.state, after.reason)
        assert "how far it had come cannot be read" in (after.because or "")
        assert ("", "") == (str(tally(queue, array).left), str(tally(queue, array).held))
        assert claim(queue) is None
    reported = doctor_of(queue)
    assert Grade.WARNING is reported.grade
    assert f"the progress of array {array} is unknown" in reported.seen
    recorded.record()
    kept = recorded.database.get(array)
    assert (JobState.HELD, after.because) == (kept.job.state, kept.job.because)

    queue.jobs.cancel(array)

    assert JobState.CANCELLED is job_of(queue, array).state
    assert Grade.OK is doctor_of(queue).grade
    assert [] == whats_wrong(queue)
    recorded.record()
    kept = recorded.database.get(array)
    assert {"succeeded": 2, "failed": 0, "cancelled": 8, "lost": 0} == kept.job.tally.ended


@pytest.mark.parametrize("well", [True, False])
def test_nor_does_what_such_an_array_waited_for_start_it(queue: JobQueue, recorded: Recorded, *, well: bool) -> None:
    """An array with unknown progress stays held when its dependency ends and after a second data loss."""
    parent = queue.requests.submit(make_spec(mem_bytes=GIB // 64, waits=Waits(hold=True))).id
    waits = Waits(after=(Dependency(parent),))
    array = queue.requests.submit(make_spec(mem_bytes=GIB // 64, array=Array.parse("0-9"), waits=waits)).id
    recorded.record()
    with recorded.database._engine.begin() as connection:
        connection.execute(sa.update(jobs).where(jobs.c.id == array).values(array_left="0-10"))
    for _ in range(2):
        lose_data(recorded)
        recorded.record()
        assert (JobState.HELD, WaitReason.HELD) == (job_of(queue, array).state, job_of(queue, array).reason)

    if well:
        queue.jobs.release(parent)
        end(queue, must_claim(queue))
    else:
        queue.jobs.cancel(parent)
    queue.maintenance.reap(loss_limit=3, lease_s=LEASE_S, tick_s=10)

    assert claim(queue) is None
    assert (JobState.HELD if well else JobState.CANCELLED) is job_of(queue, array).state
    queue.jobs.cancel(array)
    assert [] == whats_wrong(queue)
    assert 10 == tally(queue, array).ended["cancelled"]
