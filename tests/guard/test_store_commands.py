"""Commands are what the one thread of the store has to do for a job: with them grows the load of a whole site."""

from __future__ import annotations

from collections import Counter

from factories import make_spec
from guard.one_life import STEPS, OneLife

#: Step -> commands that run in the store for it, those of its script included. No ranges, as they do not vary: one
#: more is one too many, in a script it holds up everybody.
COMMANDS = {"submit": 25, "claim": 35, "started": 8, "finish": 21, "record": 11}
#: Step -> how often its caller waits for the store: each is a round trip, which over a network takes most of the time.
#: The recorder asks for the epoch, reads the outbox and settles.
ROUND_TRIPS = {"submit": 1, "claim": 1, "started": 1, "finish": 1, "record": 3}


def count_each_step(life: OneLife) -> dict[str, Counter[str]]:
    """Take one job through; return what the store counted for each step."""
    return {name: life.counted(step) for name, step in life.steps().items()}


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
