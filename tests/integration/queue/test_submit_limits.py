"""Limits that only a submit meets: open jobs, members of arrays, the sizes of arguments and environment."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from factories import ADA, BOB, claim, end, make_spec, must_claim, serve

from gpuqueue.errors import Refused
from gpuqueue.model.array import Array, Indexes
from gpuqueue.model.dependencies import Waits
from gpuqueue.model.job import JobState
from gpuqueue.model.limits import Limits
from gpuqueue.model.run import Ending
from gpuqueue.queue.jobqueue import JobQueue


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
    queue.requests.submit(make_spec())
    lost = must_claim(queue)
    queue.requests.submit(make_spec())
    limited(queue, "*: open_jobs=1")

    assert JobState.QUEUED is queue.runs.lose(lost.job_id, lost.token, loss_limit=3, detail="gone")
