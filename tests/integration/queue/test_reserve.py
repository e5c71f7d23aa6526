"""No starvation: room is kept for a job that small ones would pass for ever."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timezone
from typing import Any

import pytest
import redis
from factories import BOB, claim, make_offer, make_spec, must_claim, serve
from store_dump import dump, faults

from gpuqueue.model.dependencies import Waits
from gpuqueue.model.job import JobState, Level, WaitReason
from gpuqueue.model.placement import Placement
from gpuqueue.model.retries import Retries
from gpuqueue.model.run import Ending
from gpuqueue.queue import keys
from gpuqueue.queue.connect import connect
from gpuqueue.queue.drains import DrainOrigin
from gpuqueue.queue.jobqueue import JobQueue
from gpuqueue.queue.lease import Claim
from gpuqueue.text.units import GIB, MIB


def end(queue: JobQueue, run: Claim) -> None:
    """End a run well."""
    queue.started(run.job_id, run.token, lease_s=300, log_path="/l", devices=())
    done = {"state": JobState.SUCCEEDED, "ending": Ending.from_status(0), "duration_s": 1.0, "devices": ()}
    assert queue.finish(run.job_id, run.token, **done)  # type: ignore[arg-type]


def token_of(queue: JobQueue, job_id: int) -> str:
    """Return the token of a job's run."""
    client = connect(queue.url)
    token = client.hget(keys.job(job_id), "tok")
    client.close()
    return str(token)


def reserve(queue: JobQueue, *, most: int = 1) -> dict[int, tuple[str, ...]]:
    """Keep room for whatever waits; return for which jobs, where."""
    return {each.job_id: each.devices for each in queue.reserve(after_s=0, most=most)}


def small(queue: JobQueue, **changes: object) -> int:
    """Queue a job of 4 GiB without a time limit."""
    return queue.submit(make_spec(mem_bytes=4 * GIB, **changes)).id


@pytest.mark.promise("P7")
def test_a_large_job_in_a_stream_of_small_ones_gets_its_turn(queue: JobQueue) -> None:
    """Without room kept for it, whatever ends is replaced at once by another small one: it would wait for ever."""
    serve(queue)
    for _ in range(6):
        small(queue)
    running = [must_claim(queue) for _ in range(6)]
    large = queue.submit(make_spec(mem_bytes=23 * GIB)).id
    for _ in range(6):
        small(queue)

    assert {large: ("GPU-0",)} == reserve(queue)
    for run in running:
        assert claim(queue) is None
        end(queue, run)

    assert large == must_claim(queue).job_id


def test_who_waits_for_a_reservation_is_told_so(queue: JobQueue) -> None:
    """And the job that the room is kept for waits for memory, as before."""
    serve(queue)
    small(queue)
    must_claim(queue)
    large = queue.submit(make_spec(mem_bytes=23 * GIB)).id
    passed = small(queue)

    def reasons() -> list[WaitReason | None]:
        return [job.reason for job in queue.live() if job.id in {large, passed}]

    assert [WaitReason.MEMORY, WaitReason.MEMORY] == reasons()
    reserve(queue)
    assert [WaitReason.MEMORY, WaitReason.RESERVATION] == reasons()


def test_who_would_have_no_room_anyway_waits_for_memory(queue: JobQueue) -> None:
    """Was nothing kept, it would not start either: the reservation is not what holds it."""
    serve(queue)
    small(queue)
    must_claim(queue)
    large = queue.submit(make_spec(mem_bytes=23 * GIB)).id
    assert {large: ("GPU-0",)} == reserve(queue)

    asked = {20: WaitReason.RESERVATION, 21: WaitReason.MEMORY, 23: WaitReason.MEMORY}

    for gib, reason in asked.items():
        job = queue.get(queue.submit(make_spec(mem_bytes=gib * GIB)).id)
        assert job is not None
        assert reason is job.reason, f"{gib} GiB, and 20 are free"
    alone = queue.get(queue.submit(make_spec(placement=Placement(exclusive=True))).id)
    assert alone is not None
    assert WaitReason.MEMORY is alone.reason, "a run is there"


def test_who_waits_for_a_slot_is_told_so(queue: JobQueue) -> None:
    """Not "memory": there is plenty on the card that has as many jobs as it may. What no memory is left for says so."""
    full = make_offer("GPU-1", slots=2, pool="fast")
    serve(queue, make_offer("GPU-0"), full)
    for nonce in ("1" * 12, "2" * 12):
        queue.submit(make_spec(mem_bytes=GIB, pool="fast"))
        assert queue.claim(full, worker="worker-GPU-1", lease_s=300, nonce=nonce)

    def reason(**spec: Any) -> WaitReason | None:
        job = queue.get(queue.submit(make_spec(**spec)).id)
        assert job is not None
        return job.reason

    assert WaitReason.SLOTS is reason(mem_bytes=GIB, pool="fast")
    assert WaitReason.MEMORY is reason(mem_bytes=23 * GIB, pool="fast")
    assert WaitReason.MEMORY is reason(mem_bytes=GIB), "the other card has a slot"
    assert WaitReason.MEMORY is reason(placement=Placement(exclusive=True), pool="fast"), "it waits for the runs"


def test_without_a_reservation_it_is_passed_each_time(queue: JobQueue) -> None:
    """What the test before this one would see if nothing were kept."""
    serve(queue)
    small(queue)
    running = must_claim(queue)
    queue.submit(make_spec(mem_bytes=23 * GIB))
    after = small(queue)
    end(queue, running)
    queue.hold(2)
    assert after == must_claim(queue).job_id


def test_others_start_beside_it_where_it_needs_nothing(queue: JobQueue) -> None:
    """23 of 24 GiB are kept once the runs of today are gone; the last one is for anybody, limit or none."""
    serve(queue)
    small(queue)
    must_claim(queue)
    queue.submit(make_spec(mem_bytes=21 * GIB))
    reserve(queue)
    beside = queue.submit(make_spec(mem_bytes=3 * GIB)).id
    queue.submit(make_spec(mem_bytes=1 * GIB))

    assert beside == must_claim(queue).job_id
    assert claim(queue) is None, "3 GiB are taken beside it: there is no fourth"


def test_others_start_before_it_where_they_end_in_time(queue: JobQueue) -> None:
    """EASY backfill: the run in its way has a limit of an hour, so a job of ten minutes delays nobody."""
    serve(queue)
    queue.submit(make_spec(mem_bytes=10 * GIB, time_limit_s=3600.0))
    must_claim(queue)
    queue.submit(make_spec(mem_bytes=23 * GIB))
    (kept,) = queue.reserve(after_s=0, most=1)
    queue.submit(make_spec(mem_bytes=10 * GIB))
    queue.submit(make_spec(mem_bytes=10 * GIB, time_limit_s=2 * 3600.0))
    short = queue.submit(make_spec(mem_bytes=10 * GIB, time_limit_s=600.0)).id

    assert short == must_claim(queue).job_id
    assert claim(queue) is None
    assert kept.start_ms is not None
    assert abs(kept.start_ms - (queue.now_ms() + 3600_000)) < 60_000


def test_the_start_is_unknown_where_what_must_end_has_no_limit(queue: JobQueue) -> None:
    """Unknown is None; and then no time limit is short enough to go before it."""
    serve(queue)
    queue.submit(make_spec(mem_bytes=10 * GIB))
    must_claim(queue)
    queue.submit(make_spec(mem_bytes=23 * GIB))
    queue.submit(make_spec(mem_bytes=10 * GIB, time_limit_s=60.0))

    (kept,) = queue.reserve(after_s=0, most=1)

    assert kept.start_ms is None
    assert claim(queue) is None


def test_the_device_that_has_room_first_is_kept(queue: JobQueue) -> None:
    """One run ends in five minutes, one in an hour, one nobody knows when."""
    serve(queue, *(make_offer(f"GPU-{i}") for i in range(3)))
    for i, limit_s in enumerate((None, 3600.0, 300.0)):
        queue.submit(make_spec(mem_bytes=20 * GIB, time_limit_s=limit_s))
        must_claim(queue, f"GPU-{i}")
    large = queue.submit(make_spec(mem_bytes=20 * GIB)).id

    assert {large: ("GPU-2",)} == reserve(queue)


def test_a_reservation_moves_only_where_it_is_worth_it(queue: JobQueue) -> None:
    """Else two devices would take turns in running dry."""
    serve(queue, make_offer("GPU-0"), make_offer("GPU-1"))
    for i, limit_s in enumerate((3600.0, None)):
        queue.submit(make_spec(mem_bytes=20 * GIB, time_limit_s=limit_s))
        must_claim(queue, f"GPU-{i}")
    large = queue.submit(make_spec(mem_bytes=20 * GIB)).id
    assert {large: ("GPU-0",)} == reserve(queue)
    assert {large: ("GPU-0",)} == reserve(queue)

    queue.beat(make_offer("GPU-1"), [], lease_s=300)
    free = queue.devices()[1]
    assert 2 == free.jobs[0]
    queue.lose(2, token_of(queue, 2), loss_limit=1, detail="gone")

    assert {large: ("GPU-1",)} == reserve(queue)
    assert large == must_claim(queue, "GPU-1").job_id


def test_a_gang_gets_its_devices_together(queue: JobQueue) -> None:
    """Two devices whose small jobs never end at the same time: neither is filled again."""
    serve(queue, make_offer("GPU-0"), make_offer("GPU-1"))
    for i in range(2):
        small(queue)
        must_claim(queue, f"GPU-{i}")
    gang = queue.submit(make_spec(mem_bytes=22 * GIB, gpus=2)).id
    for _ in range(3):
        small(queue)

    assert {gang: ("GPU-0", "GPU-1")} == reserve(queue)
    assert [None, None] == [claim(queue, "GPU-0"), claim(queue, "GPU-1")]
    for job_id in (1, 2):
        queue.lose(job_id, token_of(queue, job_id), loss_limit=1, detail="gone")

    taken = must_claim(queue, "GPU-0")
    assert (gang, ("GPU-0", "GPU-1")) == (taken.job_id, taken.devices)


def test_one_job_a_host_unless_more_are_allowed(queue: JobQueue) -> None:
    """Not the whole host may run dry for those that wait."""
    serve(queue, *(make_offer(f"GPU-{i}") for i in range(3)))
    for i in range(3):
        small(queue)
        must_claim(queue, f"GPU-{i}")
    first = queue.submit(make_spec(mem_bytes=23 * GIB)).id
    second = queue.submit(make_spec(mem_bytes=22 * GIB)).id

    assert {first} == reserve(queue).keys()
    kept = reserve(queue, most=2)
    assert {first, second} == kept.keys()
    assert kept[first] != kept[second]
    assert {} == reserve(queue, most=0)


def test_one_that_stands_for_long_keeps_no_other_from_its_turn(queue: JobQueue) -> None:
    """A job for a card that was taken for days had the host's only one; who needed the other card waited as long."""
    serve(queue, make_offer("GPU-0"), make_offer("GPU-1"))
    cards = ("GPU-0", "GPU-1")
    for uuid in cards:
        small(queue)
        must_claim(queue, uuid)
    large = {uuid: make_spec(mem_bytes=23 * GIB, placement=Placement(devices=(uuid,))) for uuid in cards}
    first, second = (queue.submit(large[uuid]).id for uuid in cards)

    assert {first: ("GPU-0",)} == reserve(queue)
    store = connect(queue.url)
    store.hincrby(keys.job(first), "rs", -61_000)
    store.close()
    assert {first: ("GPU-0",), second: ("GPU-1",)} == reserve(queue)
    assert {first: ("GPU-0",), second: ("GPU-1",)} == reserve(queue)


# ---- nothing is kept for days behind a run that stays ----------------------------------------------------------------


@pytest.fixture
def store(queue: JobQueue) -> Iterator[redis.Redis]:
    """Return a bare connection to the store."""
    client = connect(queue.url)
    yield client
    client.close()


def wait_on(store: redis.Redis, job_id: int, passed_s: int = 61) -> None:
    """Let so much time have passed since the devices were first kept for a job, behind the same runs."""
    since, _, runs = str(store.hget(keys.job(job_id), "rk")).partition(":")
    store.hset(keys.job(job_id), "rk", f"{int(since) - passed_s * 1000}:{runs}")


def pair_behind_a_run(queue: JobQueue) -> tuple[Claim, int]:
    """Return a run without a time limit on the one card, and who waits for both."""
    serve(queue, make_offer("GPU-0"), make_offer("GPU-1"))
    queue.submit(make_spec(mem_bytes=20 * GIB))
    run = must_claim(queue, "GPU-1")
    return run, queue.submit(make_spec(mem_bytes=23 * GIB, gpus=2)).id


def test_an_empty_card_is_let_go_where_the_other_has_a_run_that_stays(queue: JobQueue, store: redis.Redis) -> None:
    """It was empty for as long as that run lasted, which may be days. Once that has ended, both are kept again."""
    run, pair = pair_behind_a_run(queue)
    others = [small(queue, account=BOB) for _ in range(2)]
    assert {pair: ("GPU-0", "GPU-1")} == {each: tuple(sorted(kept)) for each, kept in reserve(queue).items()}
    assert claim(queue, "GPU-0") is None

    wait_on(store, pair)

    assert {} == reserve(queue)
    assert {} == reserve(queue), "nor at the next tick"
    beside = must_claim(queue, "GPU-0")
    assert others[0] == beside.job_id
    end(queue, run)
    assert [pair] == list(reserve(queue))
    assert claim(queue, "GPU-0") is None
    assert claim(queue, "GPU-1") is None
    end(queue, beside)
    assert pair == must_claim(queue, "GPU-0").job_id


def test_what_nobody_else_would_take_is_kept_on(queue: JobQueue, store: redis.Redis) -> None:
    """It costs nothing, until somebody comes whom it does."""
    _, pair = pair_behind_a_run(queue)
    reserve(queue)
    wait_on(store, pair)
    assert [pair] == list(reserve(queue))

    other = small(queue, account=BOB)

    assert {} == reserve(queue)
    assert other == must_claim(queue, "GPU-0").job_id


def test_each_run_that_ends_lets_the_wait_begin_anew(queue: JobQueue, store: redis.Redis) -> None:
    """As long as something goes on, the job is about to start: nothing is let go."""
    serve(queue)
    runs = []
    for _ in range(2):
        queue.submit(make_spec(mem_bytes=10 * GIB))
        runs.append(must_claim(queue))
    large = queue.submit(make_spec(mem_bytes=23 * GIB)).id
    small(queue)
    reserve(queue)
    wait_on(store, large)

    end(queue, runs[0])

    assert [large] == list(reserve(queue))
    assert claim(queue) is None
    end(queue, runs[1])
    assert large == must_claim(queue).job_id


def test_who_has_waited_for_long_is_kept_room_for_long(queue: JobQueue, store: redis.Redis) -> None:
    """As long as they had waited; more than a day only for who has waited for more than four."""
    _, pair = pair_behind_a_run(queue)
    small(queue, account=BOB)
    for waited_s, kept_s in ((30, 60), (3600, 3600), (3 * 86400, 86400), (8 * 86400, 2 * 86400)):
        store.hset(keys.job(pair), "ts", queue.now_ms() - waited_s * 1000)
        (kept,) = queue.reserve(after_s=0, most=1)
        since_ms = int(str(store.hget(keys.job(pair), "rk")).partition(":")[0])
        assert kept.until_ms is not None
        assert kept_s == pytest.approx((kept.until_ms - since_ms) / 1000, abs=5), waited_s


def test_where_it_is_known_when_the_job_starts_it_is_kept_until_then(queue: JobQueue) -> None:
    """Whoever says how long they take fills it meanwhile."""
    serve(queue)
    queue.submit(make_spec(mem_bytes=20 * GIB, time_limit_s=5 * 86400))
    must_claim(queue)
    large = queue.submit(make_spec(mem_bytes=23 * GIB)).id
    small(queue)

    (kept,) = queue.reserve(after_s=0, most=1)

    assert (large, None) == (kept.job_id, kept.until_ms)


def test_a_run_that_was_waited_for_in_vain_is_another_when_it_is_run_again(queue: JobQueue, store: redis.Redis) -> None:
    """What is noted is noted of that run: the next may be short."""
    run, pair = pair_behind_a_run(queue)
    small(queue, account=BOB)
    reserve(queue)
    wait_on(store, pair)
    assert {} == reserve(queue)
    queue.cancel(queue.live()[-1].id)
    assert queue.giveback(run.job_id, run.token, "a test")

    assert run.job_id == must_claim(queue, "GPU-1").job_id
    assert [pair] == list(reserve(queue))


def test_why_says_that_nothing_is_kept_any_more(queue: JobQueue, store: redis.Redis) -> None:
    """And behind which run; to the others the card is free."""
    run, pair = pair_behind_a_run(queue)
    other = small(queue, account=BOB)
    reserve(queue)
    wait_on(store, pair)
    reserve(queue)

    found = queue.why(pair)

    assert found is not None
    assert found.start is not None
    assert ((run.job_id,), (run.job_id,)) == (found.start.blockers, found.start.in_vain)
    assert found.start.at_ms is None
    its = queue.why(other)
    assert its is not None
    assert [None, None] == [each.kept_for for each in its.devices]


def test_nothing_is_kept_for_what_fits_or_has_not_waited(queue: JobQueue) -> None:
    """A reservation costs others their turn."""
    serve(queue)
    small(queue)
    must_claim(queue)
    queue.submit(make_spec(mem_bytes=20 * GIB))
    assert {} == reserve(queue)
    queue.hold(2)
    queue.submit(make_spec(mem_bytes=23 * GIB))

    assert [] == queue.reserve(after_s=600, most=1)


def test_nothing_is_kept_where_strangers_are_in_the_way(queue: JobQueue) -> None:
    """They end when they like: a device kept empty for that would help nobody."""
    serve(queue, make_offer(foreign_bytes=5 * GIB))
    queue.submit(make_spec(mem_bytes=23 * GIB))

    assert {} == reserve(queue)


@pytest.mark.parametrize("way", ["name", "level", "retries", "lifted"])
def test_what_was_kept_stays_kept_where_the_job_asks_for_the_same(queue: JobQueue, way: str) -> None:
    """A new name, another level: until the next tick small jobs would take the room that it has waited for."""
    serve(queue)
    small(queue)
    must_claim(queue)
    large = queue.submit(make_spec(mem_bytes=23 * GIB)).id
    small(queue)
    assert {large: ("GPU-0",)} == reserve(queue)

    if way == "lifted":
        assert 2 == queue.age(after_s=0)
    else:
        changes = {"name": "other", "level": Level.LOW, "retries": Retries(times=2)}
        queue.edit(large, lambda spec: replace(spec, **{way: changes[way]}), level=way == "level")

    assert claim(queue) is None, "it is still kept"
    client = connect(queue.url)
    assert [] == faults(dump(client))
    client.close()
    assert {large: ("GPU-0",)} == reserve(queue)


@pytest.mark.parametrize("way", ["smaller", "later"])
def test_an_edit_by_which_it_waits_for_something_else_keeps_nothing(queue: JobQueue, way: str) -> None:
    """Another size is another place; and for a time that is to come no device stands empty."""
    serve(queue)
    small(queue)
    must_claim(queue)
    large = queue.submit(make_spec(mem_bytes=23 * GIB)).id
    passed = small(queue)
    assert {large: ("GPU-0",)} == reserve(queue)

    if way == "smaller":
        queue.edit(large, lambda spec: replace(spec, mem_bytes=22 * GIB))
    else:
        begin = Waits(begin_at=datetime(2035, 1, 1, tzinfo=timezone.utc))
        queue.edit(large, lambda spec: replace(spec, waits=begin), begin=True)

    assert passed == must_claim(queue).job_id
    client = connect(queue.url)
    assert [] == faults(dump(client))
    client.close()


@pytest.mark.parametrize("way", ["cancel", "hold", "start"])
def test_whoever_waits_no_more_keeps_no_device(queue: JobQueue, way: str) -> None:
    """Cancelled, held, or started elsewhere: the others go on at once, not at the next tick."""
    serve(queue, make_offer("GPU-0"), make_offer("GPU-1"))
    for i in range(2):
        small(queue)
        must_claim(queue, f"GPU-{i}")
    large = queue.submit(make_spec(mem_bytes=23 * GIB)).id
    follower = small(queue)
    assert {large: ("GPU-0",)} == reserve(queue)
    assert claim(queue, "GPU-0") is None
    client = connect(queue.url)
    listener = client.pubsub(ignore_subscribe_messages=True)
    listener.subscribe(keys.BELL)
    listener.get_message(timeout=5)

    if way == "start":
        queue.lose(2, token_of(queue, 2), loss_limit=1, detail="gone")
        assert large == must_claim(queue, "GPU-1").job_id
    else:
        getattr(queue, way)(large)

    rung = listener.get_message(timeout=5)
    assert rung is not None, "else no worker looks before its next poll"
    assert "room" == rung["data"]
    assert follower == must_claim(queue, "GPU-0").job_id
    listener.close()
    client.close()


def test_a_silent_or_drained_device_is_not_waited_for(queue: JobQueue) -> None:
    """A reservation there would be a promise of nobody."""
    serve(queue, make_offer("GPU-0"), make_offer("GPU-1"))
    for i in range(2):
        small(queue)
        must_claim(queue, f"GPU-{i}")
    large = queue.submit(make_spec(mem_bytes=23 * GIB)).id
    assert {large: ("GPU-0",)} == reserve(queue)

    queue.drain(["GPU-0"], origin=DrainOrigin.PERSON, why="", by="ada")

    assert {large: ("GPU-1",)} == reserve(queue)
    queue.drain(["GPU-1"], origin=DrainOrigin.PERSON, why="", by="ada")
    assert {} == reserve(queue)


def test_every_start_says_how_it_came(queue: JobQueue) -> None:
    """First in the order, past one that does not fit, or on a device that was kept for it."""
    serve(queue)
    for mem_bytes in (10 * GIB, 20 * GIB, 10 * GIB):
        queue.submit(make_spec(mem_bytes=mem_bytes))
    first, third = must_claim(queue), must_claim(queue)
    reserve(queue)
    end(queue, first)
    end(queue, third)
    second = must_claim(queue)

    starts = {event.job_id: event.fields["start"] for event in queue.events("0-0") if event.act.value == "claim"}
    assert {first.job_id: "immediate", third.job_id: "backfill", second.job_id: "reserved"} == starts


def test_a_job_for_another_pool_is_not_passed(queue: JobQueue) -> None:
    """It could never run here: whoever starts here goes before nobody."""
    serve(queue, make_offer("GPU-0"), make_offer("GPU-1", pool="fast"))
    queue.submit(make_spec(pool="fast"))
    queue.submit(make_spec(account=BOB))

    claimed = must_claim(queue, "GPU-0")

    (event,) = [event for event in queue.events("0-0") if event.act.value == "claim"]
    assert (2, "immediate") == (claimed.job_id, event.fields["start"])


def test_what_is_kept_is_what_the_claim_will_ask_for(queue: JobQueue, store_url: str) -> None:
    """A claim goes by whole MiB: beside a job that asked for half of one others could leave it too little."""
    serve(queue)
    small(queue)
    must_claim(queue)
    queue.submit(make_spec(mem_bytes=23 * GIB - MIB // 2))

    reserve(queue)

    client = connect(store_url)
    assert str(23 * GIB) == str(client.hget(keys.KEPT, "GPU-0")).split(":")[1]
    client.close()


def test_for_a_job_that_lost_its_figure_room_is_kept_all_the_same(queue: JobQueue, store_url: str) -> None:
    """A damaged entry: its shape says it, and the room was kept and let go in turns."""
    serve(queue)
    small(queue)
    must_claim(queue)
    large = queue.submit(make_spec(mem_bytes=23 * GIB)).id
    client = connect(store_url)
    client.hdel(keys.job(large), "mem")
    client.close()

    for _ in range(3):
        assert {large: ("GPU-0",)} == reserve(queue)
