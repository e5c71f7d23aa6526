"""A device's claim remembers which jobs were too large for it, and still takes each user's jobs in order."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

import pytest
import redis
from factories import ADA, BOB, claim, end, make_offer, make_spec, must_claim, serve, submit
from store_dump import dump, faults

from gpuqueue.queue import keys
from gpuqueue.queue.connect import connect
from gpuqueue.queue.jobqueue import JobQueue
from gpuqueue.text.units import GIB, MIB

#: Enough sizes that some fit any free memory, and that the first few seldom do.
SIZES = [step * 384 * MIB for step in range(1, 64)]
#: Memory of external processes; the device has 24 GiB.
TAKEN = [step * GIB for step in range(24)]
DEVICES = ("GPU-0", "GPU-1")


def passed_over(queue: JobQueue, large: int = 8, small: int = 16) -> list[int]:
    """Submit *large* jobs that exceed 8 GiB and *small* jobs that fit, each of its own shape; return their ids."""
    serve(queue)
    sizes = [9 * GIB + step * MIB for step in range(large)] + [GIB + step * MIB for step in range(small)]
    return [submit(queue, mem_bytes=size) for size in sizes]


def note(store_url: str) -> dict[str, str]:
    """Return where claims start to examine ada's jobs, by device."""
    client = connect(store_url)
    found: dict[str, str] = client.hgetall(f"{keys.PREFIX}ub:1:{ADA.name}")
    client.close()
    return found


def let_go_last(user: str, store_url: str) -> None:
    """Give a waiting user more usage than any other user has."""
    client = connect(store_url)
    for key in (f"{keys.PREFIX}fair", f"{keys.PREFIX}ul:1"):
        client.zincrby(key, 1e60, user)
    client.close()


def test_a_job_that_is_too_large_is_checked_once(queue: JobQueue, store_url: str) -> None:
    """A job that is too large is examined once: the next claim starts behind it and takes the next job in order."""
    jobs = passed_over(queue)

    assert jobs[8] == must_claim(queue, external_bytes=16 * GIB).job_id
    assert {"GPU-0": f"{8 * GIB}:0::{jobs[8]}"} == note(store_url)
    assert jobs[9] == must_claim(queue, external_bytes=15 * GIB).job_id


def test_the_remembered_position_holds_only_for_its_free_memory_of_8_gib(queue: JobQueue) -> None:
    # With more memory it does not apply.
    jobs = passed_over(queue)
    must_claim(queue, external_bytes=16 * GIB)

    assert jobs[0] == must_claim(queue).job_id


@pytest.mark.parametrize("way", ["released", "moved", "given back"])
def test_an_earlier_job_that_comes_into_the_line_comes_first(queue: JobQueue, store_url: str, way: str) -> None:
    """An earlier small job that returns among the passed-over jobs comes first."""
    serve(queue)
    for step in range(6):
        queue.requests.submit(make_spec(mem_bytes=20 * GIB + step * MIB))
    first = submit(queue, mem_bytes=GIB // 2)
    if way == "given back":
        token = must_claim(queue, external_bytes=16 * GIB).token
    else:
        queue.jobs.hold(first)
    jobs = passed_over(queue)
    must_claim(queue, external_bytes=16 * GIB)
    assert note(store_url)

    if way == "given back":
        assert queue.runs.release_claim(first, token, "")
    else:
        queue.jobs.release(first)
    expected = first
    if way == "moved":
        for job in (jobs[-1], *jobs[:5]):
            queue.jobs.move(job, front=True)
        expected = jobs[-1]

    assert expected == must_claim(queue, external_bytes=15 * GIB).job_id
    assert not faults_of(store_url)


def test_a_job_that_comes_back_as_the_last_of_the_line_is_found(queue: JobQueue, store_url: str) -> None:
    # Regression: the remembered position stayed when a job returned last, and claims searched behind that job for ever.
    jobs = passed_over(queue, large=8, small=1)
    queue.jobs.hold(jobs[-1])
    later = [submit(queue, mem_bytes=GIB + step * MIB) for step in range(1, 9)]
    assert later[0] == must_claim(queue, external_bytes=16 * GIB).job_id
    for job_id in later[1:]:
        queue.jobs.cancel(job_id)

    queue.jobs.release(jobs[-1])
    for step in range(9, 17):
        queue.requests.submit(make_spec(mem_bytes=GIB + step * MIB))

    assert jobs[-1] == must_claim(queue, external_bytes=17 * GIB).job_id
    assert not faults_of(store_url)


def test_a_released_last_job_is_found_by_the_other_devices(queue: JobQueue, store_url: str) -> None:
    # Regression: in a sweep behind four large jobs, one of two devices started behind the job that the other had
    # released.
    serve(queue, make_offer("GPU-0"), make_offer("GPU-1"))
    for step in range(4):
        queue.requests.submit(make_spec(mem_bytes=20 * GIB + step * MIB))
    sweep = [submit(queue, mem_bytes=GIB) for _ in range(8)]
    for step in range(16):
        queue.requests.submit(make_spec(account=BOB, mem_bytes=GIB + step * MIB))
    let_go_last(BOB.name, store_url)
    first = must_claim(queue, "GPU-0", external_bytes=16 * GIB)
    assert (sweep[0], sweep[1]) == (first.job_id, must_claim(queue, "GPU-1", external_bytes=16 * GIB).job_id)

    assert queue.runs.release_claim(first.job_id, first.token, "")

    assert sweep[0] == must_claim(queue, "GPU-1", external_bytes=17 * GIB).job_id
    assert not faults_of(store_url)


def test_what_is_edited_to_fit_is_found(queue: JobQueue, store_url: str) -> None:
    """A job that was too large is found after an edit makes it fit, even as the last of the order."""
    jobs = passed_over(queue, large=8, small=9)
    assert jobs[8] == must_claim(queue, external_bytes=16 * GIB).job_id
    for job_id in jobs[8:]:
        queue.jobs.cancel(job_id)

    queue.requests.edit(jobs[7], lambda spec: replace(spec, mem_bytes=GIB))
    for step in range(8):
        queue.requests.submit(make_spec(mem_bytes=GIB + step * MIB))

    assert jobs[7] == must_claim(queue, external_bytes=17 * GIB).job_id
    assert not faults_of(store_url)


def test_of_a_user_who_waits_no_more_no_note_stays(queue: JobQueue, store_url: str) -> None:
    """A user's remembered positions are deleted with the last of their waiting jobs."""
    jobs = passed_over(queue)
    must_claim(queue, external_bytes=16 * GIB)
    assert note(store_url)
    for job_id in jobs:
        queue.jobs.cancel(job_id)

    assert not note(store_url)


def test_a_job_that_may_not_start_before_a_reservation_is_examined_once(
    queue: JobQueue, store: redis.Redis, store_url: str
) -> None:
    # Jobs without a time limit gather there. Once the reservation is gone, they come first again.
    serve(queue)
    reserved = submit(queue, mem_bytes=24 * GIB)
    jobs = [submit(queue, mem_bytes=GIB + step * MIB) for step in range(8)]
    jobs += [submit(queue, mem_bytes=GIB + step * MIB, time_limit_s=60) for step in range(16)]
    start_ms = queue.now_ms() + 3600_000
    store.hset(keys.RESERVED, "GPU-0", f"{reserved}:{24 * GIB}:{start_ms}:")

    assert jobs[8] == must_claim(queue, external_bytes=2 * GIB).job_id
    assert jobs[9] == must_claim(queue, external_bytes=GIB).job_id
    assert {"GPU-0": f"{22 * GIB}:0:{reserved}.{start_ms}.0:{jobs[8]}"} == note(store_url)

    store.hdel(keys.RESERVED, "GPU-0")
    assert jobs[0] == must_claim(queue, external_bytes=GIB).job_id


def faults_of(store_url: str) -> list[str]:
    """Return the faults of the store."""
    client = connect(store_url)
    found = faults(dump(client))
    client.close()
    return found


class Line:
    """One user's jobs in their expected order: jobs moved to the front first, last moved first, then by arrival."""

    def __init__(self, queue: JobQueue, chance: random.Random, sizes: Sequence[int]) -> None:
        self.queue = queue
        self.chance = chance
        self.sizes = sizes
        self.waiting: dict[int, int] = {}
        self.held: dict[int, int] = {}
        self.moved: dict[int, int] = {}

    def submit(self) -> None:
        """Add a job of one of the sizes."""
        self.submit_each(1, self.sizes)

    def submit_each(self, count: int, sizes: Sequence[int]) -> None:
        """Add *count* jobs, each of one of these sizes."""
        for size in self.chance.choices(sizes, k=count):
            self.waiting[submit(self.queue, mem_bytes=size)] = size

    def claim(self) -> None:
        """Claim for a random device and free memory, and expect the first job that fits. Release some of the claims."""
        taken, uuid = self.chance.choice(TAKEN), self.chance.choice(DEVICES)
        order = sorted(self.waiting, key=lambda job: (-self.moved.get(job, -1), job))
        first = next((job for job in order if self.waiting[job] <= 24 * GIB - taken), None)
        claimed = claim(self.queue, uuid, external_bytes=taken)
        assert first == (claimed and claimed.job_id), f"{taken // GIB} GiB taken of {uuid}"
        if claimed is not None and self.chance.random() < 1 / 3:
            assert self.queue.runs.release_claim(claimed.job_id, claimed.token, "")
        elif claimed is not None:
            del self.waiting[claimed.job_id]
            end(self.queue, claimed)

    def hold(self) -> None:
        """Hold a waiting job."""
        job = self.chance.choice(list(self.waiting))
        self.queue.jobs.hold(job)
        self.held[job] = self.waiting.pop(job)

    def release(self) -> None:
        """Release a held job, if there is one."""
        for job in self.chance.sample(list(self.held), min(1, len(self.held))):
            self.queue.jobs.release(job)
            self.waiting[job] = self.held.pop(job)

    def move(self) -> None:
        """Move a waiting job to the front."""
        job = self.chance.choice(list(self.waiting))
        self.queue.jobs.move(job, front=True)
        self.moved[job] = max(self.moved.values(), default=0) + 1

    def cancel(self) -> None:
        """Cancel a waiting job."""
        job = self.chance.choice(list(self.waiting))
        self.queue.jobs.cancel(job)
        del self.waiting[job]


@pytest.mark.full
@pytest.mark.parametrize("sizes", [SIZES, SIZES[:10] + SIZES[-10:]], ids=["many sizes", "few sizes"])
@pytest.mark.parametrize("seed", range(4))
def test_each_claim_takes_the_first_job_that_fits_after_any_changes(
    queue: JobQueue, store_url: str, seed: int, sizes: list[int]
) -> None:
    # The free memory of the devices jumps, and no claim starts behind a job that it should have taken.
    line = Line(queue, random.Random(seed), sizes)  # noqa: S311 - the same acts each time
    serve(queue, *map(make_offer, DEVICES))
    line.submit_each(count=10, sizes=sizes[len(sizes) // 2 :])
    line.submit_each(count=2 * len(sizes), sizes=sizes)
    acts = (line.submit, line.submit, line.claim, line.claim, line.hold, line.release, line.release, line.move)

    noted = 0
    for _ in range(25):
        for _ in range(10):
            noted += bool(note(store_url))
            line.chance.choice((*acts, line.cancel))()
        assert not faults_of(store_url)
    assert noted > 20
