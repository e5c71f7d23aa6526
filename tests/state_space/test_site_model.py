"""Tests that every order of steps, faults and messages of a tiny site keeps the promises, and that each rule is needed.

docs/internals/model.md describes the model, its limits, and the results of larger runs by hand.
"""

from __future__ import annotations

from typing import Any

import pytest
from state_space.checker import Explored, explore
from state_space.site_model import RULES, Model, Rules, Site

#: Common parameters of the sites at which users act.
ONE_CARD: dict[str, Any] = {"faults": (0, 0, 0), "devices": 1}

#: Parameters of each site, and the number of its states, so that a smaller model is noticed. Of two jobs one takes a
#: whole card and one takes half a card. By default a site grants two claims.
SITES: dict[str, tuple[dict[str, Any], int]] = {
    "two jobs on two cards": ({"faults": (0, 0, 0)}, 11821),
    "two jobs on one card, a worker dies": ({"faults": (1, 0, 0), "devices": 1}, 7082),
    "two jobs on one card, the store loses its data": ({"faults": (0, 0, 1), "devices": 1}, 21098),
    "one job, a worker dies and the store loses its data": ({"faults": (1, 0, 1), "sizes": (2,)}, 22224),
    "one job on one host, a worker dies and the store stops": (
        {"faults": (1, 1, 0), "sizes": (2,), "one_host": True},
        24108,
    ),
    "one job is cancelled, held and asks to run again, a worker dies": (
        {**ONE_CARD, "faults": (1, 0, 0), "sizes": (2,), "acts": frozenset({"cancel", "hold", "requeue"})},
        9379,
    ),
    "one job is cancelled or asks to run again, the store loses its data": (
        {**ONE_CARD, "faults": (0, 0, 1), "sizes": (2,), "acts": frozenset({"cancel", "requeue"})},
        11735,
    ),
    "one job is edited, the store loses its data": (
        {**ONE_CARD, "faults": (0, 0, 1), "sizes": (1,), "acts": frozenset({"edit"})},
        11335,
    ),
    "two jobs are edited and promoted": (
        {**ONE_CARD, "claims": 1, "acts": frozenset({"edit", "age"})},
        12117,
    ),
    "a card is reserved for one of three": (
        {**ONE_CARD, "claims": 1, "sizes": (2, 2, 1), "acts": frozenset({"reserve", "hold"})},
        12373,
    ),
    "a run makes place for another job": ({**ONE_CARD, "acts": frozenset({"preempt"})}, 13304),
    "a card gets an end": ({**ONE_CARD, "lasts": (1, 2), "acts": frozenset({"end"})}, 10433),
}

#: For each removed rule: a site that needs the rule, the promise that breaks, and a step that must be in the trace.
BROKEN: dict[str, tuple[dict[str, Any], str, str]] = {
    "token": ({"faults": (0, 0, 0), "sizes": (2,)}, "attempts of job 0 do not grow", "is given back"),
    "fence": ({"faults": (0, 0, 0), "sizes": (2,)}, "job 0 runs twice", "is taken back"),
    "promises are counted": ({"faults": (0, 0, 0)}, "device 0 holds 3 of 2", "device 0 claims job 1"),
    "grace after an absence": (
        {"faults": (0, 1, 0), "sizes": (2,), "one_host": True},
        "job 0 runs twice",
        "the store is back",
    ),
    "pause after a loss": ({"faults": (0, 0, 1), "sizes": (2,)}, "job 0 runs twice", "the store is rebuilt"),
    "pause while the store is there": (
        {"faults": (0, 1, 1), "sizes": (2,), "one_host": True},
        "job 0 runs twice",
        "the store is back",
    ),
    "no start in the pause": ({"faults": (0, 0, 1), "sizes": (2,)}, "job 0 runs twice", "the store is rebuilt"),
    "nothing newer": ({"faults": (0, 0, 0), "sizes": (2,)}, "job 0 ends by a run that was taken back", "is reported"),
    "what the history knows comes back": (
        {"faults": (0, 0, 1), "sizes": (2,)},
        "job 0 is gone",
        "the store is rebuilt",
    ),
    "an end is final": ({"faults": (0, 0, 0), "sizes": (2,)}, "job 0 had ended", "is reported"),
    "attempts count on": ({**ONE_CARD, "sizes": (2,)}, "attempts of job 0 do not grow", "is taken back"),
    "who is cancelled is not queued again": (
        {**ONE_CARD, "sizes": (2,), "acts": frozenset({"cancel"})},
        "job 0 was cancelled",
        "is given back",
    ),
    "who waits no more leaves the line": (
        {**ONE_CARD, "sizes": (2,), "acts": frozenset({"hold"})},
        "job 0 is active and stands in 1 lines",
        "claims job 0",
    ),
    "a job that does not wait has no reservation": (
        {**ONE_CARD, "acts": frozenset({"reserve"})},
        "what is reserved for job 1 is recorded in two ways",
        "claims job 1",
    ),
    "a reservation is for one job": (
        {**ONE_CARD, "acts": frozenset({"reserve"})},
        "job 0 has what is reserved for job 1",
        "device 0 is reserved for job 1",
    ),
    "one device is reserved for one": (
        {**ONE_CARD, "sizes": (2, 2, 1), "acts": frozenset({"reserve"})},
        "what is reserved for job 1 is recorded in two ways",
        "device 0 is reserved for job 2",
    ),
    "what asked for less is not taken back": (
        {**ONE_CARD, "faults": (0, 0, 1), "sizes": (1,), "acts": frozenset({"edit"})},
        "job 0 was promised less than it holds",
        "the store is rebuilt",
    ),
    "a job is over before the end of its device": (
        {**ONE_CARD, "lasts": (1, 2), "acts": frozenset({"end"})},
        "job 1 starts on device 0, which ends before it is over",
        "device 0 gets an end",
    ),
    "only what waits is edited": ({**ONE_CARD, "acts": frozenset({"edit"})}, "device 0 holds 3 of 2", "is edited to 1"),
}


def explored(**words: Any) -> Explored[Site]:
    """Explore all states of a site."""
    rules = Rules(**words)
    model = Model(rules)
    return explore(rules.first(), model.steps, model.broken)


@pytest.mark.full
@pytest.mark.parametrize("what", SITES)
def test_no_order_of_steps_breaks_a_promise(what: str) -> None:
    """No order of steps breaks a promise.

    No job disappears or runs twice, no card holds more than its memory, an end is final, and tokens grow.
    """
    words, states = SITES[what]

    found = explored(**words)

    assert found.broken is None, "\n".join([found.broken or "", *found.trace])
    assert found.states == states


@pytest.mark.parametrize("rule", BROKEN)
def test_without_a_rule_a_promise_breaks(rule: str) -> None:
    """Without a rule the checker finds a broken promise.

    So the checker would find a gap in the rules, and every rule is needed.
    """
    words, promise, step = BROKEN[rule]

    found = explored(**words, taken_out=frozenset({rule}))

    assert found.broken == promise
    assert any(step in each for each in found.trace), found.trace
    assert explored_with_one_claim_less(words) is None


def explored_with_one_claim_less(words: dict[str, Any]) -> str | None:
    """Return the broken promise at the same site with all rules in force, or None. One claim keeps it quick."""
    return explored(**{**words, "claims": 1}).broken


def test_every_rule_is_taken_out_once() -> None:
    """Every rule has a site that needs it."""
    assert set(RULES) == set(BROKEN)


def test_a_shim_that_outlives_the_lease_breaks_a_promise() -> None:
    """The durations matter: the shim's grace period must be shorter than the lease."""
    found = explored(faults=(0, 0, 0), sizes=(2,), lease=2, grace=3)

    assert found.broken == "job 0 runs twice"


def test_the_checker_finds_the_shortest_way() -> None:
    """The checker finds the shortest trace. With two jugs of three and five litres, four litres take six steps."""

    def steps(jugs: tuple[int, int]) -> list[tuple[str, tuple[int, int]]]:
        small, large = jugs
        over, back = min(small, 5 - large), min(large, 3 - small)
        return [
            ("fill small", (3, large)),
            ("fill large", (small, 5)),
            ("empty small", (0, large)),
            ("empty large", (small, 0)),
            ("pour over", (small - over, large + over)),
            ("pour back", (small + back, large - back)),
        ]

    found = explore((0, 0), steps, lambda jugs: "four litres" if jugs[1] == 4 else None)

    assert (found.broken, len(found.trace), found.last) == ("four litres", 6, (3, 4))
    assert found.trace[:2] == ("fill large", "pour back")
    assert explore((0, 0), steps, lambda _: None).states == 16


def test_a_model_that_is_too_large_proves_nothing() -> None:
    """A model with too many states raises an error, because nothing is proved."""
    with pytest.raises(RuntimeError, match="more than 100 states"):
        explore(0, lambda n: [("on", n + 1), ("twice", 2 * n)], lambda _: None, most=100)
