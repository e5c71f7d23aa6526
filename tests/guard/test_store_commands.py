"""Commands are what the one thread of the store has to do for a job: with them grows the load of a whole site."""

from __future__ import annotations

from collections import Counter

import pytest
from factories import make_spec, must_claim
from guard.one_life import STEPS, OneLife

from gpuqueue.model.job import JobState
from gpuqueue.model.run import Ending
from gpuqueue.queue.lease import Claim
from gpuqueue.text.units import GIB, MIB

#: Step -> commands that run in the store for it, those of its script included. No ranges, as they do not vary: one
#: more is one too many, in a script it holds up everybody.
COMMANDS = {"submit": 25, "claim": 31, "started": 8, "finish": 21, "record": 11}
#: Step -> how often its caller waits for the store: each is a round trip, which over a network takes most of the time.
#: The recorder asks for the epoch, reads the outbox and settles.
ROUND_TRIPS = {"submit": 1, "claim": 1, "started": 1, "finish": 1, "record": 3}
#: Shapes that wait before the one that is claimed -> commands of the claim. So many are too large for what is free, so
#: many fit: of few the store is asked which of these the user has, and in one command; of many the first with room is
#: looked for. What it costs does not grow with them: one command for each shape holds up everybody where people sweep.
TOO_LARGE, SHAPES = 20, {1: 31, 6: 31, 20: 28}


def count_each_step(life: OneLife) -> dict[str, Counter[str]]:
    """Take one job through; return what the store counted for each step."""
    return {name: life.counted(step) for name, step in life.steps().items()}


@pytest.mark.promise("P8")
def test_each_step_asks_the_store_for_no_more_than_agreed(life: OneLife) -> None:
    """Whether a job is the fourth or the fifth makes no difference: it is the step that is counted."""
    first, second = count_each_step(life), count_each_step(life)

    assert first == second
    assert list(STEPS) == list(first)
    assert {step: found.total() for step, found in first.items()} == COMMANDS, first


def test_each_step_waits_for_the_store_as_often_as_agreed(life: OneLife) -> None:
    """What a script does is one wait, however much it is."""
    asked = {name: life.asked(step) for name, step in life.steps().items()}

    assert ROUND_TRIPS == asked


def test_a_claim_costs_the_same_however_many_wait(life: OneLife) -> None:
    """P8 of the promises: flat in the number of waiting jobs. A scan would show here as a thousand commands."""
    found = {}
    for waiting in (10, 1000):
        while life.queue.counts()[0] < waiting:
            life.queue.submit(make_spec())
        found[waiting] = count_each_step(life)["claim"].total()

    assert found[1000] == found[10], found


@pytest.mark.parametrize("fit", SHAPES)
def test_a_claim_costs_the_same_however_many_shapes_wait(life: OneLife, fit: int) -> None:
    """Jobs of one user that ask for differently much: most claims of a busy device pass what it has no room for."""
    sizes = [10 * GIB + number * MIB for number in range(TOO_LARGE)] + [number * MIB for number in range(1, fit + 1)]
    for size in 3 * sizes:
        life.queue.submit(make_spec(mem_bytes=size))
    found, claims = [], list[Claim]()
    for _ in range(2):  # the first notes from where on there is room
        found.append(life.counted(lambda: claims.append(must_claim(life.queue, foreign_bytes=20 * GIB))))
        assert life.queue.finish(
            claims[-1].job_id,
            claims[-1].token,
            state=JobState.SUCCEEDED,
            ending=Ending.from_status(0),
            duration_s=1.0,
            devices=(),
        )

    assert SHAPES[fit] == found[-1].total(), found[-1]
