from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone

import pytest
from factories import ADA, BOB, claim, make_offer, make_spec, must_claim, serve
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpuqueue.cli.output.queue_table import queue_table
from gpuqueue.model.job import Job, JobState
from gpuqueue.model.job_spec import Account
from gpuqueue.model.run import Ending, Listing
from gpuqueue.queue import scripts
from gpuqueue.queue.connect import connect
from gpuqueue.queue.jobqueue import JobQueue
from gpuqueue.queue.lease import Alive, Claim
from gpuqueue.text.units import GIB

CLOCK_KEY = "{gq}:test-clock"
TICK_S, LEASE_S, DAY_S, YEAR_S = 10.0, 60.0, 86400.0, 365 * 86400.0


class Site:
    """A store whose clock the test sets, a worker that sends heartbeats, and a reaper whose own clock is never set."""

    def __init__(self, queue: JobQueue, url: str) -> None:
        self.queue = queue
        self._client = connect(url)
        self._now_s = time.time()
        self._passed_s = 0.0
        self._reaped_s: float | None = None
        self.lost: list[int] = []
        self.set(0)

    def set(self, by_s: float) -> None:
        """Set the store's clock forward or back."""
        self._now_s += by_s
        self._client.set(CLOCK_KEY, f"{self._now_s * 1000:.0f}")

    def start(self, *, account: Account = ADA, lease_s: float = LEASE_S, requeue: bool = True) -> Claim:
        """Submit, claim and start a job."""
        self.queue.requests.submit(make_spec(account=account, requeue=requeue))
        claimed = must_claim(self.queue, lease_s=lease_s)
        assert account == claimed.spec.account
        self.queue.runs.started(claimed.job_id, claimed.token, lease_s=lease_s, log_path="/l", devices=())
        return claimed

    def go_on(self, for_s: float, *alive: Claim, knows_the_time: bool = True) -> None:
        """Advance time: the workers of the runs *alive* send heartbeats, and the reaper runs at every tick."""
        until_s = self._passed_s + for_s
        while self._passed_s < until_s:
            self._passed_s += TICK_S
            self.set(TICK_S)
            if alive:
                named = [Alive(job_id=each.job_id, token=each.token, observed={"GPU-0": 1}) for each in alive]
                assert not self.queue.devices.heartbeat(make_offer(), named, lease_s=LEASE_S).stale
            self.reap(knows_the_time=knows_the_time)

    def reap(self, *, knows_the_time: bool = True) -> None:
        """Run the reaper as a worker does."""
        passed_s = self._passed_s - self._reaped_s if self._reaped_s is not None and knows_the_time else None
        self.lost += self.queue.maintenance.reap(loss_limit=3, lease_s=LEASE_S, tick_s=TICK_S, passed_s=passed_s)
        self._reaped_s = self._passed_s

    def finish(self, run: Claim, *, took_s: float | None = None) -> None:
        """Finish a run as its worker does."""
        done = Ending.from_status(0)
        state = JobState.SUCCEEDED
        self.queue.runs.finish(run.job_id, run.token, state=state, ending=done, duration_s=took_s, devices=())

    def close(self) -> None:
        """Close the connection."""
        self._client.close()


@pytest.fixture
def site(store_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    """Return a site whose scripts read the clock that the test sets and are otherwise unchanged."""
    real = scripts.source

    def source(act: str) -> str:
        text = real(act)
        if act != "core":
            return text
        assert 1 == text.count("local t = call('TIME')")
        return text.replace(
            "local t = call('TIME')", f"local ms = call('GET', '{CLOCK_KEY}') local t = {{ms / 1000, ms % 1000 * 1000}}"
        ).replace("return t[1] * 1000 + math.floor(t[2] / 1000)", "return tonumber(ms)")

    monkeypatch.setattr(scripts, "source", source)
    queue = JobQueue(store_url)
    made = Site(queue, store_url)
    admin = connect(store_url)
    admin.config_set("appendfsync", "no")  # these tests simulate hours, with a few writes per tick
    queue.recovery.open(0)
    serve(queue)
    made.go_on(3 * TICK_S + LEASE_S)  # the first reap of a store grants a lease
    yield made
    admin.config_set("appendfsync", "always")
    admin.close()
    made.close()
    queue.close()


def state_of(site: Site, run: Claim) -> JobState:
    """Return the state of a run's job."""
    job = site.queue.jobs.get(run.job_id)
    return job.state


JUMPS = [DAY_S, -DAY_S, YEAR_S, -YEAR_S, 45.0, -45.0, 5.0, -5.0]


@pytest.mark.parametrize("knows", [True, False], ids=["same reaper", "another reaper"])
@pytest.mark.parametrize("jump_s", JUMPS)
def test_a_clock_that_is_set_loses_no_run_with_heartbeats(site: Site, jump_s: float, *, knows: bool) -> None:
    # Regression: a jump forward expired all leases at once. The clock is also set back, as a time server does.
    run = site.start()
    site.go_on(60, run)

    site.set(jump_s)
    site.reap(knows_the_time=knows)
    site.go_on(2 * LEASE_S, run, knows_the_time=knows)
    site.set(-jump_s)
    site.reap(knows_the_time=knows)
    site.go_on(2 * LEASE_S, run, knows_the_time=knows)

    assert ([], JobState.RUNNING) == (site.lost, state_of(site, run))


@pytest.mark.parametrize("knows", [True, False], ids=["same reaper", "another reaper"])
@pytest.mark.parametrize("jump_s", JUMPS)
def test_a_run_without_heartbeats_is_lost_in_time_all_the_same(site: Site, jump_s: float, *, knows: bool) -> None:
    # Regression: its lease ended a day later because the clock had been a day ahead, and its job waited for that day.
    site.set(max(0.0, jump_s))
    site.reap(knows_the_time=knows)
    run = site.start()
    site.go_on(60, run)
    site.set(min(0.0, jump_s))
    site.reap(knows_the_time=knows)

    site.go_on(2 * LEASE_S + 60, knows_the_time=knows)

    assert ([run.job_id], JobState.QUEUED) == (site.lost, state_of(site, run))


@pytest.mark.parametrize("jump_s", [5 * DAY_S, -5 * DAY_S])
def test_a_run_that_was_left_by_down_leave_jobs_keeps_its_lease_of_ten_days(site: Site, jump_s: float) -> None:
    # Regression: with a clock five days ahead, another worker got the job on day five.
    run = site.start(lease_s=10 * DAY_S)
    site.go_on(TICK_S)
    site.set(jump_s)
    site.reap()
    if jump_s > 0:
        site.set(6 * DAY_S - TICK_S)  # six days without a reaper: the host was off
        site._passed_s += 6 * DAY_S - TICK_S
    site.go_on(2 * LEASE_S)

    assert ([], JobState.RUNNING) == (site.lost, state_of(site, run))


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    jumps=st.lists(
        st.tuples(st.floats(-400 * DAY_S, 400 * DAY_S), st.integers(0, 12), st.booleans()), min_size=1, max_size=5
    )
)
def test_however_the_clock_is_set_the_living_stay_and_the_dead_go(
    site: Site, jumps: list[tuple[float, int, bool]]
) -> None:
    """With any clock settings, a run with heartbeats stays and a run without is lost."""
    # The worker of the second run dies before the clock is set. The store's clock stays above zero.
    site.set(1000 * DAY_S)
    site.reap()
    site.lost.clear()
    living, dead = site.start(requeue=False), site.start(requeue=False)
    for jump_s, ticks, knows in jumps:
        site.set(jump_s if site._now_s + jump_s > 0 else 0)
        site.go_on(ticks * TICK_S, living, knows_the_time=knows)
        assert living.job_id not in site.lost
    site.go_on(2 * LEASE_S + 60, living)

    assert [dead.job_id] == site.lost
    site.finish(living)


def test_usage_recorded_under_a_wrong_clock_does_not_count_for_ever(site: Site) -> None:
    # Regression: a user whose jobs were claimed while the clock was a year ahead waited behind all others for that
    # year.
    site.set(YEAR_S)
    site.reap()
    site.go_on(TICK_S)
    ada = site.start(account=ADA)
    site.go_on(600, ada)
    site.finish(ada, took_s=600.0)
    site.set(-YEAR_S)
    site.reap()
    bob = site.start(account=BOB)
    site.go_on(3600, bob)
    site.finish(bob, took_s=3600.0)

    for account in (BOB, ADA):
        site.queue.requests.submit(make_spec(account=account))
    assert "ada" == must_claim(site.queue).spec.account.name


@pytest.mark.parametrize("jump_s", [DAY_S, -DAY_S])
def test_a_run_is_charged_for_the_time_that_it_took(site: Site, jump_s: float) -> None:
    """A run is charged for its own duration, not for the time by which the clock was set in between."""
    # No user gets that time as a credit either.
    ada = site.start(account=ADA)
    site.set(jump_s)
    site.reap()
    site.go_on(600, ada)
    site.finish(ada, took_s=600.0)
    bob = site.start(account=BOB)
    site.go_on(TICK_S, bob)
    site.finish(bob, took_s=1200.0 if jump_s > 0 else 300.0)

    for account in (ADA, BOB):
        site.queue.requests.submit(make_spec(account=account))
    assert ("ada" if jump_s > 0 else "bob") == must_claim(site.queue).spec.account.name


def test_a_lost_run_under_a_clock_that_was_set_back_gives_its_user_no_credit(site: Site) -> None:
    # Its duration is unknown and would be negative.
    done = site.start(account=ADA)
    site.finish(done, took_s=600.0)
    lost = site.start(account=ADA, requeue=False)
    site.set(-DAY_S)
    site.queue.runs.lose(lost.job_id, lost.token, loss_limit=3, detail="gone")
    bob = site.start(account=BOB)
    site.finish(bob, took_s=300.0)

    for account in (ADA, BOB):
        site.queue.requests.submit(make_spec(account=account))
    assert "bob" == must_claim(site.queue).spec.account.name


def test_a_device_with_a_heartbeat_in_the_future_is_not_used(site: Site) -> None:
    """A neighbour device whose last heartbeat lies in the future is not used for a gang."""
    # Regression: its worker was dead, and for a whole day gangs were allocated memory there.
    serve(site.queue, make_offer("GPU-1"))
    site.set(-DAY_S)
    site.queue.devices.heartbeat(make_offer("GPU-0"), [], lease_s=LEASE_S)
    site.queue.requests.submit(make_spec(gpus=2))
    assert claim(site.queue, "GPU-0") is None

    serve(site.queue, make_offer("GPU-1"))
    assert claim(site.queue, "GPU-0") is not None


def test_a_worker_with_a_heartbeat_in_the_future_counts_as_silent(site: Site) -> None:
    # Otherwise it would count as just seen for a whole day.
    site.set(time.time() + DAY_S - site._now_s)
    site.queue.devices.heartbeat(make_offer(), [], lease_s=LEASE_S)

    assert site.queue.devices.all()[0].seen_s_ago > DAY_S / 2


def test_a_job_of_the_future_waits_for_no_negative_time() -> None:
    """`gpuqueue queue` shows no negative wait for a job whose submission lies in the future."""
    now = datetime.now(timezone.utc)
    job = Job(id=1, spec=make_spec(mem_bytes=GIB), state=JobState.QUEUED, submitted_at=now + timedelta(days=1))

    assert " 0.0s " in queue_table(Listing(at=now, jobs=(job,)), {})


@pytest.mark.parametrize("before_s", [0.0, 20.0])
def test_the_pause_after_a_rebuild_counts_only_the_time_in_which_the_store_is_up(site: Site, before_s: float) -> None:
    # Regression: the store was stopped during its pause and started after it. A run that no worker had offered yet was
    # started twice.
    site._client.flushall()
    site.set(0)
    assert site.queue.recovery.open(0, pause_s=LEASE_S)
    site.go_on(before_s)
    site.queue.requests.submit(make_spec())

    site.set(2 * LEASE_S)  # the store is down for this long
    site._passed_s += 2 * LEASE_S
    serve(site.queue)

    assert claim(site.queue) is None  # before any tick
    site.reap()
    assert claim(site.queue) is None
    site.go_on(LEASE_S - before_s - TICK_S)
    serve(site.queue)
    assert claim(site.queue) is None
    site.go_on(TICK_S)
    serve(site.queue)
    assert must_claim(site.queue)
