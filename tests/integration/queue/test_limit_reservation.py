"""Reservations under a limit: made for jobs that the limit holds, but not for jobs that wait for a device.

The tests set the clock.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
import redis
from factories import ADA, BOB, end, make_device, make_offer, make_spec

from gpuqueue.model.device import DeviceFilter, DeviceKind
from gpuqueue.model.job_spec import Account
from gpuqueue.model.limits import Limits
from gpuqueue.model.placement import Placement
from gpuqueue.queue import keys
from gpuqueue.queue.connect import connect
from gpuqueue.queue.drains import DrainOrigin
from gpuqueue.queue.lease import Claim, Offer
from gpuqueue.queue.requests import new_nonce
from gpuqueue.queue.simulated_clock import SimulatedClock, SimulatedQueue
from gpuqueue.text.units import GIB

EVE = replace(ADA, name="eve", uid=1003)  # ada and bob are the group @lab, eve is not in it
TICK_S = 2
WEEK_S = 7 * 86400.0


class Site:
    """A site of one host with a simulated clock, jobs of given durations and a tick every two seconds."""

    def __init__(self, url: str) -> None:
        self.clock = SimulatedClock(1_790_000_000_000)
        self.queue = SimulatedQueue(url, self.clock)
        self.queue.recovery.open(0)
        self.store: redis.Redis = connect(url)
        self.after_s = 10.0
        self.offers: list[Offer] = []
        self.lasts_s: dict[int, float] = {}
        self.runs: dict[int, tuple[Claim, int]] = {}
        self.started_s: dict[int, float] = {}
        self.reserved: list[set[int]] = []

    def serve(self, *gib: int, limits: str) -> None:
        """Announce devices of these sizes, named dev-0 and so on, and set limits."""
        for number, each in enumerate(gib):
            device = make_device(f"dev-{number}", total_bytes=each * GIB)
            offer = make_offer(device=device)
            self.queue.devices.announce(offer, worker=f"worker-{device.uuid}", pid=1, boot_id="boot")
            self.offers.append(offer)
        self.queue.rules.set_limits(Limits.parse(limits, "", {"lab": ("ada", "bob")}))
        for offer in self.offers:
            self.queue.devices.heartbeat(offer, (), lease_s=WEEK_S)

    def submit(
        self, account: Account, gib: int, lasts_s: float, *devices: int, time_s: float | None = None, **more: object
    ) -> int:
        """Queue a job of *gib* GiB on each device, and run all claims.

        If *devices* names several devices, the job needs all of them.
        """
        wanted = Placement(devices=tuple(f"dev-{each}" for each in devices))
        spec = make_spec(
            account=account,
            mem_bytes=gib * GIB,
            **{"gpus": max(1, len(devices)), "placement": wanted, "time_limit_s": time_s, **more},
        )
        job_id = self.queue.requests.submit(spec).id
        self.lasts_s[job_id] = lasts_s
        self._claim_all()
        return job_id

    def go_on(self, seconds: float) -> None:
        """Advance the clock in ticks."""
        for _ in range(int(seconds / TICK_S)):
            self.clock.now_ms += TICK_S * 1000
            for job_id, (run, ends_ms) in [*self.runs.items()]:
                if self.clock.now_ms >= ends_ms:
                    del self.runs[job_id]
                    self._finish(run)
            for offer in self.offers:
                self.queue.devices.heartbeat(offer, (), lease_s=WEEK_S)
            self.queue.maintenance.reserve(after_s=self.after_s, most=1)
            self.reserved.append({int(text.partition(":")[0]) for text in self.store.hvals(keys.RESERVED_ROOM)})
            self._claim_all()

    def stream(self, seconds: int, *ask: object, **more: object) -> None:
        """Advance the clock and submit such a job every six seconds."""
        for _ in range(0, seconds, 3 * TICK_S):
            self.submit(*ask, **more)
            self.go_on(min(seconds, 3 * TICK_S))

    def wait_s(self, job_id: int) -> float | None:
        """Return how long a job waited for its start in seconds, or None if it still waits."""
        job = self.queue.jobs.get(job_id)
        started = self.started_s.get(job_id)
        return None if started is None else started - job.submitted_at.timestamp()

    def changes_for(self, job_id: int) -> int:
        """Return how often a reservation under a limit began or ended for a job."""
        had = [job_id in reserved for reserved in self.reserved]
        return sum(before != after for before, after in zip([False, *had], had, strict=False))

    def _finish(self, run: Claim) -> None:
        end(self.queue, run)

    def _claim_all(self) -> None:
        for offer in self.offers:
            worker = f"worker-{offer.device.uuid}"
            while run := self.queue.runs.claim(offer, worker=worker, lease_s=WEEK_S, nonce=new_nonce()):
                self.runs[run.job_id] = run, self.clock.now_ms + int(self.lasts_s[run.job_id] * 1000)
                self.started_s[run.job_id] = self.clock.now_ms / 1000

    def close(self) -> None:
        """Close the connections."""
        self.queue.close()
        self.store.close()


@pytest.fixture
def site(store_url: str) -> Iterator[Site]:
    """Return a site without devices."""
    made = Site(store_url)
    yield made
    made.close()


def test_nothing_is_reserved_under_a_limit_for_a_job_whose_device_is_drained(site: Site) -> None:
    # The job could not start before a resume. Regression: its user's next job waited for a minute beside an idle card.
    site.serve(8, 8, limits="*: running_mem=16G")
    site.queue.devices.drain(["dev-1"], origin=DrainOrigin.PERSON, why="", by="eve")
    first = site.submit(ADA, 7, 16, 0, time_s=60)
    gang = site.submit(ADA, 6, 3, 0, 1, time_s=20)
    solo = site.submit(ADA, 6, 3, 0, time_s=20)

    site.go_on(24)

    assert first in site.started_s
    assert site.wait_s(solo) == 16
    assert [] == [reserved for reserved in site.reserved if gang in reserved]


def test_room_is_reserved_again_once_the_device_is_resumed(site: Site) -> None:
    """The reservation under a limit is dropped when the device is drained and comes back when it is resumed."""
    # It protects the job from a stream of small jobs of its user, one of which fits whenever another ends.
    site.serve(16, 8, limits="*: running_mem=16G")
    site.stream(60, ADA, 4, 30, 0, time_s=60)
    gang = site.submit(ADA, 6, 3, 0, 1, time_s=20)
    site.stream(14, ADA, 4, 30, 0, time_s=60)
    assert {gang} == site.reserved[-1]

    site.queue.devices.drain(["dev-1"], origin=DrainOrigin.PERSON, why="", by="eve")
    site.stream(TICK_S, ADA, 4, 30, 0, time_s=60)
    assert set() == site.reserved[-1]
    site.stream(60, ADA, 4, 30, 0, time_s=60)
    assert site.changes_for(gang) == 2

    site.queue.devices.resume(["dev-1"], origins=[DrainOrigin.PERSON])
    site.stream(60, ADA, 4, 30, 0, time_s=60)
    assert gang in site.started_s
    assert site.changes_for(gang) == 4


def test_no_room_is_reserved_for_a_job_whose_device_is_silent(site: Site) -> None:
    """Nothing is reserved under a limit for a job whose device has a silent worker. Its return is unknown."""
    site.serve(8, 8, limits="*: running_mem=16G")
    site.submit(ADA, 7, 16, 0, time_s=60)
    gang = site.submit(ADA, 6, 3, 0, 1, time_s=20)
    solo = site.submit(ADA, 6, 3, 0, time_s=20)
    site.offers = site.offers[:1]

    site.go_on(40)

    assert gang not in site.started_s
    assert site.wait_s(solo) == 16


def test_no_room_is_reserved_for_a_job_that_lacks_another_device(site: Site) -> None:
    """Nothing is reserved under a limit for a job whose device another user occupies for a week."""
    # That user, eve, is under no such limit. Regression: the reservation stayed after the limit was in the way for a
    # moment.
    site.after_s = 20.0
    site.serve(8, 8, 16, limits="@lab: running_mem=20G")
    site.submit(EVE, 7, 150, 1, time_s=WEEK_S)
    gang = site.submit(ADA, 7, 3, 0, 1, time_s=20)
    site.go_on(24)
    site.submit(BOB, 7, 3, 2, time_s=300)
    site.submit(BOB, 5, 3, 2, time_s=300)
    site.go_on(2)
    site.submit(ADA, 6, 5, 2, time_s=120)
    site.go_on(4)
    small = site.submit(BOB, 7, 3, 2, time_s=300)
    endless = site.submit(BOB, 7, 3, 2, time_s=WEEK_S)
    site.go_on(4)

    assert small in site.started_s
    assert endless in site.started_s
    assert [] == [reserved for reserved in site.reserved if gang in reserved]


@pytest.mark.full
def test_a_reservation_ends_if_another_process_takes_the_device(site: Site) -> None:
    """A reservation under a limit is dropped when another user's run takes the device, but not at once."""
    # Most time limits are too long, so the run may end early. A job that ends before that run passes at once, all
    # others after a minute.
    site.serve(8, 8, 8, limits="@lab: running_mem=14G")
    site.submit(ADA, 7, 100, 0, time_s=300)
    large = site.submit(ADA, 8, 5, 1, time_s=20)
    site.go_on(20)
    assert {large} == site.reserved[-1]

    other = site.submit(EVE, 7, 2000, 1, time_s=WEEK_S)
    site.go_on(TICK_S)
    short = site.submit(BOB, 7, 5, 2, time_s=3600)
    endless = [site.submit(BOB, 7, 200, number) for number in (0, 2, 0, 2)]
    site.go_on(1000)

    assert other in site.started_s
    assert site.wait_s(short) == 0
    assert site.wait_s(endless[0]) == 100 - 22, "once the limit has room"
    assert None not in [site.wait_s(each) for each in endless]
    assert site.changes_for(large) == 2
    site.go_on(1100)
    assert large in site.started_s


@pytest.mark.full
def test_room_is_dropped_when_a_run_ends_long_before_its_time(site: Site) -> None:
    # By both time limits the device was free in time. Once the run has ended it is not, and no other job waits for it.
    site.serve(8, 8, limits="@lab: running_mem=14G")
    site.submit(EVE, 7, 1000, 1, time_s=WEEK_S - 60)
    site.submit(ADA, 7, 30, 0, time_s=WEEK_S)
    large = site.submit(ADA, 8, 5, 1, time_s=20)
    later = site.submit(BOB, 7, 5, 0, time_s=WEEK_S)
    site.go_on(60)

    assert site.wait_s(later) == 30
    assert site.changes_for(large) == 4, "and again while that one ran"
    site.go_on(1000)
    assert large in site.started_s


@pytest.mark.full
def test_who_waits_for_a_run_without_a_limit_keeps_no_room_behind_it_twice(site: Site) -> None:
    """A reservation behind a run without a time limit lasts as long as the job had waited, and is not made again."""
    # Other jobs then continue until that run has ended. The same rule holds for reserved devices.
    site.serve(8, 8, 16, limits="@lab: running_mem=20G")
    site.submit(EVE, 7, 4000, 1)
    gang = site.submit(ADA, 7, 3, 0, 1, time_s=20)
    site.submit(BOB, 10, 20, 2)
    site.go_on(14)
    assert {gang} == site.reserved[-1]

    small = [site.submit(BOB, 7, 200, 2) for _ in range(12)]
    site.go_on(2000)

    waits = [site.wait_s(each) for each in small]
    assert all(each is not None for each in waits)
    assert waits[0] == pytest.approx(65, abs=15)
    assert site.changes_for(gang) == 2


@pytest.mark.full
@pytest.mark.parametrize("time_s", [None, 300.0, 3600.0])
def test_who_needs_room_under_a_limit_and_a_busy_device_gets_both(site: Site, time_s: float | None) -> None:
    """A job that needs both a limit's room and a busy device gets both within two minutes, whatever the time limits."""
    # Small jobs of the same user compete for the limit, and jobs of another user compete for the device.
    site.serve(24, limits="ada: running_mem=20G")
    for second in range(30):
        site.submit(EVE, 4, 100 + second, time_s=time_s)
        site.stream(6, ADA, 4, 100 + second, time_s=time_s)
    large = site.submit(ADA, 18, 5, time_s=20)

    for _ in range(15):
        site.submit(EVE, 4, 120, time_s=time_s)
        site.go_on(60)

    assert large in site.started_s


def test_no_room_is_reserved_for_a_whole_card_beyond_the_limit(site: Site) -> None:
    """Nothing is reserved for a job on a whole card if the limit allows only a drained card."""
    # Regression: the other card, which is idle but too large for the limit, led to a reservation.
    site.serve(8, 24, limits="ada: running_mem=16G")
    site.queue.devices.drain(["dev-0"], origin=DrainOrigin.PERSON, why="", by="eve")
    site.submit(ADA, 10, 20, 1, time_s=60)
    alone = site.submit(ADA, 1, 5, placement=Placement(exclusive=True), time_s=60)
    small = site.submit(ADA, 10, 5, 1, time_s=60)

    site.go_on(30)

    assert [] == [reserved for reserved in site.reserved if alone in reserved]
    assert site.wait_s(small) == 20


def test_many_jobs_that_wait_for_a_device_hide_no_large_one(site: Site) -> None:
    # Regression: only the first sixteen jobs were examined, whether the limit held them or not, and the large job was
    # passed for ever.
    site.serve(24, 24, 24, 24, 24, limits="ada: running_gpus=4")
    for device in range(3):
        site.submit(ADA, 24, WEEK_S, device)
    for gib in range(1, 17):
        site.submit(ADA, gib, 3, 0)
    gang = site.submit(ADA, 8, 3, gpus=2)

    site.go_on(30)

    assert {gang} == site.reserved[-1]


def test_many_large_jobs_hide_no_small_one_that_a_reservation_blocks(site: Site) -> None:
    # A reservation stays while no other job could use it. Regression: only sixteen jobs were examined, all of them too
    # large.
    site.serve(24, 24, limits="ada: running_mem=24G")
    site.submit(ADA, 20, WEEK_S, 0)
    for gib in range(20, 3, -1):
        site.submit(ADA, gib, 3, 1, **({"time_s": WEEK_S} if gib == 4 else {}))
    small = site.submit(ADA, 1, 3, 1)

    site.go_on(600)

    assert small in site.started_s


def test_a_run_that_holds_none_of_what_lacks_is_not_waited_for(site: Site) -> None:
    """A reservation under a limit waits only for runs that hold what is lacking."""
    # Regression: with GPUs lacking, it also waited for an older run on the CPU, whose end restarted the wait.
    cpu = make_device("cpu-0", kind=DeviceKind.CPU)
    site.serve(24, 24, limits="ada: running_gpus=2")
    site.queue.devices.announce(make_offer(device=cpu), worker="worker-cpu-0", pid=1, boot_id="boot")
    site.offers.append(make_offer(device=cpu))
    for offer in site.offers:
        site.queue.devices.heartbeat(offer, (), lease_s=WEEK_S)
    on_cpu = site.submit(ADA, 1, WEEK_S, device=DeviceFilter.CPU)
    on_gpu = site.submit(ADA, 8, WEEK_S, 0)
    assert {on_cpu, on_gpu} == set(site.runs)
    gang = site.submit(ADA, 8, 3, 0, 1)

    site.go_on(14)

    (text,) = site.store.hvals(keys.RESERVED_ROOM)
    assert (str(gang), str(on_gpu)) == (text.split(":")[0], text.split(":")[6])
