"""Who goes first by usage: half-lives, shares, and who may use the highest level."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

import pytest
import redis
from factories import BOB, make_offer, make_spec, must_claim, serve

from gpuqueue.clock import SystemClock
from gpuqueue.errors import Refused
from gpuqueue.job import Account, JobState, Level
from gpuqueue.queue import keys
from gpuqueue.queue.connect import connect
from gpuqueue.queue.jobqueue import JobQueue
from gpuqueue.run import Ending
from gpuqueue.settings import Settings
from workers.reaper import Reaper

WEEK_S = 7 * 86400.0


@pytest.fixture
def store(queue: JobQueue) -> Iterator[redis.Redis]:
    """Return a bare connection to the store."""
    client = connect(queue.url)
    yield client
    client.close()


def one_run(queue: JobQueue, duration_s: float = 3600.0) -> str:
    """Let the next job run to its end; return whose it was."""
    run = must_claim(queue)
    queue.started(run.job_id, run.token, lease_s=300, log_path="/l", devices=())
    ending = Ending.from_status(0)
    queue.finish(run.job_id, run.token, state=JobState.SUCCEEDED, ending=ending, duration_s=duration_s, devices=())
    return run.spec.account.name


def usage(store: redis.Redis) -> dict[str, float]:
    """Return everybody's usage as the order sees it, in device-seconds as of when weights count from."""
    return dict(store.zrange(keys.PREFIX + "fair", 0, -1, withscores=True))


def test_shares_converge(queue: JobQueue) -> None:
    """Ada has three times Bob's share: of forty runs of one length she gets thirty, whoever queued first."""
    serve(queue, make_offer(slots=1))
    queue.set_policy(half_life_s=WEEK_S, urgent=None, shares={"ada": 3.0})
    for account in (BOB, make_spec().account):
        for _ in range(40):
            queue.submit(make_spec(account=account))

    runs = Counter(one_run(queue) for _ in range(40))

    assert {"ada": 30, "bob": 10} == runs


def test_who_queued_five_hundred_delays_nobody_beyond_their_share(queue: JobQueue) -> None:
    """Four users, one of whom came first with a whole sweep: of the first hundred starts each has a quarter."""
    serve(queue, make_offer(slots=1))
    for name, count in (("alice", 500), ("bea", 60), ("cleo", 60), ("dora", 60)):
        for _ in range(count):
            queue.submit(make_spec(account=Account(name=name, uid=1, host="h")))

    runs = Counter(one_run(queue) for _ in range(100))

    assert all(abs(count - 25) <= 1 for count in runs.values()), runs


def test_what_was_used_stays_when_the_half_life_changes(queue: JobQueue, store: redis.Redis) -> None:
    """Only how fast it fades from now on is another matter."""
    serve(queue, make_offer(slots=1))
    queue.set_policy(half_life_s=WEEK_S, urgent=None, shares={})
    for account, hours in ((BOB, 3), (make_spec().account, 1)):
        queue.submit(make_spec(account=account))
        one_run(queue, hours * 3600.0)
    before = usage(store)

    assert queue.set_policy(half_life_s=WEEK_S / 7, urgent=None, shares={})

    after = usage(store)
    assert after["bob"] / after["ada"] == pytest.approx(before["bob"] / before["ada"])
    assert after["bob"] == pytest.approx(3 * 3600, rel=0.01), "device-seconds as of now"


def test_a_new_share_holds_for_what_was_used_before(queue: JobQueue, store: redis.Redis) -> None:
    """Who is given more is served sooner at once; the same policy again changes nothing."""
    serve(queue, make_offer(slots=1))
    for account in (BOB, make_spec().account):
        queue.submit(make_spec(account=account))
        one_run(queue)
    assert queue.set_policy(half_life_s=WEEK_S, urgent=None, shares={"bob": 4.0})
    told = usage(store)

    assert not queue.set_policy(half_life_s=WEEK_S, urgent=None, shares={"bob": 4.0})
    assert told["ada"] / told["bob"] == pytest.approx(4.0, rel=0.01)
    assert told == usage(store)
    queue.set_policy(half_life_s=WEEK_S, urgent=None, shares={})
    back = usage(store)
    assert back["ada"] / back["bob"] == pytest.approx(1.0, rel=0.01)


def test_a_short_half_life_never_outgrows_a_number(queue: JobQueue, store: redis.Redis) -> None:
    """At an hour's half-life a weight would pass 2^1023 after six weeks, and with it all order would be gone."""
    serve(queue, make_offer(slots=1))
    queue.set_policy(half_life_s=3600, urgent=None, shares={})
    store.hset(keys.META, "t0", (queue.now_ms() - 60 * 86400 * 1000) / 1000)
    queue.submit(make_spec())
    queue.reap(loss_limit=3, lease_s=300, tick_s=10)

    one_run(queue)

    assert usage(store)["ada"] == pytest.approx(3600, rel=0.01)


def test_urgent_is_for_those_who_may(queue: JobQueue, store: redis.Redis) -> None:
    """Refused at submit and edit, in one line that says what else there is: that is no mistake in the words."""
    serve(queue)
    queue.set_policy(half_life_s=WEEK_S, urgent=["bob"], shares={})

    queue.submit(make_spec(level=Level.URGENT, account=BOB))
    queue.submit(make_spec(level=Level.HIGH))
    with pytest.raises(Refused, match="ada may not use the level urgent here: use --priority high"):
        queue.submit(make_spec(level=Level.URGENT))
    with pytest.raises(Refused, match="ada may not use the level urgent here"):
        queue.edit(2, lambda spec: replace(spec, level=Level.URGENT), level=True)
    assert 2 == store.zcard(keys.LIVE)
    queue.set_policy(half_life_s=WEEK_S, urgent=None, shares={})
    queue.submit(make_spec(level=Level.URGENT))


def test_a_worker_tells_its_sites_policy(queue: JobQueue, store: redis.Redis) -> None:
    """When it starts, and again where the store lost its data."""
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
    reaper.keep_to_policy()
    assert {"ann": "2000", "bob": "2000"} == store.hgetall(keys.PREFIX + "shares")
    assert ["86400.000", "ann"] == store.hmget(keys.META, "half_life", "urgent")

    store.flushall()
    reaper.keep_to_policy()
    assert {} == store.hgetall(keys.PREFIX + "shares"), "it is not open yet"
    queue.open(0)
    reaper.keep_to_policy()
    assert {"ann": "2000", "bob": "2000"} == store.hgetall(keys.PREFIX + "shares")
