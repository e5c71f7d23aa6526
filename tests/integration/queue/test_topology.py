"""Which devices a gang gets: the best connected devices of one host that fit."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import combinations
from typing import Any

import pytest
import redis
from bounded import until
from factories import make_offer, make_spec, must_claim, submit

from gpuqueue.queue import job_fields as stored
from gpuqueue.queue import keys
from gpuqueue.queue.jobqueue import JobQueue
from gpuqueue.queue.lease import Claim, Later
from gpuqueue.queue.requests import new_nonce
from gpuqueue.queue.wakeup import Subscriber, WakeUp
from gpuqueue.text.units import GIB

LINK, SWITCH, NODE, SYSTEM = 0, 10, 40, 50


def steps(groups: Sequence[tuple[int, int]], a: int, b: int) -> int:
    """Return the distance of two cards in a box.

    Each group is a pair: how many cards it holds, and the distance between cards in the same group.
    """
    return next((far for size, far in groups if a // size == b // size), SYSTEM)


#: Two cards share a bridge of NVLinks, four a NUMA node.
PAIRS = ((2, LINK), (4, NODE))
#: Four cards share a switch.
FOURS = ((4, SWITCH),)
#: Each card has an NVLink to each other.
ALL = ((8, LINK),)
BOXES = {"pairs": PAIRS, "fours": FOURS, "all": ALL, "pairs on switches": ((2, LINK), (4, SWITCH), (8, NODE))}


def serve_box(queue: JobQueue, groups: Sequence[tuple[int, int]], held: dict[int, int], *, cards: int = 8) -> None:
    """Announce a box of cards, each with its distances to the others."""
    for card in range(cards):
        near = {f"GPU-{other}": steps(groups, card, other) for other in range(cards) if other != card}
        offer = make_offer(f"GPU-{card}", external_bytes=held.get(card, 0))
        queue.devices.announce(offer, worker=f"worker-{card}", pid=1, boot_id="b", near=near)
        queue.devices.heartbeat(offer, [], lease_s=300)


def seek(queue: JobQueue, card: int, held: dict[int, int]) -> Claim | Later | None:
    """Seek a job as the worker of a card does."""
    offer = make_offer(f"GPU-{card}", external_bytes=held.get(card, 0))
    return queue.runs.seek(offer, worker=f"worker-{card}", lease_s=300, nonce=new_nonce())


def spread_of(groups: Sequence[tuple[int, int]], cards: Sequence[int]) -> int:
    """Return the sum of the distances over all pairs of a set of cards."""
    return sum(steps(groups, a, b) for a, b in combinations(cards, 2))


def test_where_a_better_pair_is_free_it_is_left_to_that(queue: JobQueue, store: redis.Redis) -> None:
    """A worker with only a distant pair leaves the job to a better pair for a moment."""
    # After that moment it takes what is free, fullest card first.
    held = {1: 24 * GIB, 5: GIB, 4: 24 * GIB}
    serve_box(queue, PAIRS, held)
    job_id = submit(queue, gpus=2)

    with Subscriber(queue.url) as wakeups:
        assert Later(0.2) == seek(queue, 0, held)
        assert WakeUp("work", device="GPU-2") == until(lambda: wakeups.wait(1), what="the wake-up message")
    store.hincrby(keys.job(job_id), stored.LEFT_SINCE_MS, -1000)
    late = seek(queue, 0, held)
    assert isinstance(late, Claim)
    assert ("GPU-0", "GPU-2") == late.devices  # GPU-2 is on the same node

    queue.runs.release_claim(job_id, late.token, "full")
    better = seek(queue, 3, held)
    assert isinstance(better, Claim)
    assert ("GPU-3", "GPU-2") == better.devices


def test_four_stand_on_one_node(queue: JobQueue) -> None:
    """A gang of four gets the cards of one node: the rest of the second pair is nearer than a pair elsewhere."""
    # The devices are listed in the order in which the set grew.
    serve_box(queue, PAIRS, {})
    queue.requests.submit(make_spec(gpus=4))

    assert ("GPU-6", "GPU-7", "GPU-4", "GPU-5") == must_claim(queue, "GPU-6").devices


@pytest.mark.parametrize("box", BOXES)
def test_no_set_of_those_that_are_free_is_better(queue: JobQueue, store: redis.Redis, box: str) -> None:
    """No other set of free cards has a smaller spread, for any size, any occupied cards and any seeking worker."""
    # The result is compared with all possible sets.
    groups, chance = BOXES[box], random.Random(box)  # noqa: S311 - the same cases each time
    for _ in range(12):
        n = chance.randint(2, 5)
        free = sorted(chance.sample(range(8), chance.randint(n, 8)))
        held = {card: 24 * GIB for card in range(8) if card not in free} | dict.fromkeys(free[:1], GIB)
        store.flushall()
        queue.recovery.open(0)
        serve_box(queue, groups, held)
        queue.requests.submit(make_spec(gpus=n))

        found = next(won for card in free if isinstance(won := seek(queue, card, held), Claim))

        cards = [int(uuid.removeprefix("GPU-")) for uuid in found.devices]
        assert set(cards) <= set(free)
        assert min(spread_of(groups, each) for each in combinations(free, n)) == spread_of(groups, cards)


@pytest.mark.parametrize("near", [{}, {"near": None}, {"near": {"GPU-1": "close"}}, {"near": [0]}, None])
def test_an_invalid_report_of_a_worker_is_no_topology(queue: JobQueue, store: redis.Redis, near: Any) -> None:
    """Distances that an older worker omitted or that are malformed count as no topology: the fullest cards go first."""
    serve_box(queue, PAIRS, {2: GIB}, cards=4)
    for card in range(4):
        store.hset(keys.FACTS, f"GPU-{card}", "no JSON" if near is None else str(near).replace("'", '"'))
    queue.requests.submit(make_spec(gpus=2))

    assert ("GPU-0", "GPU-2") == must_claim(queue, "GPU-0").devices
