"""What `why` says about reservations: jobs that have them, and why a job that has waited long enough has none.

The wait is counted in the same way as for reservations.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from factories import claim, make_offer, make_spec, must_claim, serve, submit

from gpuqueue.client.why import Why
from gpuqueue.clock import from_epoch_ms
from gpuqueue.model.dependencies import NO_WAITS, Condition, Dependency, Waits
from gpuqueue.model.job import Job, JobState, WaitReason
from gpuqueue.model.run import Ending
from gpuqueue.queue.simulated_clock import SimulatedClock, SimulatedQueue
from gpuqueue.simulator.ours import EPOCH_MS
from gpuqueue.text.units import GIB
from gpuqueue.words.values import clock
from gpuqueue.words.why.sentences import reserved_for_others, reserved_lines

HOUR_S, DAY_S = 3600.0, 86400.0
#: After this wait, in seconds, devices are reserved for a job.
AFTER_S = 600.0
LARGE = {"mem_bytes": 20 * GIB}


class Site:
    """A site with one device and a simulated clock."""

    #: The setting ``reservations``.
    most = 1

    def __init__(self, store_url: str) -> None:
        self.clock = SimulatedClock(EPOCH_MS)
        self.queue = SimulatedQueue(store_url, self.clock)
        self.queue.recovery.open(0)
        serve(self.queue, lease_s=DAY_S)

    def at(self, moment_s: float) -> None:
        """Set the time, in seconds after the start, with a fresh heartbeat."""
        self.clock.now_ms = EPOCH_MS + round(moment_s * 1000)
        self.queue.devices.heartbeat(make_offer(), (), lease_s=DAY_S)

    def _why(self, job_id: int) -> Why:
        """Return why a large job waits."""
        waiting = Job(
            id=job_id,
            spec=make_spec(**LARGE),
            state=JobState.QUEUED,
            submitted_at=from_epoch_ms(EPOCH_MS),
            reason=WaitReason.MEMORY,
        )
        return Why(
            job=waiting,
            explanation=self.queue.jobs.why(job_id),
            devices={each.device.uuid: each for each in self.queue.devices.all()},
            reserve_after_s=AFTER_S,
            reservations=self.most,
        )

    def reserved_for(self, job_id: int) -> dict[str, list[int]]:
        """Return by host the jobs with reservations that `why` names to this job."""
        holders_of = reserved_for_others(self._why(job_id), from_epoch_ms(self.clock.now_ms))
        return {host: list(holders) for host, holders in holders_of.items()}

    def lines(self, job_id: int) -> list[str]:
        """Return the lines of `why` on reservations."""
        return [*reserved_lines(self._why(job_id), from_epoch_ms(self.clock.now_ms))]


@pytest.fixture
def simulated(store_url: str) -> Iterator[Site]:
    """Return a site whose clock the test sets."""
    made = Site(store_url)
    yield made
    made.queue.close()


@pytest.mark.parametrize("waits", ["nothing", "a time", "a job", "a person"])
def test_the_time_before_a_job_could_start_is_no_waiting(simulated: Site, waits: str) -> None:
    # Regression: `why` blamed the setting `reservations` as soon as a job became ready, an hour after its submission.
    queue = simulated.queue
    parent = submit(queue)
    run = must_claim(queue, lease_s=DAY_S)
    queue.requests.submit(make_spec(time_limit_s=HOUR_S + 2 * AFTER_S, **LARGE))
    must_claim(queue, lease_s=DAY_S)
    holder = submit(queue, **LARGE)
    asked = {
        "nothing": NO_WAITS,
        "a time": Waits(begin_at=from_epoch_ms(EPOCH_MS + round(HOUR_S * 1000))),
        "a job": Waits(after=(Dependency(parent, Condition.ANY),)),
        "a person": Waits(hold=True),
    }[waits]
    late = submit(queue, waits=asked, **LARGE)

    simulated.at(HOUR_S)
    ending = Ending.from_status(0)
    queue.runs.finish(run.job_id, run.token, state=JobState.SUCCEEDED, ending=ending, duration_s=HOUR_S, devices=())
    if waits == "a person":
        queue.jobs.release(late)
    assert claim(queue, lease_s=DAY_S) is None, "it lets in whose time has come"
    simulated.at(HOUR_S + AFTER_S / 2)
    assert [holder] == [each.job_id for each in queue.maintenance.reserve(after_s=AFTER_S, most=1)]

    simulated.at(HOUR_S + AFTER_S - 1)
    assert simulated.reserved_for(late) == ({"nodeA": [holder]} if waits == "nothing" else {})
    simulated.at(HOUR_S + AFTER_S)
    assert simulated.reserved_for(late) == {"nodeA": [holder]}


def test_a_job_that_is_not_likely_to_start_soon_learns_why_nothing_is_reserved(simulated: Site) -> None:
    """A run that has lasted two hours is expected to last two more, so that no device is kept empty for its end."""
    queue = simulated.queue
    queue.requests.submit(make_spec(mem_bytes=6 * GIB))
    must_claim(queue, lease_s=DAY_S)
    simulated.at(2 * HOUR_S)
    late = submit(queue, **LARGE)
    assert [] == simulated.lines(late), "it has not waited for long enough"
    simulated.at(2 * HOUR_S + AFTER_S)

    assert not queue.maintenance.reserve(after_s=AFTER_S, most=1)

    line = "nothing is reserved for this job yet: the runs in its way are not likely to end soon enough"
    assert [line] == simulated.lines(late)


def test_a_reservation_for_another_job_is_a_possible_reason_for_none(simulated: Site) -> None:
    """The host has a reservation and may have a second one, so `why` does not blame the setting."""
    queue, simulated.most = simulated.queue, 2
    queue.requests.submit(make_spec(mem_bytes=6 * GIB))
    must_claim(queue, lease_s=DAY_S)
    holder, late = (submit(queue, **LARGE) for _ in range(2))
    simulated.at(AFTER_S)

    assert [holder] == [each.job_id for each in queue.maintenance.reserve(after_s=AFTER_S, most=simulated.most)]

    reason = "devices are reserved for other jobs, or the runs in its way are not likely to end soon enough"
    assert [f"nothing is reserved for this job yet: {reason}"] == simulated.lines(late)


def test_the_end_of_a_pause_after_reservations_is_named(simulated: Site) -> None:
    """Three quarters of the only device were idle for five minutes, and a tenth may be on average."""
    queue = simulated.queue
    queue.requests.submit(make_spec(mem_bytes=6 * GIB))
    must_claim(queue, lease_s=DAY_S)
    holder, next_one = (submit(queue, **LARGE) for _ in range(2))
    simulated.at(AFTER_S)
    assert [holder] == [each.job_id for each in queue.maintenance.reserve(after_s=AFTER_S, most=1)]
    for passed_s in (0.0, 300.0):
        simulated.at(AFTER_S + passed_s)
        queue.maintenance.reap(loss_limit=3, lease_s=DAY_S, tick_s=DAY_S, passed_s=passed_s)
    queue.jobs.cancel(holder)
    found = queue.maintenance.check_reservations(after_s=AFTER_S, most=1, budget=0.1)
    assert ((), EPOCH_MS + round((AFTER_S + 2250) * 1000)) == (found.made, found.again_ms)

    until = clock(found.again_ms or 0)
    line = f"nothing is reserved for any job before {until}: devices were idle for others (setting reserve_budget)"
    assert [line] == simulated.lines(next_one)
    simulated.at(AFTER_S + 300 + HOUR_S)
    assert "not likely" in simulated.lines(next_one)[0]
