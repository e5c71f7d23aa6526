"""Limits of users, groups and pools: which jobs wait, which are refused, and the effect on other jobs."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timezone

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
    offered,
    serve,
    start,
    submit,
    submit_and_claim,
)
from history_fixtures import Recorded
from store_dump import dump, faults

from gpuqueue.clock import SystemClock
from gpuqueue.errors import Refused
from gpuqueue.model.array import Array, Indexes
from gpuqueue.model.dependencies import Dependency, Waits
from gpuqueue.model.device import DeviceFilter, DeviceKind
from gpuqueue.model.job import JobState, WaitReason
from gpuqueue.model.job_spec import Priority
from gpuqueue.model.limits import Limits
from gpuqueue.model.measures import Measure, Use
from gpuqueue.model.placement import Placement
from gpuqueue.queue import keys
from gpuqueue.queue.connect import connect
from gpuqueue.queue.drains import DrainOrigin
from gpuqueue.queue.explanation import LimitReached, Obstacle
from gpuqueue.queue.jobqueue import JobQueue
from gpuqueue.queue.lease import Claim
from gpuqueue.queue.requests import new_nonce
from gpuqueue.settings.settings import Settings
from gpuqueue.text.units import GIB, MIB
from workers.services.reaper import Reaper


def running(queue: JobQueue) -> dict[str, Use]:
    """Return what each user has running and waiting, without the figures that only a submit meets."""
    uses = queue.rules.uses()
    return {user: replace(use, open_jobs=0, open_bytes=0, array_members=0) for user, use in uses.items()}


def limit(queue: JobQueue, limits: str, pool_limits: str = "") -> None:
    """Set these limits; ada and bob are the group @lab."""
    queue.rules.set_limits(Limits.parse(limits, pool_limits, {"lab": ("ada", "bob")}))


@pytest.mark.parametrize(
    ("limits", "ask"),
    [
        ("ada: running_jobs=2", {}),
        ("*: running_jobs=2", {}),
        ("@lab: running_jobs=2", {}),
        ("*: running_gpus=2", {}),
        ("*: running_gpus=4; @lab: running_gpus=5", {"gpus": 2}),
        ("*: running_mem=9G", {"mem_bytes": 4 * GIB}),
        ("*: running_mem=9G", {"mem_bytes": 2 * GIB, "gpus": 2}),
    ],
)
def test_who_is_at_a_limit_is_passed_over_until_a_run_ends(queue: JobQueue, limits: str, ask: dict[str, int]) -> None:
    """A job beyond a limit is passed over until a run ends, although the devices have room for it."""
    serve(queue, make_offer("GPU-0"), make_offer("GPU-1"))
    limit(queue, limits)
    mine = [submit(queue, **ask) for _ in range(3)]

    runs = [must_claim(queue), must_claim(queue)]

    assert mine[:2] == [run.job_id for run in runs]
    assert claim(queue) is None
    assert WaitReason.LIMIT is queue.jobs.get(mine[2]).reason
    end(queue, runs[0])
    assert mine[2] == must_claim(queue).job_id


def test_others_pass_a_user_at_a_limit(queue: JobQueue) -> None:
    # A sweep of one user neither stops nor delays them.
    serve(queue)
    limit(queue, "ada: running_jobs=1")
    for _ in range(3):
        queue.requests.submit(make_spec())
    other = submit(queue, account=BOB)
    must_claim(queue)

    assert other == must_claim(queue).job_id
    assert claim(queue) is None


def test_a_small_job_of_the_same_user_still_fits_under_a_limit(queue: JobQueue) -> None:
    serve(queue)
    limit(queue, "*: running_mem=8G")
    queue.requests.submit(make_spec(mem_bytes=6 * GIB))
    large, small = (submit(queue, mem_bytes=6 * GIB), submit(queue, mem_bytes=2 * GIB))
    must_claim(queue)

    assert small == must_claim(queue).job_id
    assert WaitReason.LIMIT is queue.jobs.get(large).reason


def test_why_names_the_limit_whose_it_is_and_which_runs_use_it(queue: JobQueue) -> None:
    """`why` names the limit, its subject, the used, allowed and requested amounts, and the runs that use it."""
    # The device has no other obstacle.
    serve(queue)
    limit(queue, "@lab: running_jobs=2")
    runs = [submit(queue, account=who) for who in (ADA, BOB)]
    waiting = submit(queue)
    must_claim(queue), must_claim(queue)

    found = queue.jobs.why(waiting)

    reached = LimitReached(
        whose="@lab", measure=Measure.RUNNING_JOBS, used=2, most=2, asked=1, runs=tuple(sorted(runs))
    )
    assert reached == found.limit
    assert [Obstacle.LIMIT] == [each.obstacle for each in found.devices]
    limit(queue, "")
    assert queue.jobs.why(waiting).limit is None


def test_why_does_not_list_runs_on_a_cpu_under_a_limit_of_gpus(queue: JobQueue) -> None:
    # Regression: it said that three jobs use 2 of 2 GPUs, two of which had none, and that these had to end as well.
    serve(queue, make_offer("GPU-0"), make_offer("cpu-a", device=make_device("cpu-a", kind=DeviceKind.CPU)))
    limit(queue, "ada: running_gpus=1")
    for _ in range(2):
        queue.requests.submit(make_spec(device=DeviceFilter.CPU))
        assert queue.runs.claim(
            make_offer("cpu-a", device=make_device("cpu-a", kind=DeviceKind.CPU)),
            worker="w",
            lease_s=300,
            nonce=new_nonce(),
        )
    user = submit(queue)
    must_claim(queue)

    found = queue.jobs.why(submit(queue))

    assert LimitReached(whose="ada", measure=Measure.RUNNING_GPUS, used=1, most=1, asked=1, runs=(user,)) == found.limit


def test_why_names_every_limit_in_the_way(queue: JobQueue) -> None:
    # Regression: it named the first. When that had room, the job went on waiting for one that was not reported.
    serve(queue)
    limit(queue, "ada: running_jobs=2 running_mem=8G; @lab: running_mem=12G")
    ada, bob = (submit(queue, account=who, mem_bytes=5 * GIB) for who in (ADA, BOB))
    must_claim(queue), must_claim(queue)

    found = queue.jobs.why(submit(queue, mem_bytes=4 * GIB))

    own, labs = found.limits
    assert ("ada", Measure.RUNNING_MEM, 5 * GIB, (ada,)) == (own.whose, own.measure, own.used, own.runs)
    assert ("@lab", Measure.RUNNING_MEM, 10 * GIB, (ada, bob)) == (labs.whose, labs.measure, labs.used, labs.runs)


def test_why_names_no_limit_whose_room_is_needed_later_only(queue: JobQueue) -> None:
    """`why` does not name a limit whose reserved room the job may use until the reservation starts."""
    # Regression: `why` named that limit for a short job, beside the first one.
    serve(queue)
    limit(queue, "ada: running_jobs=1; @lab: running_mem=8G")
    for who in (ADA, BOB, BOB, BOB):
        queue.requests.submit(make_spec(account=who, mem_bytes=2 * GIB, time_limit_s=3600.0))
    runs = {run.spec.account.name: run for run in (must_claim(queue) for _ in range(4))}
    large = submit(queue, account=BOB, mem_bytes=6 * GIB)
    keep(queue)
    end(queue, runs["bob"])
    endless, short = (submit(queue, mem_bytes=2 * GIB, time_limit_s=each) for each in (None, 300.0))

    reported = [[(each.measure, each.reserved_for) for each in queue.jobs.why(job).limits] for job in (endless, short)]

    own = (Measure.RUNNING_JOBS, None)
    assert [[own, (Measure.RUNNING_MEM, large)], [own]] == reported


def test_nothing_is_reserved_for_a_job_that_a_limit_holds(queue: JobQueue) -> None:
    """No device is reserved for a job that a limit holds: it would stay empty for no job."""
    # A reservation from before the limit ends at the next claim.
    serve(queue, make_offer(slots=2))
    first = [submit(queue, mem_bytes=10 * GIB), submit(queue, mem_bytes=20 * GIB)]
    must_claim(queue)
    assert [first[1]] == [each.job_id for each in queue.maintenance.reserve(after_s=0, most=1)]
    small = submit(queue, account=BOB, mem_bytes=12 * GIB)
    assert claim(queue) is None, "the device is reserved"

    limit(queue, "ada: running_jobs=1")

    assert small == must_claim(queue).job_id
    assert [] == queue.maintenance.reserve(after_s=0, most=1)


# ---- no job starves under a limit ------------------------------------------------------------------------------------


def keep(queue: JobQueue) -> None:
    """Run the reservation tick. All jobs count as having waited long enough here."""
    queue.maintenance.reserve(after_s=0, most=1)


def full_lab(queue: JobQueue, **changes: object) -> tuple[list[Claim], int]:
    """Fill the 8 GiB of @lab with four runs of bob and queue a 6 GiB job of ada; return the runs and that job."""
    serve(queue)
    limit(queue, "@lab: running_mem=8G")
    for _ in range(4):
        queue.requests.submit(make_spec(account=BOB, mem_bytes=2 * GIB, **changes))
    runs = [must_claim(queue) for _ in range(4)]
    return runs, submit(queue, mem_bytes=6 * GIB)


def test_a_large_job_of_a_group_at_its_limit_gets_its_turn(queue: JobQueue) -> None:
    # Regression: another small job of the group replaced each run that ended, until none of them was left.
    runs, large = full_lab(queue)
    later = [submit(queue, mem_bytes=2 * GIB, account=who) for who in (ADA, BOB, ADA)]
    external = submit(queue, mem_bytes=2 * GIB, account=replace(ADA, name="eve"))
    keep(queue)

    assert external == must_claim(queue).job_id, "others are under no such limit"
    for run in runs[:3]:
        assert claim(queue) is None
        end(queue, run)

    assert large == must_claim(queue).job_id
    end(queue, runs[3])
    assert not has_reserved_room(queue)
    assert must_claim(queue).job_id in later, "and then the others go on"


def has_reserved_room(queue: JobQueue) -> bool:
    """Return whether the store has a reservation under a limit."""
    client = connect(queue.url)
    is_reserved = bool(client.exists(keys.RESERVED_ROOM))
    client.close()
    return is_reserved


def test_reserved_room_under_a_limit_names_its_job(queue: JobQueue) -> None:
    runs, large = full_lab(queue)
    small = submit(queue, mem_bytes=2 * GIB, account=BOB)
    keep(queue)
    end(queue, runs[0])

    found, its = queue.jobs.why(small), queue.jobs.why(large)

    assert (large, 6 * GIB, 2 * GIB) == (found.limit.reserved_for, found.limit.used, found.limit.asked)
    assert (None, 6 * GIB) == (its.limit.reserved_for, its.limit.asked)
    assert {WaitReason.LIMIT} == {queue.jobs.get(each).reason for each in (small, large)}


def test_a_reservation_does_not_block_equal_jobs(queue: JobQueue) -> None:
    """A reservation under a limit does not hold back an equal job of the same user: either may start."""
    # Regression: the queue reported that a limit held the second job.
    runs, large = full_lab(queue)
    like_it, other = (submit(queue, mem_bytes=6 * GIB, account=who) for who in (ADA, BOB))
    keep(queue)
    for run in runs[:3]:
        end(queue, run)

    reported = {
        each: (queue.jobs.get(each).reason, bool(queue.jobs.why(each).limits)) for each in (large, like_it, other)
    }

    free, reserved = (WaitReason.MEMORY, False), (WaitReason.LIMIT, True)
    assert {large: free, like_it: free, other: reserved} == reported
    assert large == must_claim(queue).job_id


def test_beside_reserved_room_under_a_limit_there_is_room(queue: JobQueue) -> None:
    serve(queue)
    limit(queue, "@lab: running_mem=10G")
    run = submit_and_claim(queue, mem_bytes=6 * GIB)
    large = submit(queue, mem_bytes=7 * GIB)
    keep(queue)
    beside, not_beside = (submit(queue, mem_bytes=gib * GIB) for gib in (3, 2))

    end(queue, run)
    assert large == must_claim(queue).job_id
    assert beside == must_claim(queue).job_id
    assert claim(queue) is None
    assert not_beside in {job.id for job in queue.jobs.live() if job.state is JobState.QUEUED}


def test_who_is_gone_before_the_room_is_there_takes_it_meanwhile(queue: JobQueue) -> None:
    """A job that ends before the reserved room is needed may use it, by time limits as in backfill."""
    # The runs in the way have one hour left, and this job takes five minutes.
    runs, _ = full_lab(queue, time_limit_s=3600.0)
    keep(queue)
    end(queue, runs[0])
    endless, short = (submit(queue, mem_bytes=2 * GIB, time_limit_s=each) for each in (None, 300.0))

    assert short == must_claim(queue).job_id
    assert claim(queue) is None
    assert WaitReason.LIMIT is queue.jobs.get(endless).reason


def test_a_reservation_under_a_limit_ends_with_its_jobs_wait(queue: JobQueue) -> None:
    # It ends at the next tick after a cancel, when reservations are switched off, and when the limits change.
    for give_up in ("cancel", "keep nothing", "limits"):
        runs, large = full_lab(queue)
        keep(queue)
        assert has_reserved_room(queue)
        if give_up == "cancel":
            queue.jobs.cancel(large)
            keep(queue)
        elif give_up == "limits":
            limit(queue, "@lab: running_mem=9G")
        else:
            queue.maintenance.reserve(after_s=0, most=0)
        assert not has_reserved_room(queue), give_up
        queue.jobs.cancel(large)
        for run in runs:
            end(queue, run)


def test_a_reservation_under_a_limit_ends_if_a_run_stays_in_its_way(queue: JobQueue, store: redis.Redis) -> None:
    # Regression: the group's jobs that did fit waited for a run of two days without a time limit.
    runs, large = full_lab(queue)
    small = submit(queue, mem_bytes=2 * GIB, account=BOB)
    keep(queue)
    end(queue, runs[0])
    keep(queue)
    assert claim(queue) is None

    reserved = store.hget(keys.RESERVED_ROOM, "@lab")
    parts = str(reserved).split(":")
    parts[5] = str(int(parts[5]) - 61_000)
    store.hset(keys.RESERVED_ROOM, "@lab", ":".join(parts))
    keep(queue)

    assert small == must_claim(queue).job_id
    keep(queue)
    assert not has_reserved_room(queue), "nor before one of those that were waited for has ended"
    for run in runs[1:]:
        end(queue, run)
    other = submit(queue, mem_bytes=3 * GIB, account=BOB)
    keep(queue)
    assert large == must_claim(queue).job_id
    assert WaitReason.LIMIT is queue.jobs.get(other).reason


def test_no_room_under_a_limit_is_reserved_behind_an_ended_run(queue: JobQueue, store: redis.Redis) -> None:
    """A reservation under a limit does not wait for an entry without a lease, which holds nothing."""
    # Regression: the reservation waited for the end of that entry and was never dropped.
    runs, large = full_lab(queue)
    store.hset(f"{keys.PREFIX}run:ada", "999", f"1:{8 * GIB}")
    small = submit(queue, mem_bytes=2 * GIB, account=BOB)

    keep(queue)

    parts = str(store.hget(keys.RESERVED_ROOM, "@lab")).split(":")
    assert [f"{large}", ",".join(str(run.job_id) for run in runs[:3])] == [parts[0], parts[6]]
    end(queue, runs[0])
    keep(queue)
    parts = str(store.hget(keys.RESERVED_ROOM, "@lab")).split(":")
    parts[5] = str(int(parts[5]) - 61_000)
    store.hset(keys.RESERVED_ROOM, "@lab", ":".join(parts))
    keep(queue)
    assert small == must_claim(queue).job_id


def test_two_that_need_room_under_two_limits_do_not_wait_for_each_other(queue: JobQueue) -> None:
    # Regression: one had the room under ada's limit, the other that under her group's, and neither would have started.
    serve(queue, make_offer("GPU-0"), make_offer("GPU-1"))
    limit(queue, "ada: running_mem=11G; @lab: running_gpus=2")
    run = submit_and_claim(queue, mem_bytes=4 * GIB)
    large, pair = (submit(queue, mem_bytes=10 * GIB), submit(queue, mem_bytes=GIB, gpus=2))
    keep(queue)
    end(queue, run)

    started = must_claim(queue)

    assert large == started.job_id
    keep(queue)
    end(queue, started)
    assert pair == must_claim(queue).job_id


def test_a_refusing_limit_counts_runs_and_not_reservations(queue: JobQueue) -> None:
    # A small job that is within the limit waits behind the large one.
    serve(queue)
    limit(queue, "@lab: running_mem=8G")
    submit_and_claim(queue, mem_bytes=6 * GIB)
    queue.requests.submit(make_spec(mem_bytes=6 * GIB))
    limit(queue, "@lab: running_mem=8G/refuse")
    keep(queue)

    small = queue.requests.submit(make_spec(mem_bytes=2 * GIB, account=BOB))

    assert claim(queue) is None
    assert WaitReason.LIMIT is queue.jobs.get(small.id).reason


def test_a_job_that_a_limit_can_never_let_run_is_refused(queue: JobQueue) -> None:
    """A job that exceeds a limit by itself is refused at submit, with the name of the limit."""
    # If the limit is set later, the job waits and reports the reason.
    serve(queue, make_offer("GPU-0"), make_offer("GPU-1"))
    early = submit(queue, gpus=2)
    limit(queue, "*: running_gpus=1; bob: running_mem=3G")

    with pytest.raises(Refused, match=r"ada may have 1 GPU running at a time \(limit running_gpus\), .* asks for 2"):
        queue.requests.submit(make_spec(gpus=2))
    with pytest.raises(Refused, match=r"bob may have 3G of device memory running .* asks for 4G"):
        queue.requests.submit(make_spec(account=BOB, mem_bytes=4 * GIB))
    assert claim(queue) is None
    assert WaitReason.LIMIT is queue.jobs.get(early).reason
    assert [early] == [job.id for job in queue.jobs.live()]


def test_a_job_that_one_limit_can_never_let_run_is_refused_whatever_another_says(queue: JobQueue) -> None:
    # Regression: only the first limit in the way was checked, so while that one was full the job was accepted. It
    # waited for ever, and the room under the second limit was reserved for it, against all others of its group.
    serve(queue, make_offer("GPU-0"), make_offer("GPU-1"))
    limit(queue, "*: running_gpus=2; @lab: running_mem=10G")
    run = submit_and_claim(queue, gpus=2)
    waiting = submit(queue, mem_bytes=GIB)

    with pytest.raises(Refused, match=r"@lab may have 10G of device memory running .* asks for 16G"):
        queue.requests.submit(make_spec(mem_bytes=8 * GIB, gpus=2))
    with pytest.raises(Refused, match=r"@lab may have 10G .* asks for 16G"):
        queue.requests.edit(waiting, lambda spec: replace(spec, mem_bytes=8 * GIB, gpus=2))
    end(queue, run)
    assert waiting == must_claim(queue).job_id


def test_a_limit_that_refuses_does_so_whatever_another_says(queue: JobQueue) -> None:
    """A limit that refuses does so even if a limit that lets jobs wait is in the way first."""
    serve(queue)
    limit(queue, "*: running_jobs=1; @lab: running_mem=10G/refuse")
    submit_and_claim(queue, mem_bytes=8 * GIB)

    with pytest.raises(Refused, match=r"@lab has 8G of 10G .* and jobs beyond it are refused"):
        queue.requests.submit(make_spec(mem_bytes=3 * GIB))
    assert WaitReason.LIMIT is queue.requests.submit(make_spec(mem_bytes=2 * GIB)).reason


def test_nothing_is_reserved_for_a_job_beyond_another_limit(queue: JobQueue, store: redis.Redis) -> None:
    """No room is reserved for a job that exceeds another limit by itself, and `why` names that limit."""
    # The job was accepted under earlier limits. The first limit in its way will have room, the second never.
    serve(queue, make_offer("GPU-0"), make_offer("GPU-1"))
    run = submit_and_claim(queue, gpus=2)
    in_vain = submit(queue, mem_bytes=8 * GIB, gpus=2)
    small = submit(queue, mem_bytes=3 * GIB)
    limit(queue, "*: running_gpus=2; @lab: running_mem=10G")
    keep(queue)
    found = queue.jobs.why(in_vain)

    assert [str(small)] == [text.partition(":")[0] for text in store.hvals(keys.RESERVED_ROOM)]
    assert (Measure.RUNNING_MEM, 16 * GIB) == (found.limit.measure, found.limit.asked)
    end(queue, run)
    keep(queue)
    assert small == must_claim(queue).job_id


def test_whichever_the_limit_says_beyond_it_a_job_waits_or_is_refused(queue: JobQueue) -> None:
    # The number is the same for both.
    serve(queue)
    limit(queue, "ada: running_jobs=1; bob: running_jobs=1/refuse")
    for who in (ADA, BOB):
        queue.requests.submit(make_spec(account=who))
    must_claim(queue), must_claim(queue)

    assert WaitReason.LIMIT is queue.requests.submit(make_spec()).reason
    with pytest.raises(
        Refused, match=r"bob has 1 of 1 job running \(limit running_jobs\), and jobs beyond it are refused"
    ):
        queue.requests.submit(make_spec(account=BOB))


@pytest.mark.parametrize("limits", ["ada: queued_jobs=2", "@lab: queued_jobs=2"])
def test_queued_jobs_limits_the_waiting_jobs_of_all_shapes_and_priorities(queue: JobQueue, limits: str) -> None:
    # A started job frees a place. A submit that is sent twice counts once.
    serve(queue)
    limit(queue, limits)
    queue.requests.submit(make_spec())
    last = queue.requests.submit(make_spec(mem_bytes=2 * GIB), nonce="again").id

    with pytest.raises(Refused, match=r"has 2 jobs waiting, and at most 2 may \(limit queued_jobs\): submit when"):
        queue.requests.submit(make_spec())
    assert last == queue.requests.submit(make_spec(mem_bytes=2 * GIB), nonce="again").id
    must_claim(queue)
    queue.requests.submit(make_spec())


def test_what_is_held_or_stands_aside_waits_as_well(queue: JobQueue, store: redis.Redis) -> None:
    """Held jobs and jobs that wait for others or for a time count towards `queued_jobs`."""
    # Otherwise hold, submit and release would exceed the limit.
    serve(queue)
    limit(queue, "ada: queued_jobs=3")
    held = submit(queue)
    queue.jobs.hold(held)
    queue.requests.submit(make_spec(waits=Waits(after=(Dependency(held),))))
    queue.requests.submit(make_spec(waits=Waits(begin_at=datetime(2035, 1, 1, tzinfo=timezone.utc))))

    for waits in (Waits(), Waits(hold=True)):
        with pytest.raises(Refused, match=r"ada has 3 jobs waiting, and at most 3 may \(limit queued_jobs\)"):
            queue.requests.submit(make_spec(waits=waits))
    assert Use(queued_jobs=3) == running(queue)["ada"]
    assert [] == faults(dump(store))

    assert JobState.QUEUED is queue.jobs.release(held)
    assert held == must_claim(queue).job_id
    queue.requests.submit(make_spec())
    for job in queue.jobs.live():
        queue.jobs.cancel(job.id)
    assert [] == faults(dump(store))


def test_each_member_of_an_array_counts_towards_queued_jobs(queue: JobQueue, store: redis.Redis) -> None:
    # An array is accepted completely or not at all, and its places become free as its members start.
    serve(queue)
    limit(queue, "*: queued_jobs=5")
    with pytest.raises(Refused, match="this array alone has 6 members, submit it in smaller ones"):
        queue.requests.submit(make_spec(array=Array.parse("0-5")))
    queue.requests.submit(make_spec())
    array = submit(queue, array=Array.parse("1-7:2"))
    assert Use(queued_jobs=5) == running(queue)["ada"]

    queue.jobs.part(array, "hold", Indexes.parse("3,5"))
    assert Use(queued_jobs=5) == running(queue)["ada"], "held or not, they wait"
    assert [] == faults(dump(store))
    for _ in range(2):
        must_claim(queue)
    assert 3 == running(queue)["ada"].queued_jobs
    with pytest.raises(Refused, match=r"has 3 jobs waiting, and at most 5 may .*, and this array has 3 members"):
        queue.requests.submit(make_spec(array=Array.parse("0-2")))
    queue.requests.submit(make_spec(array=Array.parse("0-1")))

    queue.jobs.part(array, "cancel")
    assert 2 == running(queue)["ada"].queued_jobs
    assert [] == faults(dump(store))


def test_a_job_on_the_cpu_counts_as_a_run_and_with_its_memory_but_as_no_gpu(queue: JobQueue) -> None:
    cpu = make_device("cpu-0", kind=DeviceKind.CPU)
    serve(queue, make_offer("GPU-0"), make_offer("cpu-0", device=cpu))
    limit(queue, "*: running_gpus=1")
    asked = [make_spec(device=DeviceFilter.CPU), make_spec(), make_spec(device=DeviceFilter.ANY)]
    ids = [queue.requests.submit(spec).id for spec in asked]

    assert ids[1] == must_claim(queue).job_id
    assert claim(queue) is None, "the third may use no second GPU"
    for job_id in (ids[0], ids[2]):
        offer = make_offer("cpu-0", device=cpu)
        claimed = queue.runs.claim(offer, worker="w", lease_s=300, nonce=new_nonce(), gpus_here=True)
        assert job_id == claimed.job_id
    assert {"ada": Use(running_jobs=3, running_gpus=1, running_mem=3 * GIB)} == running(queue)


@pytest.mark.parametrize("limits", ["*: running_gpus=1", "*: running_gpus=1/refuse", "*: running_gpus=0"])
def test_a_limit_of_gpus_holds_no_job_that_a_cpu_may_take(queue: JobQueue, limits: str) -> None:
    # Regression: the job was refused or had reason "limit", although the CPU would have taken it at once.
    cpu = make_device("cpu-0", kind=DeviceKind.CPU)
    serve(queue, make_offer("GPU-0"))
    limit(queue, "*: running_gpus=1")
    submit_and_claim(queue)
    limit(queue, limits)
    anywhere = make_spec(device=DeviceFilter.ANY)
    if limits != "*: running_gpus=1":
        with pytest.raises(Refused):
            queue.requests.submit(anywhere)

    serve(queue, make_offer("cpu-0", device=cpu))
    job_id = queue.requests.submit(anywhere).id

    offer = make_offer("cpu-0", device=cpu)
    claimed = queue.runs.claim(offer, worker="w", lease_s=300, nonce=new_nonce(), gpus_here=True)
    assert job_id == claimed.job_id


def test_the_use_under_a_limit_is_that_of_runs_with_a_lease(queue: JobQueue, store: redis.Redis) -> None:
    # It is returned however a run ends, and an entry left over in a damaged store does not count.
    serve(queue)
    limit(queue, "*: running_jobs=1")
    for _ in range(4):
        queue.requests.submit(make_spec())
    queue.runs.release_claim(*_named(must_claim(queue)), "full")
    queue.runs.lose(*_named(must_claim(queue)), loss_limit=3, detail="gone")
    end(queue, must_claim(queue))
    assert {} == store.hgetall(keys.PREFIX + "run:ada")

    store.hset(keys.PREFIX + "run:ada", "99", f"1:{GIB}")

    must_claim(queue)


def _named(run: Claim) -> tuple[int, str]:
    return run.job_id, run.token


def test_a_new_limit_counts_what_runs_already(queue: JobQueue, store: redis.Redis) -> None:
    """A new limit counts running jobs, including those claimed by a version that counted none. It ends no run."""
    serve(queue)
    first, second = (submit(queue) for _ in range(2))
    run = must_claim(queue)
    store.delete(keys.PREFIX + "run:ada")

    limit(queue, "*: running_jobs=1")

    assert claim(queue) is None
    assert (JobState.STARTING, JobState.QUEUED) == tuple(queue.jobs.get(each).state for each in (first, second))
    limit(queue, "*: running_jobs=2")
    assert second == must_claim(queue).job_id
    assert run.job_id == first


def test_a_pool_supplies_a_default_time_limit_and_refuses_jobs_beyond_its_limits(
    queue: JobQueue, store: redis.Redis
) -> None:
    # The message has the exact limit. The store applies the rules, so they are the same for all clients.
    serve(queue, make_offer("GPU-0", pool="big"), make_offer("GPU-1", pool="big"))
    limit(queue, "", "big: max_mem=4G max_time=2h default_time=30m max_gpus=1; *: max_time=90s")

    job = queue.requests.submit(make_spec(pool="big"), nonce="n")

    assert 1800.0 == job.spec.time_limit_s
    assert job.spec == queue.jobs.get(job.id).spec
    assert job.id == queue.requests.submit(make_spec(pool="big"), nonce="n").id, "sent twice it is one job"
    assert 7200.0 == queue.requests.submit(make_spec(pool="big", time_limit_s=7200.0)).spec.time_limit_s
    assert 90.0 == queue.requests.submit(make_spec()).spec.time_limit_s
    for changes, words in (
        (
            {"mem_bytes": 5 * GIB},
            r"5G on a device asked for, and pool big may have 4G \(limit max_mem\): ask for less memory",
        ),
        ({"time_limit_s": 7201.0}, r"2:00:01 of time asked for, and pool big may have 2:00:00 \(limit max_time\)"),
        ({"gpus": 2}, r"2 devices asked for, and pool big may have 1 \(limit max_gpus\)"),
        ({"pool": "", "time_limit_s": 91.0}, r"a job without a pool may have 1:30 \(limit max_time\)"),
    ):
        with pytest.raises(Refused, match=words):
            queue.requests.submit(make_spec(**{"pool": "big", **changes}))
    with pytest.raises(Refused, match=r"pool big may have 2:00:00 and not more \(limit max_time\): give a time limit"):
        queue.requests.edit(job.id, lambda spec: replace(spec, time_limit_s=None))  # regression: "0.0 s are too much"
    assert 3 == store.zcard(keys.LIVE)


ALONE = Placement(exclusive=True)


def test_who_takes_several_whole_cards_is_judged_by_a_host_that_has_as_many(queue: JobQueue) -> None:
    """A job on several whole cards is checked against a host that has enough cards."""
    # Regression: it was checked against the smallest card of the site, accepted, and waited for ever. Only large
    # cards come in pairs.
    for host, sizes in (("twins", (24, 24)), ("small", (8,)), ("middle", (16,))):
        for index, size in enumerate(sizes):
            device = make_device(f"GPU-{host}-{index}", total_bytes=size * GIB)
            serve(queue, make_offer(device=device, host=host))
    limit(queue, "ada: running_mem=30G", "*: max_mem=20G")

    queue.requests.submit(make_spec(placement=ALONE))
    with pytest.raises(Refused, match=r"here at least 24G, and a job without a pool may have 20G"):
        queue.requests.submit(make_spec(gpus=2, placement=ALONE))
    limit(queue, "ada: running_mem=30G", "")
    with pytest.raises(Refused, match=r"ada may have 30G .*this job, which gets all of its device, would have 48G"):
        queue.requests.submit(make_spec(gpus=2, placement=ALONE))


@pytest.mark.parametrize("placement", [ALONE, Placement(exclusive=True, whole=True)])
def test_a_job_on_a_whole_card_is_checked_with_all_memory_of_the_card(queue: JobQueue, placement: Placement) -> None:
    # Regression: it was accepted for the megabyte in its request and got every byte of the card.
    serve(queue, make_offer("GPU-0", pool="big"), make_offer("GPU-1", pool="big"))
    limit(queue, "ada: running_mem=10G; @lab: running_mem=30G", "big: max_mem=10G")
    plain = submit(queue, mem_bytes=GIB)

    with pytest.raises(Refused, match=r"ada may have 10G .*this job, which gets all of its device, would have 24G"):
        queue.requests.submit(make_spec(mem_bytes=MIB, placement=placement))
    with pytest.raises(Refused, match=r"gets all of it, here at least 24G, and pool big may have 10G .*leave out --"):
        queue.requests.submit(make_spec(account=BOB, mem_bytes=MIB, placement=placement, pool="big"))
    with pytest.raises(Refused, match=r"would have 24G"):
        queue.requests.edit(plain, lambda spec: replace(spec, placement=placement))
    with pytest.raises(Refused, match=r"@lab may have 30G .*would have 48G"):
        queue.requests.submit(make_spec(account=BOB, mem_bytes=MIB, placement=placement, gpus=2))
    assert [plain] == [job.id for job in queue.jobs.live()]


def test_who_takes_a_whole_card_waits_where_that_is_beyond_a_limit(queue: JobQueue, store: redis.Redis) -> None:
    """A whole-card job waits if the card exceeds the rest of a limit, for a run to end or for a smaller card."""
    # `why` reports the bytes that it would have.
    serve(queue, make_offer("GPU-large"))
    limit(queue, "ada: running_mem=30G")
    first = submit(queue, mem_bytes=8 * GIB)
    run = must_claim(queue, "GPU-large")
    serve(queue, make_offer("GPU-large"), make_offer("GPU-other"))
    alone = queue.requests.submit(make_spec(mem_bytes=MIB, placement=ALONE))

    assert WaitReason.LIMIT is alone.reason
    assert claim(queue, "GPU-other") is None
    assert WaitReason.LIMIT is queue.jobs.get(alone.id).reason
    found = queue.jobs.why(alone.id)
    mem = Measure.RUNNING_MEM
    reached = LimitReached(whose="ada", measure=mem, used=8 * GIB, most=30 * GIB, asked=24 * GIB, runs=(first,))
    assert reached == found.limit

    end(queue, run)
    assert alone.id == must_claim(queue, "GPU-other").job_id
    assert [] == faults(dump(store))


def test_a_smaller_card_may_be_within_the_limit(queue: JobQueue) -> None:
    # The reported amount is that of the card that the job would get.
    small = make_offer("GPU-small", headroom_bytes=12 * GIB)
    limit(queue, "ada: running_mem=20G")
    serve(queue, make_offer("GPU-large"), small)
    alone = submit(queue, mem_bytes=MIB, placement=ALONE)

    assert claim(queue, "GPU-large") is None
    found = queue.jobs.why(alone)
    assert {"GPU-large": Obstacle.LIMIT, "GPU-small": Obstacle.FITS} == {
        each.device: each.obstacle for each in found.devices
    }
    assert 24 * GIB == found.limit.asked
    assert alone == must_claim(queue, "GPU-small").job_id


@pytest.mark.parametrize("missing", [(), ("run:ada",)])
def test_a_whole_card_counts_with_all_its_memory_after_limits_change(
    queue: JobQueue, store: redis.Redis, missing: tuple[str, ...]
) -> None:
    # Regression: after any change it counted with the megabyte in its request, and the user's next job exceeded the
    # limit.
    large = make_device("GPU-large", total_bytes=48 * GIB)
    serve(queue, make_offer(device=large), make_offer("GPU-small"), make_offer("GPU-other"))
    limit(queue, "ada: running_mem=50G")
    alone = submit(queue, mem_bytes=MIB, placement=ALONE, gpus=2)
    must_claim(queue, "GPU-large")
    six = submit(queue, mem_bytes=6 * GIB)
    for key in missing:  # as if claimed by a version without counting
        store.delete(keys.PREFIX + key)

    limit(queue, "ada: running_mem=50G; bob: running_jobs=3")

    assert {"ada": Use(running_jobs=1, running_gpus=2, running_mem=48 * GIB, queued_jobs=1)} == running(queue)
    assert claim(queue, "GPU-other") is None
    assert [WaitReason.LIMIT, None] == [queue.jobs.get(each).reason for each in (six, alone)]


def test_a_card_that_is_too_large_for_its_pool_is_passed_over(queue: JobQueue, store: redis.Redis) -> None:
    """A card that exceeds its pool's `max_mem` is passed over for an exclusive job."""
    # Regression: a large card that joined later was given out, and a job with a suitable smaller card beside it was
    # refused.
    small = make_offer("GPU-small", headroom_bytes=12 * GIB, pool="big")
    serve(queue, small)
    limit(queue, "", "big: max_mem=16G")
    first = submit(queue, mem_bytes=MIB, placement=ALONE, pool="big")
    serve(queue, make_offer("GPU-large", pool="big"))
    second = submit(queue, mem_bytes=MIB, placement=ALONE, pool="big")

    assert claim(queue, "GPU-large") is None
    found = queue.jobs.why(first)
    obstacles = {each.device: each.obstacle for each in found.devices}
    assert {"GPU-large": Obstacle.TOO_LARGE, "GPU-small": Obstacle.FITS} == obstacles
    assert first == must_claim(queue, "GPU-small").job_id
    assert WaitReason.MEMORY is queue.jobs.get(second).reason
    assert {second: {"GPU-small"}} == reserved(queue)
    plain = submit(queue, account=BOB, pool="big")
    assert plain == must_claim(queue, "GPU-large").job_id

    queue.devices.drain(["GPU-small"], origin=DrainOrigin.PERSON, why="", by="ada")
    assert WaitReason.DRAINED is queue.jobs.get(second).reason
    assert {} == reserved(queue)
    queue.devices.withdraw("nodeA", "GPU-small")
    assert WaitReason.LIMIT is queue.jobs.get(second).reason
    limit(queue, "", "big: max_mem=24G")
    assert {second: {"GPU-large"}} == reserved(queue)
    assert [] == faults(dump(store))


def test_in_a_gang_each_card_is_checked_against_the_pools_max_mem(queue: JobQueue) -> None:
    # External processes do not make a card smaller.
    serve(queue, make_offer("GPU-0", headroom_bytes=12 * GIB), make_offer("GPU-1", headroom_bytes=12 * GIB))
    limit(queue, "", "*: max_mem=16G")
    gang = submit(queue, mem_bytes=MIB, placement=ALONE, gpus=2)
    serve(queue, make_offer("GPU-large", external_bytes=13 * GIB))  # the fullest card, which is preferred

    assert claim(queue, "GPU-large", external_bytes=13 * GIB) is None
    claimed = must_claim(queue, "GPU-0")

    assert (gang, {"GPU-0", "GPU-1"}) == (claimed.job_id, set(claimed.devices))


def test_a_job_preempts_nothing_on_a_card_too_large_for_its_pool(queue: JobQueue) -> None:
    """No run is preempted on a card that exceeds the pool's `max_mem`: the preemption would be useless."""
    serve(queue, make_offer("GPU-small", headroom_bytes=12 * GIB))
    limit(queue, "", "*: max_mem=16G")
    serve(queue, make_offer("GPU-large"))
    (on_small,) = occupied(queue, "GPU-small", mem_bytes=10 * GIB, priority=Priority.LOW)
    (on_large,) = occupied(queue, "GPU-large", priority=Priority.LOW)
    for run in (on_small, on_large):
        start(queue, run)
    alone = submit(queue, mem_bytes=MIB, placement=ALONE, priority=Priority.HIGH)

    assert {on_small.job_id: alone} == queue.maintenance.preempt(
        {Priority.HIGH: (Priority.LOW,)}, after_s=0.0, grace_s=60.0
    )


def reserved(queue: JobQueue) -> dict[int, set[str]]:
    """Run the reservation tick and return the reserved devices of each job."""
    return {each.job_id: set(each.devices) for each in queue.maintenance.reserve(after_s=0, most=1)}


def occupied(queue: JobQueue, *uuids: str, **spec: object) -> list[Claim]:
    """Start a job of bob's on each of these devices."""
    runs = []
    for uuid in uuids:
        queue.requests.submit(make_spec(**{"account": BOB, "priority": Priority.URGENT, **spec}))
        runs.append(must_claim(queue, uuid))
    return runs


def test_no_card_is_reserved_that_exceeds_the_users_limit(queue: JobQueue) -> None:
    # Regression: the claim dropped the reservation and the next tick made it again, so a job that could not use the
    # card held it for ever.
    serve(queue, make_offer("GPU-large"), make_offer("GPU-small", headroom_bytes=12 * GIB))
    limit(queue, "ada: running_mem=20G")
    _, on_small = occupied(queue, "GPU-large", "GPU-small")
    alone = submit(queue, mem_bytes=MIB, placement=ALONE)

    assert {alone: {"GPU-small"}} == reserved(queue), "the large one has more room"
    found = queue.jobs.why(alone)
    assert ("GPU-small",) == found.start.devices
    assert len(occupied(queue, "GPU-large")) == 1
    assert {alone: {"GPU-small"}} == reserved(queue)
    end(queue, on_small)
    assert alone == must_claim(queue, "GPU-small").job_id


def test_no_card_is_reserved_if_all_are_larger_than_the_limit(queue: JobQueue) -> None:
    """No card is reserved if each one exceeds the limit, also while the only suitable one is drained."""
    # Jobs of other users still get their reservations.
    serve(queue, make_offer("GPU-large"), make_offer("GPU-small", headroom_bytes=12 * GIB))
    limit(queue, "ada: running_mem=20G")
    queue.devices.drain(["GPU-small"], origin=DrainOrigin.PERSON, why="", by="ada")
    occupied(queue, "GPU-large")
    alone = submit(queue, mem_bytes=MIB, placement=ALONE)
    assert {} == reserved(queue)

    theirs = submit(queue, account=BOB, mem_bytes=MIB, placement=ALONE)
    assert {theirs: {"GPU-large"}} == reserved(queue)
    limit(queue, "*: running_mem=20G")
    assert {} == reserved(queue)
    limit(queue, "")
    assert {alone: {"GPU-large"}} == reserved(queue)


def test_of_several_cards_a_small_one_keeps_a_job_within_its_limit(queue: JobQueue, store: redis.Redis) -> None:
    """Each card of a gang counts with the memory of the smallest, so a small card keeps the gang within its limit."""
    # Two linked large cards exceed the limit, so the gang gets the reserved cards.
    near = {"GPU-0": {"GPU-1": 0}, "GPU-1": {"GPU-0": 0}, "GPU-small": {}}
    for uuid, others in near.items():
        offer = make_offer(uuid, headroom_bytes=12 * GIB if uuid == "GPU-small" else 0)
        queue.devices.announce(offer, worker=f"worker-{uuid}", pid=1, boot_id="boot", near=others)
        queue.devices.heartbeat(offer, [], lease_s=300)
    limit(queue, "ada: running_mem=30G")
    runs = occupied(queue, *near)
    gang = submit(queue, mem_bytes=MIB, gpus=2, placement=ALONE)

    devices = reserved(queue)[gang]
    assert "GPU-small" in devices
    (large,) = devices - {"GPU-small"}
    for run in runs:
        end(queue, run)
        assert devices == reserved(queue)[gang]
    claimed = must_claim(queue, large)

    assert (gang, devices) == (claimed.job_id, set(claimed.devices))
    assert Use(running_jobs=1, running_gpus=2, running_mem=24 * GIB) == running(queue)["ada"]
    assert [] == faults(dump(store))


def test_a_cpu_is_reserved_where_a_limit_leaves_no_gpu(queue: JobQueue) -> None:
    """A CPU is reserved for a job that accepts both kinds if its limit of GPUs is reached."""
    cpu = make_offer("cpu-0", device=make_device("cpu-0", kind=DeviceKind.CPU))
    serve(queue, make_offer("GPU-0"), cpu)
    limit(queue, "ada: running_gpus=1")
    submit_and_claim(queue, "GPU-0")
    queue.requests.submit(make_spec(account=BOB, device=DeviceFilter.CPU, mem_bytes=10 * GIB))

    def claim_cpu() -> Claim | None:
        return queue.runs.claim(cpu, worker="w", lease_s=300, nonce=new_nonce(), gpus_here=True)

    first = claim_cpu()
    assert first is not None
    either = submit(queue, device=DeviceFilter.ANY, mem_bytes=20 * GIB)

    assert {either: {"cpu-0"}} == reserved(queue)
    queue.requests.submit(make_spec(account=BOB, device=DeviceFilter.CPU, mem_bytes=10 * GIB))
    assert claim_cpu() is None, "it is reserved"
    end(queue, first)
    taken = claim_cpu()
    assert either == taken.job_id


def test_no_run_is_preempted_on_a_card_that_a_limit_denies_to_the_waiting_job(queue: JobQueue) -> None:
    # Regression: a run was ended there, the card was released, and the next run was ended.
    serve(queue, make_offer("GPU-large"), make_offer("GPU-small", headroom_bytes=12 * GIB))
    limit(queue, "ada: running_mem=20G")
    (on_small,) = occupied(queue, "GPU-small", mem_bytes=10 * GIB, priority=Priority.LOW)
    (on_large,) = occupied(queue, "GPU-large", priority=Priority.LOW)  # preemption would lose the least work here
    for run in (on_small, on_large):
        start(queue, run)
    alone = submit(queue, mem_bytes=MIB, placement=ALONE, priority=Priority.HIGH)

    assert {on_small.job_id: alone} == queue.maintenance.preempt(
        {Priority.HIGH: (Priority.LOW,)}, after_s=0.0, grace_s=60.0
    )
    assert {alone: {"GPU-small"}} == reserved(queue)


def test_an_empty_card_beyond_the_limit_prevents_no_preemption(queue: JobQueue) -> None:
    """An empty card that exceeds the job's limit does not stop a preemption elsewhere: the job cannot start there."""
    serve(queue, make_offer("GPU-large"), make_offer("GPU-small", headroom_bytes=12 * GIB))
    limit(queue, "ada: running_mem=20G")
    (on_small,) = occupied(queue, "GPU-small", mem_bytes=10 * GIB, priority=Priority.LOW)
    start(queue, on_small)
    alone = submit(queue, mem_bytes=MIB, placement=ALONE, priority=Priority.HIGH)

    assert claim(queue, "GPU-large") is None
    assert {on_small.job_id: alone} == queue.maintenance.preempt(
        {Priority.HIGH: (Priority.LOW,)}, after_s=0.0, grace_s=60.0
    )


def test_a_whole_card_counts_as_one_after_a_rebuild(queue: JobQueue, recorded: Recorded, store: redis.Redis) -> None:
    # No worker has announced the card by then: the history has the memory that was allocated to the run.
    serve(queue, make_offer("GPU-0"), make_offer("GPU-1"))
    submit_and_claim(queue, mem_bytes=MIB, placement=ALONE, gpus=2)
    before = running(queue)
    recorded.record()
    recorded.rebuild()

    assert {"ada": Use(running_jobs=1, running_gpus=2, running_mem=48 * GIB)} == before == running(queue)
    serve(queue, make_offer("GPU-0"), make_offer("GPU-1"))
    assert [] == faults(dump(store))


def test_a_whole_card_counts_with_all_its_memory_after_its_run_is_adopted(queue: JobQueue, recorded: Recorded) -> None:
    # Regression: a run that the store had lost counted with the megabyte in its request.
    serve(queue, make_offer())
    run = submit_and_claim(queue, mem_bytes=MIB, placement=ALONE)
    before = running(queue)
    recorded.rebuild()
    serve(queue, make_offer())

    assert JobState.RUNNING is queue.runs.adopt(offered(run), lease_s=300)

    assert {"ada": Use(running_jobs=1, running_gpus=1, running_mem=24 * GIB)} == before == running(queue)


def test_a_worker_sends_the_limits_of_its_site(queue: JobQueue, store: redis.Redis) -> None:
    """A worker writes its site's limits when it starts, and again after data loss."""
    # Writing them again changes nothing.
    settings = Settings.load(
        {
            "GPUQUEUE_CONFIG": "/dev/null",
            "GPUQUEUE_STATE_DIR": "/s",
            "GPUQUEUE_LIMITS": "@vision: running_gpus=4",
            "GPUQUEUE_POOL_LIMITS": "big: max_time=1d",
            "GPUQUEUE_GROUPS": "vision: ann bob",
        }
    )
    reaper = Reaper(settings, queue, SystemClock())
    reaper.send_policy()
    assert settings.site_limits() == queue.rules.limits()
    assert not queue.rules.set_limits(settings.site_limits())

    store.flushall()
    queue.recovery.open(0)
    assert Limits() == queue.rules.limits()
    reaper.send_policy()

    assert settings.site_limits() == queue.rules.limits()


def test_a_neighbour_that_is_reserved_in_vain_is_free_for_a_job_on_several_devices(
    queue: JobQueue, store: redis.Redis
) -> None:
    """A limit keeps the job back for which the neighbour is reserved, so any device may claim both.

    Only the claim of the reserved device itself saw that, and ``why`` said that the job fits on the other ones.
    """
    serve(queue, make_offer("GPU-0"), make_offer("GPU-1"))
    submit(queue, account=ADA, mem_bytes=10 * GIB)
    must_claim(queue, "GPU-0")
    held_back = submit(queue, account=ADA, mem_bytes=20 * GIB)
    store.hset(keys.RESERVED, "GPU-1", f"{held_back}:{20 * GIB}:0:")
    wide = submit(queue, account=BOB, mem_bytes=2 * GIB, gpus=2)
    assert None is claim(queue, "GPU-0")

    queue.rules.set_limits(Limits.parse(f"{ADA.name}: running_mem=12G", "", {}))

    assert wide == must_claim(queue, "GPU-0").job_id
