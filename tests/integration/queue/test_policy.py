"""The order by usage: half-lives, shares, and who may use the highest priority."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
import redis
from factories import BOB, end, make_offer, make_spec, must_claim, serve, start, submit_and_claim

from gpuqueue.clock import SystemClock
from gpuqueue.errors import Refused, Unreadable
from gpuqueue.model.job_spec import Priority
from gpuqueue.queue import job_fields as stored
from gpuqueue.queue import keys
from gpuqueue.queue.jobqueue import JobQueue
from gpuqueue.queue.lease import Alive, Claim
from gpuqueue.settings.settings import Settings
from workers.services.reaper import Reaper

WEEK_S = 7 * 86400.0


def one_run(queue: JobQueue, duration_s: float = 3600.0) -> str:
    """Run the next job to its end and return its user."""
    return ended(queue, must_claim(queue), duration_s)


def ended(queue: JobQueue, run: Claim, duration_s: float) -> str:
    """End a run after *duration_s* and return its user."""
    start(queue, run)
    end(queue, run, duration_s=duration_s)
    return run.spec.account.name


def usage(store: redis.Redis) -> dict[str, float]:
    """Return the usage of each user in the order, in device-seconds at the reference time of the weights."""
    scores = store.zrange(keys.PREFIX + "fair", 0, -1, withscores=True)
    return {user: score / 2**10 for user, score in scores}


def test_shares_converge(queue: JobQueue) -> None:
    """Usage converges to the shares, no matter which user queued first."""
    # With three times Bob's share, Ada gets thirty of forty runs of equal length.
    serve(queue, make_offer(slots=1))
    queue.rules.set_policy(half_life_s=WEEK_S, urgent=None, shares={"ada": 3.0})
    for account in (BOB, make_spec().account):
        for _ in range(40):
            queue.requests.submit(make_spec(account=account))

    runs = Counter(one_run(queue) for _ in range(40))

    assert {"ada": 30, "bob": 10} == runs


def test_a_long_run_is_charged_as_it_goes_on(queue: JobQueue, store: redis.Redis) -> None:
    # Regression: until its end, a run of days counted as if it had cost ten minutes.
    serve(queue, make_offer(slots=1))
    queue.rules.set_policy(half_life_s=WEEK_S, urgent=None, shares={})
    run = submit_and_claim(queue)
    assert usage(store)["ada"] == pytest.approx(600, rel=0.01), "in advance, while nobody knows"

    alive = [Alive(job_id=run.job_id, token=run.token, observed={})]
    store.hincrby(keys.job(run.job_id), stored.CLAIMED_MS, -3600_000)
    queue.devices.heartbeat(make_offer(slots=1), alive, lease_s=300)
    assert usage(store)["ada"] == pytest.approx(600, rel=0.01), "the host was suspended: only its clock went on"

    store.hincrby(keys.job(run.job_id), stored.CLAIMED_FAIR_MS, -3600_000)
    for _ in range(3):
        queue.devices.heartbeat(make_offer(slots=1), alive, lease_s=300)

    assert usage(store)["ada"] == pytest.approx(3600 + 600, rel=0.01), (
        "once for these ten minutes, not with each heartbeat"
    )
    ended(queue, run, 3700.0)
    assert usage(store)["ada"] == pytest.approx(3700, rel=0.01), "the end settles it"


def test_what_is_usual_goes_by_how_long_runs_took_and_not_by_what_was_charged(
    queue: JobQueue, store: redis.Redis
) -> None:
    """The usual duration of a user is computed from run durations, not from charges."""
    # Regression: the mean included the deposit, which a heartbeat doubles and a time limit cuts, so 10 s and 60 s
    # gave 85 s.
    serve(queue, make_offer(slots=1))

    def usual_after(took_s: float, **asked: float) -> int:
        run = submit_and_claim(queue, **asked)
        store.hincrby(keys.job(run.job_id), stored.CLAIMED_MS, -round(took_s * 1000))
        queue.devices.heartbeat(
            make_offer(slots=1), [Alive(job_id=run.job_id, token=run.token, observed={})], lease_s=300
        )
        ended(queue, run, took_s)
        return int(store.hget(keys.PREFIX + "usual", "ada") or 0)

    assert usual_after(10.0) == 10, "of the first run nobody knew anything: ten minutes were only charged"
    assert usual_after(60.0) == 24, "the square root of 10 times 60"
    assert usual_after(6.0, time_limit_s=6.0) == 12, "and of 24 times 6"
    assert usual_after(12 * 3600.0) == 720, "of 12 times 43200"
    assert usual_after(5.0) == 60, "of 720 times 5: also where no more than ten minutes are charged"


def test_a_run_that_no_claim_of_today_began_counts_half_as_well(queue: JobQueue, store: redis.Redis) -> None:
    """A run whose entry lacks the usual duration has the same weight in the mean: the value is read at its end."""
    # Such a run was adopted by a store that had lost it, or claimed by an older version.
    serve(queue, make_offer(slots=1))
    run = submit_and_claim(queue)
    store.hdel(keys.job(run.job_id), stored.USUAL_S)
    store.hset(keys.PREFIX + "usual", "ada", "10")

    ended(queue, run, 40.0)

    assert store.hget(keys.PREFIX + "usual", "ada") == "20"


def test_what_was_used_stays_when_the_half_life_changes(queue: JobQueue, store: redis.Redis) -> None:
    """A change of the half-life keeps the usage and only changes how fast it decays from now on."""
    serve(queue, make_offer(slots=1))
    queue.rules.set_policy(half_life_s=WEEK_S, urgent=None, shares={})
    for account, hours in ((BOB, 3), (make_spec().account, 1)):
        queue.requests.submit(make_spec(account=account))
        one_run(queue, hours * 3600.0)
    before = usage(store)

    assert queue.rules.set_policy(half_life_s=WEEK_S / 7, urgent=None, shares={})

    after = usage(store)
    assert after["bob"] / after["ada"] == pytest.approx(before["bob"] / before["ada"])
    assert after["bob"] == pytest.approx(3 * 3600, rel=0.01), "device-seconds as of now"


def test_a_new_share_applies_at_once_to_earlier_usage(queue: JobQueue, store: redis.Redis) -> None:
    # Setting the same policy again changes nothing.
    serve(queue, make_offer(slots=1))
    for account in (BOB, make_spec().account):
        queue.requests.submit(make_spec(account=account))
        one_run(queue)
    assert queue.rules.set_policy(half_life_s=WEEK_S, urgent=None, shares={"bob": 4.0})
    reported = usage(store)

    assert not queue.rules.set_policy(half_life_s=WEEK_S, urgent=None, shares={"bob": 4.0})
    assert reported["ada"] / reported["bob"] == pytest.approx(4.0, rel=0.01)
    assert reported == usage(store)
    queue.rules.set_policy(half_life_s=WEEK_S, urgent=None, shares={})
    back = usage(store)
    assert back["ada"] / back["bob"] == pytest.approx(1.0, rel=0.01)


def test_a_short_half_life_never_outgrows_a_number(queue: JobQueue, store: redis.Redis) -> None:
    # At a half-life of one hour the weight would pass 2^1023 after six weeks, and the order would be lost.
    serve(queue, make_offer(slots=1))
    queue.rules.set_policy(half_life_s=3600, urgent=None, shares={})
    store.hset(keys.META, "t0", (queue.now_ms() - 60 * 86400 * 1000) / 1000)
    queue.requests.submit(make_spec())
    queue.maintenance.reap(loss_limit=3, lease_s=300, tick_s=10)

    one_run(queue)

    assert usage(store)["ada"] == pytest.approx(3600, rel=0.01)


@pytest.mark.parametrize("leap", [-2000, 2000])
def test_scores_survive_any_jump_of_the_clock(queue: JobQueue, store: redis.Redis, leap: int) -> None:
    # Regression: after so many half-lives that a weight fits no double, each tick failed.
    serve(queue, make_offer(slots=1))
    store.hset(keys.META, "t0", queue.now_ms() / 1000 - leap * WEEK_S)
    store.zadd(keys.PREFIX + "fair", {"cid": "inf", "bob": 100})
    queue.requests.submit(make_spec())
    one_run(queue)

    queue.maintenance.reap(loss_limit=3, lease_s=300, tick_s=10)

    assert {"ada", "bob", "cid"} == set(usage(store))
    queue.requests.submit(make_spec())
    before = usage(store)["ada"]
    one_run(queue)
    assert before + 1000 < usage(store)["ada"] < before + 10000, "what is used from then on counts as ever"
    assert 0 == usage(store)["cid"]


def test_a_damaged_order_of_users_changes_no_usage(queue: JobQueue, store: redis.Redis) -> None:
    # Regression: the weights could not be rescaled, and each try reduced the usage of the first users again.
    serve(queue)
    users = {"ada": 4000.0, "bob": 5000.0, "cid": 6000.0}
    store.hset(keys.META, "t0", queue.now_ms() / 1000 - 100 * WEEK_S)
    store.zadd(keys.PREFIX + "fair", {user: score * 2**100 for user, score in users.items()})
    store.set(keys.PREFIX + "ul:0", "junk")
    for _ in range(3):
        with pytest.raises(Unreadable):
            queue.maintenance.reap(loss_limit=3, lease_s=300, tick_s=10)
    assert {user: score * 2**90 for user, score in users.items()} == usage(store)

    store.delete(keys.PREFIX + "ul:0")
    queue.maintenance.reap(loss_limit=3, lease_s=300, tick_s=10)

    assert users == {user: pytest.approx(score, rel=0.01) for user, score in usage(store).items()}


@pytest.mark.parametrize("begun_s", [0, 12 * WEEK_S, 100 * WEEK_S])
def test_usage_is_whole_numbers_for_years(queue: JobQueue, store: redis.Redis, begun_s: float) -> None:
    # At each claim the store reads the scores of all users from text, and fractions are slow to parse. A store that an
    # older version filled has fractions, and weights with a reference time long ago.
    serve(queue, make_offer(slots=1))
    store.hset(keys.META, "t0", queue.now_ms() / 1000 - begun_s)
    store.zadd(keys.PREFIX + "fair", {"cid": 100.5 * 2 ** (begun_s / WEEK_S)})
    queue.maintenance.reap(loss_limit=3, lease_s=300, tick_s=10)
    queue.requests.submit(make_spec())

    one_run(queue)

    scores = dict(store.zrange(keys.PREFIX + "fair", 0, -1, withscores=True))
    assert all(score == int(score) < 2**52 for score in scores.values())
    assert scores["ada"] > 1000, "of a run of an hour the seconds count"
    if begun_s != 12 * WEEK_S:
        assert usage(store)["cid"] == pytest.approx(100.5, rel=0.01), "what was used by then stays as it is"


def test_urgent_is_for_those_who_may(queue: JobQueue, store: redis.Redis) -> None:
    """Priority urgent is refused for users who may not use it, at submit and edit."""
    # One line names the alternative. The error is a refusal, not a bad request.
    serve(queue)
    queue.rules.set_policy(half_life_s=WEEK_S, urgent=["bob"], shares={})

    queue.requests.submit(make_spec(priority=Priority.URGENT, account=BOB))
    queue.requests.submit(make_spec(priority=Priority.HIGH))
    with pytest.raises(Refused, match="ada may not use the priority urgent here: use --priority high"):
        queue.requests.submit(make_spec(priority=Priority.URGENT))
    with pytest.raises(Refused, match="ada may not use the priority urgent here"):
        queue.requests.edit(2, lambda spec: replace(spec, priority=Priority.URGENT), priority=True)
    assert 2 == store.zcard(keys.LIVE)
    queue.rules.set_policy(half_life_s=WEEK_S, urgent=None, shares={})
    queue.requests.submit(make_spec(priority=Priority.URGENT))


def test_a_worker_sends_the_policy_of_its_site(queue: JobQueue, store: redis.Redis) -> None:
    """A worker writes its site's policy when it starts, and again after the store lost its data."""
    settings = Settings.load(
        {
            "GPUQUEUE_CONFIG": "/dev/null",
            "GPUQUEUE_STATE_DIR": "/s",
            "GPUQUEUE_SHARES": "@vision=4",
            "GPUQUEUE_GROUPS": "vision: ann bob",
            "GPUQUEUE_URGENT": "ann",
            "GPUQUEUE_HALF_LIFE": "1d",
        }
    )
    reaper = Reaper(settings, queue, SystemClock())
    reaper.send_policy()
    assert {"ann": "2000", "bob": "2000"} == store.hgetall(keys.PREFIX + "shares")
    assert ["86400.000", "ann"] == store.hmget(keys.META, "half_life", "urgent")

    store.flushall()
    reaper.send_policy()
    assert {} == store.hgetall(keys.PREFIX + "shares"), "it is not open yet"
    queue.recovery.open(0)
    reaper.send_policy()
    assert {"ann": "2000", "bob": "2000"} == store.hgetall(keys.PREFIX + "shares")
