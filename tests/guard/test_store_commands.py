"""Tests that bound the store commands of each step of a job.

The store has one thread, and its load for a whole site grows with these commands.
"""

from __future__ import annotations

from collections import Counter

import pytest
from factories import make_spec, must_claim
from guard.one_life import STEPS, OneLife

from gpuqueue.model.array import Array
from gpuqueue.model.job import JobState
from gpuqueue.model.run import Ending, Record
from gpuqueue.queue.lease import Claim
from gpuqueue.text.units import GIB, MIB

#: Step -> commands that run in the store for it, including those of its script. They do not vary, so there are no
#: ranges. One more is one too many: while a script runs, all other clients wait. Four of a submit are for the limits
#: that each site has: the limits themselves, the number of all jobs, and the sum of bytes, before and after.
COMMANDS = {"submit": 29, "claim": 31, "started": 8, "finish": 21, "record": 11}
#: Step -> round trips to the store, which take most of the time over a network. The recorder asks for the epoch, reads
#: the outbox and settles.
ROUND_TRIPS = {"submit": 1, "claim": 1, "started": 1, "finish": 1, "record": 3}
#: Number of waiting shapes that fit -> commands of the claim. TOO_LARGE further shapes are too large for the free
#: memory. If few fit, the store is asked in one command which of them the user has; if many fit, it searches for the
#: first that fits. The cost must not grow with their number: one command for each shape would delay all clients of a
#: site that runs sweeps.
TOO_LARGE, SHAPES = 20, {1: 31, 6: 31, 20: 28}


def count_each_step(life: OneLife) -> dict[str, Counter[str]]:
    """Run one job; return what the store counted for each step."""
    return {name: life.counted(step) for name, step in life.steps().items()}


@pytest.mark.promise("P8")
def test_each_step_asks_the_store_for_no_more_than_agreed(life: OneLife) -> None:
    """Each step takes exactly the agreed commands, in every job."""
    first, second = count_each_step(life), count_each_step(life)

    assert first == second
    assert list(STEPS) == list(first)
    assert {step: found.total() for step, found in first.items()} == COMMANDS, first


def test_each_step_waits_for_the_store_as_often_as_agreed(life: OneLife) -> None:
    """Each step takes the agreed number of round trips; a script counts as one."""
    asked = {name: life.asked(step) for name, step in life.steps().items()}

    assert ROUND_TRIPS == asked


def test_a_claim_costs_the_same_however_many_wait(life: OneLife) -> None:
    """The cost of a claim does not depend on the number of waiting jobs (promise P8).

    A scan would show here as a thousand commands.
    """
    found = {}
    for waiting in (10, 1000):
        while life.queue.jobs.counts()[0] < waiting:
            life.queue.requests.submit(make_spec())
        found[waiting] = count_each_step(life)["claim"].total()

    assert found[1000] == found[10], found


def test_the_runs_of_many_jobs_are_read_in_one_step(life: OneLife) -> None:
    """The page asked for each running member of an array by itself, at each poll of each viewer."""
    array = life.queue.requests.submit(make_spec(array=Array.parse("0-2")))
    claims = [must_claim(life.queue) for _ in range(3)]
    for each in claims:
        life.queue.runs.started(each.job_id, each.token, lease_s=300, log_path=f"/{each.job_id}", devices=())
    ids, records = [each.job_id for each in claims], list[Record]()

    counted = life.counted(lambda: records.extend(life.queue.jobs.records([*ids, 999])))

    assert [array.id + 1, array.id + 2, array.id + 3] == sorted(ids)
    assert [life.queue.jobs.record(each) for each in ids] == records
    assert Counter(multi=1, exec=1, hgetall=4, get=4, mget=1) == counted


@pytest.mark.parametrize("fit", SHAPES)
def test_a_claim_costs_the_same_however_many_shapes_wait(life: OneLife, fit: int) -> None:
    """The cost of a claim does not depend on the number of waiting shapes.

    One user's jobs ask for many sizes, and most claims of a busy device skip those that do not fit.
    """
    sizes = [10 * GIB + number * MIB for number in range(TOO_LARGE)] + [number * MIB for number in range(1, fit + 1)]
    for size in 3 * sizes:
        life.queue.requests.submit(make_spec(mem_bytes=size))
    found, claims = [], list[Claim]()
    for _ in range(2):  # the first claim stores from which shape on there is room
        found.append(life.counted(lambda: claims.append(must_claim(life.queue, external_bytes=20 * GIB))))
        assert life.queue.runs.finish(
            claims[-1].job_id,
            claims[-1].token,
            state=JobState.SUCCEEDED,
            ending=Ending.from_status(0),
            duration_s=1.0,
            devices=(),
        )

    assert SHAPES[fit] == found[-1].total(), found[-1]
