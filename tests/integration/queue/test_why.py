"""`why` explains a wait from the same data that a claim uses, so the two never disagree."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest
from factories import ADA, BOB, claim, make_device, make_offer, make_spec, must_claim, serve, submit, submit_and_claim

from gpuqueue.errors import Impossible
from gpuqueue.model.array import Array
from gpuqueue.model.device import DeviceFilter, DeviceKind
from gpuqueue.model.job import JobState
from gpuqueue.model.job_spec import Account, Priority
from gpuqueue.model.limits import Limits
from gpuqueue.model.placement import Placement
from gpuqueue.queue.drains import DrainOrigin
from gpuqueue.queue.explanation import Explanation, Obstacle, Start, Verdict
from gpuqueue.queue.jobqueue import JobQueue
from gpuqueue.text.units import GIB


def why(queue: JobQueue, job_id: int) -> Explanation:
    """Return why a job waits, which the queue must know."""
    found = queue.jobs.why(job_id)
    assert found is not None
    return found


def verdicts(queue: JobQueue, job_id: int) -> dict[str, Obstacle]:
    """Return the obstacle on each device for a job."""
    return {each.device: each.obstacle for each in why(queue, job_id).devices}


def test_each_obstacle_is_reported(queue: JobQueue) -> None:
    """`why` reports each kind of obstacle: one job, and one device for each obstacle."""
    cpu = make_device("cpu-a", kind=DeviceKind.CPU)
    serve(
        queue,
        make_offer("GPU-fits", pool="p"),
        make_offer("GPU-pool"),
        make_offer("cpu-a", device=cpu, pool="p"),
        make_offer("GPU-headroom", headroom_bytes=15 * GIB, pool="p"),
        make_offer("GPU-drained", pool="p"),
        make_offer("GPU-external", external_bytes=15 * GIB, pool="p"),
        make_offer("GPU-slots", slots=0, pool="p"),
    )
    queue.devices.drain(["GPU-drained"], origin=DrainOrigin.PERSON, why="", by="ada")
    job_id = submit(queue, mem_bytes=10 * GIB, pool="p")

    assert {
        "GPU-fits": Obstacle.FITS,
        "GPU-pool": Obstacle.POOL,
        "cpu-a": Obstacle.KIND,
        "GPU-headroom": Obstacle.TOO_SMALL,
        "GPU-drained": Obstacle.DRAINED,
        "GPU-external": Obstacle.MEMORY,
        "GPU-slots": Obstacle.SLOTS,
    } == verdicts(queue, job_id)


def test_why_reports_the_runs_on_a_device_their_bytes_and_their_latest_ends(queue: JobQueue) -> None:
    # It also reports what external processes and the headroom leave.
    serve(queue, make_offer(headroom_bytes=GIB, external_bytes=2 * GIB))
    queue.requests.submit(make_spec(mem_bytes=10 * GIB, time_limit_s=3600.0))
    queue.requests.submit(make_spec(mem_bytes=5 * GIB))
    must_claim(queue, external_bytes=2 * GIB)
    must_claim(queue, external_bytes=2 * GIB)
    job_id = submit(queue, mem_bytes=12 * GIB)

    found = why(queue, job_id)

    (device,) = found.devices
    assert (6 * GIB, 21 * GIB, 24 * GIB) == (device.available_bytes, device.capacity_bytes, device.total_bytes)
    held = {run.job_id: (run.held_bytes, run.ends_ms is None) for run in device.runs}
    assert {1: (10 * GIB, False), 2: (5 * GIB, True)} == held
    assert ((1,), ("GPU-0",)) == (found.start.blockers, found.start.devices)
    assert found.start.at_ms is not None
    assert abs(found.start.at_ms - queue.now_ms() - 3600_000) < 60_000


def test_only_a_run_whose_end_makes_room_is_in_the_way(queue: JobQueue) -> None:
    """A small run that ends first is of no use to a job that needs the end of a large one."""
    # Regression: its owner was named as somebody to ask.
    serve(queue)
    for size, hours in ((14, 6), (6, 3)):
        submit_and_claim(queue, mem_bytes=size * GIB, time_limit_s=3600.0 * hours)
    large, small = 1, 2
    expected = {4: (), 8: (small,), 12: (large,), 20: (large, small)}
    starts = {size: why(queue, submit(queue, mem_bytes=size * GIB)).start for size in expected}
    assert expected == {size: start.blockers for size, start in starts.items() if start is not None}
    known = {size: start.free_ms for size, start in starts.items() if start is not None}
    assert known[12] == known[20] != known[8], "the time is that of the last end"
    alone = why(queue, submit(queue, mem_bytes=GIB, placement=Placement(exclusive=True))).start
    assert (large, small) == alone.blockers


def test_no_start_time_is_reported_for_a_job_that_has_rivals_before_it(queue: JobQueue) -> None:
    # Regression: the last of six jobs got the start time of the first.
    serve(queue)
    submit_and_claim(queue, mem_bytes=20 * GIB, time_limit_s=3600.0)
    jobs = [submit(queue, mem_bytes=20 * GIB, time_limit_s=3600.0) for _ in range(6)]

    first, *_, last = (why(queue, job_id).start for job_id in jobs)

    assert (first.room_ms, 0) == (first.at_ms, first.rivals)
    assert (None, first.room_ms, 5) == (last.at_ms, last.room_ms, last.rivals)


@pytest.mark.parametrize(
    ("mem_bytes", "more", "rivals"),
    [
        (4 * GIB, {}, 0),  # both jobs fit
        (4 * GIB, {"array": Array.parse("0-8")}, 1),  # each member of the array takes memory
        (4 * GIB, {"placement": Placement(exclusive=True)}, 1),
        (12 * GIB, {"device": DeviceFilter.CPU}, 0),
        (12 * GIB, {}, 1),
    ],
)
def test_only_a_job_that_would_take_the_memory_is_a_rival(
    queue: JobQueue, mem_bytes: int, more: dict[str, Any], rivals: int
) -> None:
    # A job that waits for another device kind, or leaves enough memory, does not make the start unknown.
    cpu = make_device("cpu-a", kind=DeviceKind.CPU)
    serve(queue, make_offer(), make_offer("cpu-a", device=cpu, slots=0))
    submit_and_claim(queue, mem_bytes=23 * GIB, time_limit_s=3600.0)
    queue.requests.submit(make_spec(mem_bytes=mem_bytes, **more))
    start = why(queue, submit(queue, mem_bytes=15 * GIB)).start

    assert rivals == start.rivals
    assert (start.at_ms is None) == bool(rivals)


def test_a_start_that_nobody_can_know_is_none(queue: JobQueue) -> None:
    """The start is unknown behind a run without a time limit and behind external processes."""
    # The queue does not end external processes.
    serve(queue)
    submit_and_claim(queue, mem_bytes=20 * GIB)
    job_id = submit(queue, mem_bytes=20 * GIB)
    assert why(queue, job_id).start.at_ms is None

    serve(queue, make_offer(external_bytes=10 * GIB))
    assert why(queue, job_id).start is None


def test_the_place_in_the_order(queue: JobQueue) -> None:
    """`why` counts jobs of higher priority, users with less usage, and earlier jobs of the same user of any shape."""
    serve(queue, make_offer(slots=1))
    queue.requests.submit(make_spec())
    must_claim(queue)  # Ada has used something now
    for mem_bytes in (GIB, 2 * GIB):
        queue.requests.submit(make_spec(mem_bytes=mem_bytes))
    job_id = submit(queue)
    queue.requests.submit(make_spec())
    for priority in (Priority.HIGH, Priority.URGENT, Priority.LOW):
        queue.requests.submit(make_spec(priority=priority))
    for _ in range(3):
        queue.requests.submit(make_spec(account=BOB))

    found = why(queue, job_id)

    assert (2, 1, 3, 2) == (found.higher, found.users_before, found.theirs, found.own_before)
    assert (JobState.QUEUED, Priority.NORMAL) == (found.state, found.priority)


def test_a_reserved_device_names_its_job(queue: JobQueue) -> None:
    serve(queue)
    submit_and_claim(queue, mem_bytes=4 * GIB)
    large = submit(queue, mem_bytes=23 * GIB)
    queue.maintenance.reserve(after_s=0, most=1)
    small = submit(queue, mem_bytes=4 * GIB, account=BOB)

    (device,) = why(queue, small).devices

    assert (Obstacle.RESERVED, large) == (device.obstacle, device.reserved_for)
    assert {"GPU-0": Obstacle.MEMORY} == verdicts(queue, large)
    assert why(queue, large).start is not None


@pytest.mark.parametrize(("size", "count", "rivals"), [(7 * GIB, 1, 0), (13 * GIB, 1, 1), (7 * GIB, 2, 1)])
def test_a_run_in_the_way_is_named_on_a_reserved_device(queue: JobQueue, size: int, count: int, rivals: int) -> None:
    """`why` reports the start behind a run although the device is reserved for another job."""
    # Regression: once the only device of a job was reserved for the job before it, no start was reported, although
    # the end of the run was known. The job with the reservation is a rival unless the rest of the memory suffices for
    # both, even when it is later in the order.
    serve(queue, make_offer("GPU-0"), make_offer("GPU-1"))
    for uuid, limit_s in (("GPU-0", None), ("GPU-1", 300.0)):
        submit_and_claim(queue, uuid, mem_bytes=20 * GIB, time_limit_s=limit_s)
    reserved = submit(queue, mem_bytes=13 * GIB)
    others = [submit(queue, mem_bytes=size, placement=Placement(devices=("GPU-1",))) for _ in range(count)]
    before = why(queue, others[0]).start

    assert [(reserved, ("GPU-1",))] == [
        (each.job_id, each.devices) for each in queue.maintenance.reserve(after_s=0, most=1)
    ]
    start = why(queue, others[-1]).start

    assert ((2,), ("GPU-1",)) == (start.blockers, start.devices)
    assert start.room_ms == before.room_ms
    assert bool(rivals) == bool(start.rivals) == (start.at_ms is None)


def test_a_later_job_with_a_reservation_is_a_rival(queue: JobQueue) -> None:
    """A later job with a reservation on the device is a rival, although no job is before this one in the order."""
    serve(queue)
    submit_and_claim(queue, mem_bytes=20 * GIB, time_limit_s=3600.0)
    reserved = submit(queue, mem_bytes=20 * GIB, priority=Priority.LOW)
    assert [reserved] == [each.job_id for each in queue.maintenance.reserve(after_s=0, most=1)]

    found = why(queue, submit(queue, mem_bytes=10 * GIB, priority=Priority.HIGH))

    assert (0, 0, 0) == (found.higher, found.theirs, found.own_before)
    assert (None, 1, (1,)) == (found.start.at_ms, found.start.rivals, found.start.blockers)


def test_no_start_is_known_if_only_a_reservation_is_in_the_way(queue: JobQueue) -> None:
    # The memory is free, and no end of a run changes that.
    serve(queue)
    submit_and_claim(queue, mem_bytes=8 * GIB)
    queue.requests.submit(make_spec(mem_bytes=20 * GIB))
    queue.maintenance.reserve(after_s=0, most=1)
    beside, beyond = (submit(queue, mem_bytes=size * GIB) for size in (4, 5))

    assert why(queue, beyond).start is None
    assert {"GPU-0": Obstacle.RESERVED} == verdicts(queue, beyond)
    start = why(queue, beside).start
    assert () == start.blockers, "it fits beside what is reserved"
    assert beside == must_claim(queue).job_id


def test_a_gang_with_room_on_too_few_devices(queue: JobQueue) -> None:
    # A device with room for one member does not suffice.
    serve(queue, make_offer("GPU-0"), make_offer("GPU-1"))
    submit_and_claim(queue, "GPU-0", mem_bytes=20 * GIB)
    gang = submit(queue, mem_bytes=20 * GIB, gpus=2)

    assert {"GPU-0": Obstacle.MEMORY, "GPU-1": Obstacle.ALONE} == verdicts(queue, gang)


def test_what_runs_has_ended_or_never_was(queue: JobQueue) -> None:
    """`why` has no verdicts for a job that does not wait, and is None for an unknown job."""
    serve(queue)
    submit_and_claim(queue)

    assert (JobState.STARTING, ()) == (why(queue, 1).state, why(queue, 1).devices)
    assert queue.jobs.why(77) is None


def _random_site(queue: JobQueue, chance: random.Random) -> list[str]:
    devices = [f"GPU-{i}" for i in range(3)]
    for uuid in devices:
        offer: dict[str, Any] = {
            "headroom_bytes": chance.choice([0, GIB]),
            "external_bytes": chance.choice([0, 0, 6 * GIB, 20 * GIB]),
            "slots": chance.choice([1, 2, 8]),
            "pool": chance.choice(["", "p"]),
        }
        serve(queue, make_offer(uuid, **offer))
        for _ in range(chance.randrange(3)):
            limit_s = chance.choice([None, 600.0, 7200.0])
            queue.requests.submit(make_spec(mem_bytes=chance.randrange(1, 15) * GIB, time_limit_s=limit_s))
            claim(queue, uuid, external_bytes=offer["external_bytes"])
        offers[uuid] = offer
    return devices


offers: dict[str, dict[str, Any]] = {}


@pytest.mark.parametrize("seed", range(25))
def test_on_random_sites_a_claim_takes_a_job_exactly_where_why_says_that_it_fits(queue: JobQueue, seed: int) -> None:
    # Only one job without a reservation waits, so the order of jobs does not interfere.
    chance = random.Random(seed)  # noqa: S311 - the same sites each time
    devices = _random_site(queue, chance)
    for job in queue.jobs.live():
        if job.state is JobState.QUEUED:
            queue.jobs.cancel(job.id)
    reserved = submit(queue, mem_bytes=chance.randrange(15, 24) * GIB, account=BOB)
    queue.maintenance.reserve(after_s=0, most=1)
    wanted: dict[str, Any] = {
        "mem_bytes": chance.randrange(1, 20) * GIB,
        "gpus": chance.choice([1, 1, 1, 2]),
        "pool": chance.choice(["", "", "p"]),
        "device": chance.choice([None, DeviceFilter.GPU, DeviceFilter.ANY]),
        "time_limit_s": chance.choice([None, 60.0, 36000.0]),
        "priority": Priority.URGENT,
    }
    try:
        job_id = submit(queue, **wanted)
    except Impossible:  # this random site has no such device, and the submit was refused
        return
    output: dict[str, Verdict] = {each.device: each for each in why(queue, job_id).devices}

    for uuid in devices:
        offer = make_offer(uuid, external_bytes=offers[uuid]["external_bytes"])
        claimed = queue.runs.claim(offer, worker="w", lease_s=300, nonce=f"ab{devices.index(uuid)}")
        if claimed is not None and claimed.job_id != job_id:  # the job with the reservation goes first
            assert claimed.job_id == reserved
            return
        assert (claimed is not None) == (output[uuid].obstacle is Obstacle.FITS), output[uuid]
        if claimed is not None:
            return


def test_who_cannot_start_is_no_rival(queue: JobQueue) -> None:
    # Regression: a job on two devices, one of them drained, was earlier in the order, so no start was reported.
    serve(queue, *(make_offer(f"GPU-{i}", device=make_device(f"GPU-{i}", index=i)) for i in range(2)))
    run = submit_and_claim(queue, mem_bytes=20 * GIB, time_limit_s=3600.0)
    queue.requests.submit(make_spec(mem_bytes=20 * GIB, gpus=2))
    queue.devices.drain(["GPU-1"], origin=DrainOrigin.PERSON, why="the fan", by="ada")
    both = Placement(devices=("GPU-0", "GPU-1"))
    waits = submit(queue, mem_bytes=20 * GIB, placement=both)

    found = why(queue, waits)

    assert (1, 0, (run.job_id,)) == (found.own_before, found.start.rivals, found.start.blockers)
    assert found.start.at_ms is not None
    queue.devices.resume(["GPU-1"], origins=[DrainOrigin.PERSON])
    submit_and_claim(queue, "GPU-1", mem_bytes=20 * GIB, priority=Priority.URGENT)
    start = why(queue, waits).start
    assert (None, 1) == (start.at_ms, start.rivals), "now it can, once both have room"


@pytest.mark.parametrize(("time_limit_s", "behind", "rivals"), [(600.0, 0, 0), (None, 1, 1), (7200.0, 1, 1)])
def test_who_is_gone_before_the_device_is_needed_starts_before(
    queue: JobQueue, time_limit_s: float | None, behind: int, rivals: int
) -> None:
    """A job that ends before the reservation starts waits only for the runs on its own device."""
    # Two devices are reserved for a job that needs both. Regression: the short job got the start time of that job,
    # and the end of another run as its blocker.
    serve(queue, *(make_offer(f"GPU-{i}", device=make_device(f"GPU-{i}", index=i)) for i in range(2)))
    for uuid, hours in (("GPU-0", 1), ("GPU-1", 2)):
        submit_and_claim(queue, uuid, mem_bytes=20 * GIB, time_limit_s=3600.0 * hours)
    both = submit(queue, mem_bytes=20 * GIB, gpus=2)
    assert [both] == [each.job_id for each in queue.maintenance.reserve(after_s=0, most=1)]

    found = why(queue, submit(queue, mem_bytes=20 * GIB, time_limit_s=time_limit_s))

    first, second = (device.runs[0].ends_ms for device in sorted(found.devices, key=lambda each: each.device))
    assert (("GPU-0",), (1,)) == (found.start.devices, found.start.blockers)
    assert (second if behind else first) == found.start.room_ms
    assert (both if behind else None, rivals) == (found.start.behind, found.start.rivals)


# ---- the start of a job that waits for a device and a limit ----------------------------------------------------------


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


def start_of(queue: JobQueue, job_id: int) -> tuple[Explanation, Start]:
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

    found, start = start_of(queue, waits)

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

    found, start = start_of(queue, waits)

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

    found, start = start_of(queue, waits)

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

    found, start = start_of(queue, waits)

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

    found, start = start_of(queue, waits)

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
    found, start = start_of(queue, submit(queue, account=ADA, mem_bytes=4 * GIB))

    assert (found.room.at_ms, rivals) == (start.room_ms, start.rivals)
    assert (start.at_ms is None) == bool(rivals)


def test_who_fills_a_limit_that_has_room_now_is_a_rival(queue: JobQueue) -> None:
    """A job that fills a limit with room for one is a rival, even though the device has room for both."""
    serve(queue)
    limit(queue, "ada: running_jobs=1")
    run(queue, account=BOB, mem_bytes=23 * GIB, time_limit_s=3600.0)
    first, second = (submit(queue, mem_bytes=4 * GIB) for _ in range(2))

    assert (0, 1) == tuple(start_of(queue, each)[1].rivals for each in (first, second))
    assert start_of(queue, second)[1].at_ms is None


def test_a_device_that_will_be_beyond_the_limit_gives_no_start(queue: JobQueue) -> None:
    """A whole card that exceeds the rest of the user's limit is not reported as the start."""
    # Regression: `why` reported the time when the card is empty.
    two_cards(queue)
    limit(queue, "ada: running_mem=30G")
    long = run(queue, "GPU-1", mem_bytes=8 * GIB, time_limit_s=7200.0)
    run(queue, account=BOB, time_limit_s=3600.0)
    alone = Placement(devices=("GPU-0",), exclusive=True)

    found, start = start_of(queue, submit(queue, placement=alone))

    assert (long,) == found.room.runs
    assert found.room.at_ms == start.at_ms
