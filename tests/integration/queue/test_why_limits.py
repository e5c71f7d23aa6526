"""The start of a job that waits for a device and a limit: `why` gives one answer that accounts for both."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from factories import ADA, BOB, make_device, make_offer, make_spec, must_claim, serve, submit

from gpuqueue.model.array import Array
from gpuqueue.model.limits import Limits
from gpuqueue.model.placement import Placement
from gpuqueue.queue.drains import DrainOrigin
from gpuqueue.queue.explanation import Explanation, Start
from gpuqueue.queue.jobqueue import JobQueue
from gpuqueue.text.units import GIB

if TYPE_CHECKING:
    from gpuqueue.model.job_spec import Account

HOUR_MS = 3600_000


def limit(queue: JobQueue, limits: str) -> None:
    """Set these limits; ada and bob are the group @lab."""
    queue.rules.set_limits(Limits.parse(limits, "", {"lab": ("ada", "bob")}))


def two_cards(queue: JobQueue) -> None:
    """Serve two devices of 24 GiB on one host."""
    serve(queue, *(make_offer(f"GPU-{i}", device=make_device(f"GPU-{i}", index=i)) for i in range(2)))


def run(queue: JobQueue, uuid: str = "GPU-0", **changes: Any) -> int:
    """Start a job on a device and return its id."""
    queue.requests.submit(make_spec(**changes))
    return must_claim(queue, uuid).job_id


def why(queue: JobQueue, job_id: int) -> tuple[Explanation, Start]:
    """Return the explanation of a job and its earliest start."""
    found = queue.jobs.why(job_id)
    assert found.start is not None
    return found, found.start


def test_who_waits_for_a_device_and_a_limit_starts_when_both_have_room(queue: JobQueue) -> None:
    # Regression: `why` reported the first and then the second as the start, and the JSON gave only the first.
    two_cards(queue)
    limit(queue, "ada: running_mem=24G")
    long = run(queue, "GPU-1", mem_bytes=14 * GIB, time_limit_s=7200.0)
    external_processes = run(queue, account=BOB, mem_bytes=18 * GIB, time_limit_s=3600.0)
    waits = submit(queue, mem_bytes=11 * GIB, placement=Placement(devices=("GPU-0",)))

    found, start = why(queue, waits)

    assert found.room.at_ms is not None
    assert start.free_ms is not None
    assert ((external_processes,), (long,), True) == (start.blockers, found.room.runs, start.limited)
    assert found.room.at_ms - start.free_ms > HOUR_MS // 2
    assert (found.room.at_ms, found.room.at_ms, 0) == (start.at_ms, start.room_ms, start.rivals)
    assert (external_processes, long) == tuple(sorted(found.runs_in_the_way, reverse=True))


def test_room_under_all_limits_is_that_of_the_last(queue: JobQueue) -> None:
    # Here the group's limit is full, the device is free.
    two_cards(queue)
    limit(queue, "ada: running_jobs=1; @lab: running_jobs=2")
    run(queue, time_limit_s=3600.0)
    last = run(queue, account=BOB, time_limit_s=7200.0)
    waits = submit(queue)

    found, start = why(queue, waits)

    assert 2 == len(found.limits)
    assert (found.room.at_ms, ()) == (start.at_ms, start.blockers)
    first = found.devices[0].runs
    assert found.room.at_ms == min(each.ends_ms or 0 for each in first), "either of them makes room under the group's"
    queue.jobs.cancel(last)


def test_no_start_is_known_if_a_run_under_the_limit_has_no_time_limit(queue: JobQueue) -> None:
    # The device has room by a known time.
    two_cards(queue)
    limit(queue, "ada: running_jobs=1")
    endless = run(queue, "GPU-1")
    run(queue, account=BOB, mem_bytes=20 * GIB, time_limit_s=3600.0)
    waits = submit(queue, mem_bytes=20 * GIB, placement=Placement(devices=("GPU-0",)))

    found, start = why(queue, waits)

    assert (None, (endless,), None) == (found.room.at_ms, found.room.runs, found.room.reserved_for)
    assert start.free_ms is not None
    assert (None, None) == (start.at_ms, start.room_ms)


@pytest.mark.parametrize(("hours", "is_reserved"), [(None, 1), (4, 1), (1, 0)])
def test_no_start_is_known_if_the_room_under_the_limit_is_reserved(
    queue: JobQueue, hours: int | None, is_reserved: int
) -> None:
    # Regression: `why` reported a start at once or at the end of a run, and the job waited for another job of its
    # group. A job that ends before that other job can start is an exception.
    serve(queue)
    limit(queue, "@lab: running_mem=8G")
    for lasts in (1, 4):
        run(queue, account=BOB, mem_bytes=4 * GIB, time_limit_s=3600.0 * lasts)
    large = submit(queue, mem_bytes=8 * GIB)
    queue.maintenance.reserve(after_s=0, most=1)
    waits = submit(queue, account=BOB, mem_bytes=2 * GIB, time_limit_s=hours and hours * 3600.0)

    found, start = why(queue, waits)

    assert found.room.reserved_for == (large if is_reserved else None)
    assert bool(is_reserved) == (found.room.at_ms is None) == (start.room_ms is None)
    assert is_reserved == start.rivals
    assert bool(is_reserved) == (start.at_ms is None)


def test_a_reservation_beside_other_jobs_blocks_nothing(queue: JobQueue) -> None:
    """A reservation under the limit is not in the way if there is room for both jobs once the run has ended."""
    serve(queue)
    limit(queue, "@lab: running_mem=16G")
    run(queue, account=BOB, mem_bytes=14 * GIB, time_limit_s=3600.0)
    queue.requests.submit(make_spec(mem_bytes=8 * GIB))
    queue.maintenance.reserve(after_s=0, most=1)
    waits = submit(queue, account=BOB, mem_bytes=3 * GIB)

    found, start = why(queue, waits)

    assert (None, found.room.at_ms) == (found.room.reserved_for, start.room_ms)
    assert start.room_ms is not None


@pytest.mark.parametrize(
    ("account", "more", "rivals"),
    [
        (BOB, {}, 1),
        (replace(ADA, name="eve"), {}, 0),  # eve is not under the limit
        (BOB, {"array": Array.parse("0-8")}, 1),
        (BOB, {"mem_bytes": GIB}, 0),  # the limit has room for both
        (BOB, {"mem_bytes": 4 * GIB, "gpus": 2}, 0),  # the other device is drained
    ],
)
def test_a_job_that_goes_first_and_uses_the_limits_room_is_a_rival(
    queue: JobQueue, account: Account, more: dict[str, Any], rivals: int
) -> None:
    # Regression: `why` reported a time as if all the room were for this job, while small jobs of its group went on
    # taking it.
    two_cards(queue)
    limit(queue, "@lab: running_mem=8G")
    run(queue, mem_bytes=8 * GIB, time_limit_s=3600.0)
    queue.requests.submit(make_spec(**{"mem_bytes": 5 * GIB, "account": account, **more}))
    queue.devices.drain(["GPU-1"], origin=DrainOrigin.PERSON, why="the fan", by="ada")
    found, start = why(queue, submit(queue, account=ADA, mem_bytes=4 * GIB))

    assert (found.room.at_ms, rivals) == (start.room_ms, start.rivals)
    assert (start.at_ms is None) == bool(rivals)


def test_who_fills_a_limit_that_has_room_now_is_a_rival(queue: JobQueue) -> None:
    """A job that fills a limit with room for one is a rival, even though the device has room for both."""
    serve(queue)
    limit(queue, "ada: running_jobs=1")
    run(queue, account=BOB, mem_bytes=23 * GIB, time_limit_s=3600.0)
    first, second = (submit(queue, mem_bytes=4 * GIB) for _ in range(2))

    assert (0, 1) == tuple(why(queue, each)[1].rivals for each in (first, second))
    assert why(queue, second)[1].at_ms is None


def test_a_device_that_will_be_beyond_the_limit_gives_no_start(queue: JobQueue) -> None:
    """A whole card that exceeds the rest of the user's limit is not reported as the start.

    Regression: `why` reported the time when the card is empty.
    """
    two_cards(queue)
    limit(queue, "ada: running_mem=30G")
    long = run(queue, "GPU-1", mem_bytes=8 * GIB, time_limit_s=7200.0)
    run(queue, account=BOB, time_limit_s=3600.0)
    alone = Placement(devices=("GPU-0",), exclusive=True)

    found, start = why(queue, submit(queue, placement=alone))

    assert (long,) == found.room.runs
    assert found.room.at_ms == start.at_ms
