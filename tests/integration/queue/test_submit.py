from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
import redis
from factories import (
    ADA,
    BOB,
    claim,
    end,
    make_device,
    make_offer,
    make_spec,
    must_claim,
    serve,
    submit,
    submit_and_claim,
)

from gpuqueue.errors import Impossible, Refused, StoreNotReady, StoreUnreachable
from gpuqueue.model.array import Array, Indexes
from gpuqueue.model.dependencies import Waits
from gpuqueue.model.event import Act
from gpuqueue.model.job import JobState, WaitReason
from gpuqueue.model.job_spec import JobSpec, Priority
from gpuqueue.model.limits import Limits
from gpuqueue.model.run import Ending
from gpuqueue.queue import keys
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

    with pytest.raises(StoreUnreachable, match="does not answer: start it there, or correct GPUQUEUE_REDIS_URL"):
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


# ---- ids that the service takes before a submit, to sign a job with its id -------------------------------------------


def sign(spec: JobSpec, job_id: int) -> JobSpec:
    """Return *spec* with a ticket that names the job."""
    return replace(spec, ticket=f"mac {job_id}")


def test_the_spec_in_the_store_has_the_ticket_and_so_has_what_a_worker_claims(queue: JobQueue) -> None:
    # Other jobs have none.
    serve(queue)
    plain, signed = queue.requests.submit(make_spec()), queue.requests.submit(make_spec(), sign=sign)

    assert (1, 2) == (plain.id, signed.id)
    assert (None, "mac 2") == tuple(_ticket(queue, each.id) for each in (plain, signed))
    assert [None, "mac 2"] == [must_claim(queue).spec.ticket for _ in range(2)]


def test_jobs_that_come_between_the_ids_and_the_submit_are_no_members(queue: JobQueue) -> None:
    serve(queue, make_offer(), lease_s=300)
    between: list[int] = []

    def meanwhile(spec: JobSpec, job_id: int) -> JobSpec:
        between.append(submit(queue, mem_bytes=GIB))
        return sign(spec, job_id)

    array = Array(indexes=Indexes.parse("2-5:3"))
    made = queue.requests.submit(make_spec(array=array, mem_bytes=GIB // 2), sign=meanwhile)

    assert (1, [8]) == (made.id, between)
    claims = {must_claim(queue).job_id for _ in range(3)}
    assert {4, 7, 8} == claims
    assert "mac 1" == _ticket(queue, 7)


def test_an_edit_keeps_the_ticket_and_may_renew_it(queue: JobQueue) -> None:
    job = queue.requests.submit(make_spec(), sign=sign)

    queue.requests.edit(job.id, lambda spec: replace(spec, name="other"))
    assert ("other", "mac 1") == (queue.jobs.get(job.id).spec.name, _ticket(queue, job.id))
    queue.requests.edit(job.id, lambda spec: replace(spec, ticket="new"))
    assert "new" == _ticket(queue, job.id)


def test_a_repeated_submit_makes_one_job(queue: JobQueue) -> None:
    # What was taken and not used is never used again.
    first, again = (queue.requests.submit(make_spec(), nonce="abc", sign=sign) for _ in range(2))

    assert first.id == again.id
    assert 3 == queue.requests.submit(make_spec(), sign=sign).id


def test_an_id_that_has_expired_is_replaced(queue: JobQueue, store: redis.Redis) -> None:
    """A store that has lost its data, or a service that stood still, never makes two jobs with one id."""
    taken: list[int] = []

    def forgotten(spec: JobSpec, job_id: int) -> JobSpec:
        if not taken:
            store.delete(*store.keys(f"{keys.PREFIX}taken:*"))
        taken.append(job_id)
        return sign(spec, job_id)

    assert 2 == queue.requests.submit(make_spec(), sign=forgotten).id
    assert [1, 2] == taken
    assert [] == store.keys(f"{keys.PREFIX}taken:*")


def test_an_id_that_always_expires_is_an_error(queue: JobQueue, store: redis.Redis) -> None:
    def forgotten(spec: JobSpec, job_id: int) -> JobSpec:
        _forget(store, job_id)
        return sign(spec, job_id)

    with pytest.raises(Refused, match="the store forgets the ids of new jobs"):
        queue.requests.submit(make_spec(), sign=forgotten)


def test_an_array_never_has_ids_that_another_job_may_have(queue: JobQueue) -> None:
    def larger(spec: JobSpec, job_id: int) -> JobSpec:
        return sign(replace(spec, array=Array(indexes=Indexes.parse("0-9"))), job_id)

    with pytest.raises(Refused, match="the store forgets the ids of new jobs"):
        queue.requests.submit(make_spec(array=Array(indexes=Indexes.parse("0-1"))), sign=larger)


def _forget(client: redis.Redis, job_id: int) -> None:
    client.delete(f"{keys.PREFIX}taken:{job_id}")


def _ticket(queue: JobQueue, job_id: int) -> str | None:
    job = queue.jobs.get(job_id)
    return job.spec.ticket


# ---- limits that only a submit meets ---------------------------------------------------------------------------------


def array_of(indexes: str) -> Any:
    """Return the request of an array."""
    return make_spec(array=Array(indexes=Indexes.parse(indexes), at_once=None, axes=()))


def limited(queue: JobQueue, limits: str) -> None:
    """Set the limits of a site."""
    queue.rules.set_limits(Limits.parse(limits, "", {}))


def refusal(queue: JobQueue, spec: Any) -> str:
    """Return the line with which a request is refused."""
    with pytest.raises(Refused) as refused:
        queue.requests.submit(spec)
    assert "\n" not in str(refused.value)
    assert 5 == refused.value.exit_code
    return str(refused.value)


def test_a_user_has_so_many_open_jobs(queue: JobQueue) -> None:
    """Waiting, held and running jobs are open, and an array is one. An end makes room, and others have their own."""
    serve(queue)
    limited(queue, "*: open_jobs=4; bob: open_jobs=none")
    for spec in (make_spec(), make_spec(waits=Waits(hold=True)), array_of("0-9")):
        queue.requests.submit(spec)
    running = must_claim(queue)
    nonce = "abc"
    fourth = queue.requests.submit(make_spec(), nonce=nonce)

    line = refusal(queue, make_spec())

    assert line == (
        "ada has 4 jobs that have not ended, and at most 4 may be open (limit open_jobs): submit when some have ended, "
        "or many at once as an array"
    )
    assert fourth.id == queue.requests.submit(make_spec(), nonce=nonce).id, "a repeated request is not another job"
    for _ in range(5):
        queue.requests.submit(make_spec(account=BOB))
    end(queue, running, 1)
    queue.requests.submit(make_spec())
    assert ADA.name in refusal(queue, make_spec())


def test_waiting_and_held_members_of_all_arrays_count(queue: JobQueue) -> None:
    # An array is taken whole or not at all.
    serve(queue)
    limited(queue, "*: array_members=10")
    assert "this array has 11 members, submit it in smaller ones" in refusal(queue, array_of("0-10"))
    queue.requests.submit(array_of("0-7"))

    line = refusal(queue, array_of("0-2"))
    queue.requests.submit(make_spec())
    queue.requests.submit(array_of("0-1"))
    assert "has 10 array members" in refusal(queue, array_of("0"))
    assert claim(queue) is not None
    queue.requests.submit(array_of("0"))

    assert line == (
        "ada has 8 array members waiting, and at most 10 may (limit array_members): this array has 3 members, submit "
        "it when some have started"
    )


def test_a_user_fills_only_a_part_of_the_store(queue: JobQueue) -> None:
    """The requests of open jobs have a sum. Ends make room, an array counts once, and others have their own."""
    serve(queue)
    limited(queue, "*: open_bytes=9K")
    large = make_spec(env={"A": "x" * 3000})
    running = queue.requests.submit(large)
    claimed = must_claim(queue)
    queue.requests.submit(make_spec(env={"A": "x" * 3000}, array=array_of("0-99").array))
    held = queue.requests.submit(make_spec(env={"A": "x" * 1000}, waits=Waits(hold=True)))

    line = refusal(queue, large)

    assert re.fullmatch(
        r"with this one, the requests of ada's jobs that have not ended take 1\d\.\d+K, and at most 9K may \(limit "
        r"open_bytes\): submit when some have ended, or put large values into files",
        line,
    )
    queue.requests.submit(make_spec(account=BOB, env={"A": "x" * 8000}))
    queue.jobs.cancel(held.id)
    assert line.partition("take")[0] in refusal(queue, large), "1 KB is not enough"
    queue.runs.finish(
        running.id, claimed.token, state=JobState.FAILED, ending=Ending.from_status(1), duration_s=1, devices=()
    )
    queue.requests.submit(large)


def test_requests_are_added_up_again_when_limits_change(queue: JobQueue) -> None:
    """Jobs that were submitted without the limit count as soon as there is one."""
    limited(queue, "*: open_bytes=1G")
    queue.requests.submit(make_spec())
    limited(queue, "*: open_bytes=none")
    queue.requests.submit(make_spec(env={"A": "x" * 9000}))
    limited(queue, "*: open_bytes=10K")

    assert "limit open_bytes" in refusal(queue, make_spec(env={"A": "x" * 1000}))


def test_the_sum_of_requests_is_rarely_added_up(queue: JobQueue) -> None:
    """A submit reads the sizes of other jobs only when the limit seems reached."""
    limited(queue, "*: open_bytes=20K")

    def read(spec: Any) -> int:
        before = queue.store.client.info("commandstats").get("cmdstat_strlen", {"calls": 0})["calls"]
        queue.requests.submit(spec)
        return int(queue.store.client.info("commandstats").get("cmdstat_strlen", {"calls": 0})["calls"]) - before

    assert 0 == read(make_spec())
    jobs = [queue.requests.submit(make_spec(env={"A": "x" * 1000})) for _ in range(9)]
    assert 0 == read(make_spec())
    for each in jobs:
        queue.jobs.cancel(each.id)
    counts = [read(make_spec(env={"A": "x" * 1000})) for _ in range(9)]
    assert [0] * len(counts) != counts
    assert sum(map(bool, counts)) < 3


@pytest.mark.parametrize(
    ("measure", "small", "large"),
    [
        ("arguments", {"argv": ("true", "x" * 1000)}, {"argv": ("true", "x" * 1020)}),
        ("environment", {"env": {"A": "x" * 1000}}, {"env": {"A": "x" * 600, "B": "x" * 600}}),
    ],
)
def test_sizes_have_limits_of_their_own(
    queue: JobQueue, measure: str, small: dict[str, Any], large: dict[str, Any]
) -> None:
    """Arguments and environment are judged apart, by what the store has to hold."""
    limited(queue, f"*: {measure}=1K")
    queue.requests.submit(make_spec(**small))

    line = refusal(queue, make_spec(**large))

    assert re.search(rf"^the {measure} takes? 1\.\d+K, and at most 1K may \(limit {measure}\): ", line), line
    other = "env" if measure == "arguments" else "argv"
    marks = '"],"cwd":"},"account":{'
    queue.requests.submit(make_spec(**{other: {"A": marks * 99} if other == "env" else ("true", marks * 99)}))


def test_the_defaults_take_what_people_do(queue: JobQueue) -> None:
    """With the defaults, arguments of 120 KiB and an environment of 250 KiB are taken, and not much more."""
    limited(queue, "")
    queue.requests.submit(make_spec(argv=("ls", *["x" * 117] * 1024), env={f"V{n}": "x" * 1000 for n in range(250)}))
    queue.requests.submit(array_of("0-99999"))
    assert "limit arguments" in refusal(queue, make_spec(argv=("ls", *["x" * 127] * 1024)))
    assert "limit environment" in refusal(queue, make_spec(env={f"V{n}": "x" * 1000 for n in range(270)}))


def test_eight_submitters_at_once_get_exactly_as_many_jobs_as_the_limit_allows(queue: JobQueue) -> None:
    limited(queue, "*: open_jobs=20")

    def submit(_: int) -> bool:
        own = JobQueue(queue.url)
        try:
            own.requests.submit(make_spec())
        except Refused:
            return False
        finally:
            own.close()
        return True

    with ThreadPoolExecutor(8) as pool:
        taken = sum(pool.map(submit, range(60)))

    assert 20 == taken == len(queue.jobs.live())


def test_a_job_that_comes_back_meets_no_limit(queue: JobQueue) -> None:
    """A lost job waits again, although the user has as many open jobs as allowed."""
    serve(queue)
    lost = submit_and_claim(queue)
    queue.requests.submit(make_spec())
    limited(queue, "*: open_jobs=1")

    assert JobState.QUEUED is queue.runs.lose(lost.job_id, lost.token, loss_limit=3, detail="gone")
