"""Edits of a waiting job's request: an edit applies completely or not at all."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import redis
from factories import BOB, claim, end, job_of, must_claim, serve, submit
from history_fixtures import Recorded
from site_of_one import Site
from store_dump import digest, dump, faults

from gpuqueue.errors import BadRequest, Impossible, JobNotFound, Refused, Unreadable
from gpuqueue.history.connect import writing
from gpuqueue.history.tables import jobs
from gpuqueue.model.array import Array, Indexes
from gpuqueue.model.dependencies import Condition, Dependency, Waits
from gpuqueue.model.device import DeviceFilter
from gpuqueue.model.job import JobState, WaitReason
from gpuqueue.model.job_spec import JobSpec, Priority
from gpuqueue.model.retries import Retries, RetryOn
from gpuqueue.model.run import Ending
from gpuqueue.queue import job_fields as stored
from gpuqueue.queue import keys
from gpuqueue.queue.jobqueue import JobQueue
from gpuqueue.text.units import GIB


def to(**changes: Any) -> Callable[[JobSpec], JobSpec]:
    """Return an edit that sets these fields of a request."""
    return lambda spec: replace(spec, **changes)


def after(*ids: int) -> Waits:
    """Return the waits of a job that comes after other jobs."""
    return Waits(after=tuple(map(Dependency, ids)))


def test_an_edited_job_keeps_its_place_and_runs_as_it_was_edited(queue: JobQueue, store: redis.Redis) -> None:
    """An edited job keeps its place, and its claim uses the edited memory, devices, time limit, name and pool."""
    serve(queue)
    first, second = submit(queue, mem_bytes=23 * GIB), submit(queue, mem_bytes=4 * GIB)

    assert JobState.QUEUED is queue.requests.edit(first, to(mem_bytes=4 * GIB, time_limit_s=60.0, name="smaller"))

    assert [] == faults(dump(store))
    claims = [must_claim(queue) for _ in range(2)]
    assert [first, second] == [each.job_id for each in claims]
    assert (4 * GIB, "smaller", 60.0) == (claims[0].lease_bytes, claims[0].spec.name, claims[0].spec.time_limit_s)


def test_a_held_job_stays_held_and_a_priority_counts_at_once(queue: JobQueue, store: redis.Redis) -> None:
    """An edit of a held job keeps it held, and an edited priority applies at once."""
    # An edit of another field does not undo a promotion by aging.
    serve(queue)
    first, second = submit(queue), submit(queue)
    queue.jobs.hold(first)

    assert JobState.HELD is queue.requests.edit(first, to(priority=Priority.HIGH), priority=True)
    queue.requests.edit(second, to(priority=Priority.HIGH), priority=True)
    third = submit(queue, account=BOB)
    for each in (first, second, third):
        store.hset(keys.job(each), stored.SUBMITTED_MS, 1)
    queue.maintenance.promote(after_s=1000)
    queue.requests.edit(third, to(name="x"))

    found = queue.jobs.why(third)
    assert Priority.HIGH is found.priority
    assert claim(queue) is not None
    assert JobState.HELD is job_of(queue, first).state


def test_what_runs_or_has_ended_cannot_be_edited(queue: JobQueue, store: redis.Redis) -> None:
    # The error is one line and nothing changes.
    serve(queue)
    submit(queue)
    claimed = must_claim(queue)
    for output in ("is starting", "has succeeded"):
        before = digest(store)
        with pytest.raises(Refused, match=f"job 1 {output}: only a job that waits can be edited"):
            queue.requests.edit(1, to(name="x"))
        assert before == digest(store)
        ending = Ending.from_status(0)
        queue.runs.finish(1, claimed.token, state=JobState.SUCCEEDED, ending=ending, duration_s=1.0, devices=())
    assert queue.requests.edit(77, to(name="x")) is None


@pytest.mark.parametrize(
    ("change", "error", "reported"),
    [
        (to(mem_bytes=80 * GIB), Impossible, {}),
        (to(gpus=3), Impossible, {}),
        (to(pool="p"), Impossible, {}),
        (to(waits=after(3)), BadRequest, {"after": True}),
        (to(waits=after(2)), BadRequest, {"after": True}),
        (to(waits=after(77)), JobNotFound, {"after": True}),
        (to(waits=Waits(after=(Dependency(1, Condition.OK),)), mem_bytes=-1), BadRequest, {"after": True}),
    ],
)
def test_an_edit_that_cannot_be_changes_nothing(
    queue: JobQueue,
    store: redis.Redis,
    change: Callable[[JobSpec], JobSpec],
    error: type[Exception],
    reported: dict[str, bool],
) -> None:
    # Cases: more than any device has, a dependency on a dependant, on itself, or on an unknown job.
    serve(queue)
    submit(queue)
    submit(queue, waits=after(1))
    submit(queue, waits=after(2))
    before = digest(store)

    with pytest.raises(error):
        queue.requests.edit(2, change, priority=False, after=reported.get("after", False), begin=False)

    assert before == digest(store)


def test_a_dependency_cycle_is_found_over_any_number_of_jobs(queue: JobQueue) -> None:
    serve(queue)
    ids = [submit(queue)]
    for _ in range(50):
        ids.append(submit(queue, waits=after(ids[-1])))

    with pytest.raises(BadRequest, match=f"cannot come after job {ids[-1]}: job {ids[-1]} waits for it"):
        queue.requests.edit(ids[0], to(waits=after(ids[-1])), after=True)


def test_an_edit_can_remove_or_replace_dependencies(queue: JobQueue, store: redis.Redis) -> None:
    # The old ones do not matter any more.
    serve(queue)
    first, second = submit(queue), submit(queue)
    third, fourth = submit(queue, waits=after(first)), submit(queue, waits=after(first))

    queue.requests.edit(third, to(waits=Waits()), after=True)
    queue.requests.edit(fourth, to(waits=after(second)), after=True)
    assert WaitReason.MEMORY is job_of(queue, third).reason
    queue.jobs.cancel(first)

    assert (Dependency(second),) == job_of(queue, fourth).awaits
    queue.jobs.cancel(second)
    assert JobState.CANCELLED is job_of(queue, fourth).state
    assert [] == faults(dump(store))


def test_a_running_array_whose_ticket_is_renewed_gets_another_concurrency_limit(queue: JobQueue) -> None:
    """The service renews the ticket of a job with each edit. That is no other change of the request."""
    serve(queue)
    array = submit(queue, array=Array(indexes=Indexes.parse("0-9"), at_once=1), ticket="the first")
    must_claim(queue)

    more = replace(Array(indexes=Indexes.parse("0-9")), at_once=3)
    assert JobState.QUEUED is queue.requests.edit(array, to(array=more, ticket="a newer one"))

    assert (3, "a newer one") == (job_of(queue, array).spec.array.at_once, job_of(queue, array).spec.ticket)
    with pytest.raises(Refused, match="only --at-once"):
        queue.requests.edit(array, to(array=more, name="other", ticket="a newer one"))


def test_two_edits_at_once_both_count(queue: JobQueue) -> None:
    """Two concurrent edits both apply: the slower one edits the result of the faster one."""
    serve(queue)
    job_id = submit(queue)
    met = threading.Barrier(2, timeout=20)
    tried: list[str] = []

    def edit(**changes: Any) -> None:
        mine = JobQueue(queue.url)

        def change(spec: JobSpec) -> JobSpec:
            if not tried or threading.current_thread().name not in tried:
                tried.append(threading.current_thread().name)
                met.wait()
            return replace(spec, **changes)

        mine.requests.edit(job_id, change)
        mine.close()

    threads = [threading.Thread(target=edit, kwargs=each) for each in ({"name": "other"}, {"mem_bytes": 2 * GIB})]
    for each in threads:
        each.start()
    for each in threads:
        each.join(20)

    spec = job_of(queue, job_id).spec
    assert ("other", 2 * GIB) == (spec.name, spec.mem_bytes)


def test_an_edit_is_recorded_and_restored(queue: JobQueue, recorded: Recorded, store: redis.Redis) -> None:
    """The history records an edit, and a rebuilt store has the edited job, bound to a GPU as before."""
    serve(queue)
    job_id = submit(queue, device=DeviceFilter.ANY)
    queue.requests.edit(job_id, to(name="other", mem_bytes=3 * GIB, device=None, waits=after()), after=True)
    recorded.record()
    record = recorded.database.get(job_id)
    assert ("other", 3 * GIB) == (record.job.spec.name, record.job.spec.mem_bytes)

    shape = store.hget(keys.job(job_id), stored.SHAPE)
    recorded.rebuild()

    assert shape == store.hget(keys.job(job_id), stored.SHAPE)
    assert "other" == job_of(queue, job_id).spec.name


def test_a_request_that_cannot_be_read_cannot_be_edited(queue: JobQueue, store: redis.Redis) -> None:
    # The placeholder shown for it must not become the request.
    job_id = submit(queue)
    store.set(keys.spec(job_id), "{")

    with pytest.raises(Unreadable):
        queue.requests.edit(job_id, to(name="x"))


def run_next(queue: JobQueue, code: int) -> None:
    """Run the next job, which exits with *code*."""
    end(queue, must_claim(queue), code)


def at_once(queue: JobQueue, job_id: int) -> None:
    """End the pause before the next run."""
    queue.requests.edit(job_id, to(), begin=True)
    assert WaitReason.MEMORY is job_of(queue, job_id).reason


RETRIES = Retries(times=3, on=(RetryOn.ANY,))


@pytest.mark.parametrize("way", ["in its pause", "after its pause", "held", "given back", "after a rebuild"])
def test_a_retry_that_is_to_come_cannot_be_taken_back(queue: JobQueue, recorded: Recorded, way: str) -> None:
    """A pending retry cannot be removed by an edit: it was granted and is run."""
    # Regression: the edit was accepted once the pause was over or the job was held.
    serve(queue)
    job_id = submit(queue, retries=RETRIES)
    run_next(queue, 1)
    at_once(queue, job_id)
    run_next(queue, 1)
    if way in {"after its pause", "given back"}:
        at_once(queue, job_id)
    if way == "given back":
        run = must_claim(queue)
        queue.runs.release_claim(job_id, run.token, "full")
    if way == "held":
        queue.jobs.hold(job_id)
    if way == "after a rebuild":
        lose_the_store(recorded)
    before = job_of(queue, job_id)

    with pytest.raises(Refused, match=rf"job {job_id} waits for its retry 2 already: .*, or --retries 2 to make this"):
        queue.requests.edit(job_id, to(retries=Retries(times=1, on=(RetryOn.ANY,))))

    assert before == job_of(queue, job_id)
    queue.requests.edit(job_id, to(retries=Retries(times=2, on=(RetryOn.ANY,))))


@pytest.mark.parametrize("way", ["in its pause", "after a rebuild", "lost"])
def test_who_asked_to_be_requeued_may_have_no_more_retries(queue: JobQueue, recorded: Recorded, way: str) -> None:
    """An edit may remove the retries of a job that waits after a requeue (exit code 75) or a loss."""
    # Neither of them is a retry.
    serve(queue)
    job_id = submit(queue, retries=RETRIES)
    for _ in range(2):
        run_next(queue, 1)
        at_once(queue, job_id)
    if way == "lost":
        run = must_claim(queue)
        queue.runs.lose(job_id, run.token, loss_limit=3, detail="gone")
    else:
        run_next(queue, 75)
    if way == "after a rebuild":
        lose_the_store(recorded)

    queue.requests.edit(job_id, to(retries=Retries()))

    if way != "lost":
        at_once(queue, job_id)
    run_next(queue, 1)
    assert JobState.FAILED is job_of(queue, job_id).state


@pytest.mark.parametrize("way", ["in its pause", "asked for again", "held", "held before"])
def test_a_job_that_has_run_still_waits_for_others_after_a_rebuild(
    queue: JobQueue, recorded: Recorded, way: str
) -> None:
    # Regression: because it had run, all its dependencies counted as over, including those added since.
    serve(queue)
    done, parent = submit(queue), submit(queue, waits=Waits(hold=True))
    run_next(queue, 0)
    job_id = submit(queue, retries=RETRIES, waits=after(done))
    run_next(queue, 75 if way == "asked for again" else 1)
    if way == "held before":
        queue.jobs.hold(job_id)
    queue.requests.edit(job_id, to(waits=after(done, parent)), after=True)
    if way == "held":
        queue.jobs.hold(job_id)
    before = job_of(queue, job_id)
    assert (Dependency(parent),) == before.awaits

    for _ in range(2):
        lose_the_store(recorded)
        queue.maintenance.reap(loss_limit=3, lease_s=300, tick_s=10)  # which releases the dependants of ended jobs
        assert before == job_of(queue, job_id)

    if way.startswith("held"):
        queue.jobs.release(job_id)
    at_once_but_for_others(queue, job_id)
    queue.jobs.release(parent)
    run_next(queue, 0)
    run_next(queue, 0)
    assert (JobState.SUCCEEDED, 2) == (job_of(queue, job_id).state, job_of(queue, job_id).attempt)


def at_once_but_for_others(queue: JobQueue, job_id: int) -> None:
    """End the pause before the next run. The job still waits for other jobs."""
    queue.requests.edit(job_id, to(), begin=True)
    assert WaitReason.DEPENDENCY is job_of(queue, job_id).reason


def test_what_it_waits_for_now_may_have_ended_while_the_store_was_away(queue: JobQueue, recorded: Recorded) -> None:
    """A dependency that failed before the store was lost cancels the job after the rebuild."""
    # That holds even if the job has run before.
    serve(queue)
    parent = submit(queue, waits=Waits(hold=True))
    job_id = submit(queue, retries=RETRIES)
    run_next(queue, 1)
    queue.requests.edit(job_id, to(waits=after(parent)), after=True)
    recorded.record()
    queue.jobs.cancel(parent)
    for event in queue.outbox.events("0-0", most=1000):
        if event.job_id == parent:  # the store is lost before the history has the effect on the job
            assert recorded.database.apply([event], expected=recorded.database.cursor(), epoch=queue.epoch() or "")

    recorded.rebuild()
    queue.maintenance.reap(loss_limit=3, lease_s=300, tick_s=10)

    reported = job_of(queue, job_id)
    assert (JobState.CANCELLED, f"dependency {parent} failed") == (reported.state, reported.because)


@pytest.mark.parametrize("way", ["in its pause", "held"])
def test_a_dependency_that_was_met_stays_met(queue: JobQueue, recorded: Recorded, way: str) -> None:
    # A job that has run is neither cancelled nor made to wait if the recorded ending of that dependency changes.
    serve(queue)
    parent = submit(queue)
    run_next(queue, 0)
    job_id = submit(queue, retries=RETRIES, waits=after(parent))
    run_next(queue, 1)
    if way == "held":
        queue.jobs.hold(job_id)
    recorded.record()
    with writing(recorded.database._engine) as connection:
        connection.execute(jobs.update().where(jobs.c.id == parent).values(state=JobState.LOST.value))
    before = job_of(queue, job_id)

    lose_the_store(recorded)
    queue.maintenance.reap(loss_limit=3, lease_s=300, tick_s=10)

    assert before == job_of(queue, job_id)


def lose_the_store(recorded: Recorded) -> None:
    """Record everything in the history, lose the store's data and rebuild it, with claims allowed at once."""
    recorded.record()
    recorded.rebuild()
    recorded.end_pause()
    serve(recorded.queue)


@pytest.mark.full
def test_gpuqueue_edit_prints_one_line_and_uses_the_documented_exit_codes(site: Site) -> None:
    site.make_tables()
    serve(site.queue)
    first = submit(site.queue)
    second = submit(site.queue)

    words = f"--mem 8G --time 2h --name big --priority high --after {first} --retries 2 --begin 2030-01-01".split()
    done = site.cli("edit", str(second), *words, "--gpus", "1", "--device", "gpu", "--pool", "")

    changed = f"mem 8G, time 2h, name big, priority high, after {first}, retries 2, begin 2030-01-01, gpus 1"
    assert f"job {second}: queued, {changed}, device gpu, any pool\n" == done.stdout
    job = job_of(site.queue, second)
    spec = job.spec
    actual = (spec.mem_bytes, spec.time_limit_s, spec.name, spec.priority, spec.retries.times)
    assert (8 * GIB, 7200.0, "big", Priority.HIGH, 2) == actual
    assert (WaitReason.DEPENDENCY, 2030) == (job.reason, job.begins_at.year if job.begins_at else None)
    site.cli("edit", str(second), "--after", "none", "--begin", "now", "--time", "none", "--retries", "0")
    assert (WaitReason.MEMORY, None) == (
        job_of(site.queue, second).reason,
        job_of(site.queue, second).spec.time_limit_s,
    )
    for wrong, code, line in (
        ([str(second)], 2, "give an option to change"),
        ([str(second), "--mem", "80G"], 2, "the largest"),
        ([str(second), "--after", str(second)], 2, "it is that job"),
        (["77", "--mem", "1G"], 3, "there is no job 77"),
        (["claimed", "--mem", "1G"], 5, "to run it with other options: gpuqueue cancel 2, then gpuqueue retry 2"),
    ):
        if wrong[0] == "claimed":
            wrong[0] = str(must_claim(site.queue).job_id)
        done = site.cli("edit", *wrong, check=False)
        assert (code, "", 1) == (done.returncode, done.stdout, done.stderr.count("\n"))
        assert line in done.stderr
