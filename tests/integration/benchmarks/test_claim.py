"""The claim benchmark measures what its cases describe."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from benchmarks.bench_claim import CASES, Case, Line, on_device
from benchmarks.measure.place import Store, private_store
from benchmarks.measure.slow_log import LOGGED_US, claims_in_log, costs_of
from gpuqueue.queue import keys

WAITING, CLAIMS = 300, 40


@pytest.fixture(scope="module")
def store() -> Iterator[Store]:
    """Return a store as the benchmark uses it."""
    with private_store(durable=False) as made:
        yield made


@pytest.fixture(scope="module")
def line(store: Store) -> Line:
    """Return a queue of the described length in that store. Jobs are submitted in batches of a thousand."""
    made = Line(store, CLAIMS)
    made.fill(WAITING)
    assert WAITING == store.client.zcard(keys.LIVE)
    return made


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_each_case_is_what_it_says_from_the_first_claim_to_the_last(store: Store, line: Line, case: Case) -> None:
    """Each case holds for all of its claims.

    Once, the reserved device fitted the job with the reservation: the first claim took it, and the others met no
    reservation.
    """
    with on_device(store, case) as offer:
        waiting = store.client.zcard(keys.LIVE)
        (cost,) = costs_of(store.client, [claims_in_log()], lambda: line.claim(offer, finds=case.finds), CLAIMS)

        assert (case.reserved_s is not None) == bool(store.client.hexists(keys.RESERVED, "GPU-0"))
        assert waiting == store.client.zcard(keys.LIVE)
    assert LOGGED_US < cost.most, "none of the claims is in the server's log"


def test_a_case_that_is_not_what_it_says_ends_the_benchmark(store: Store, line: Line) -> None:
    """A claim that finds no job ends the benchmark, so that a cost of an empty check is not reported as a claim's."""
    nothing = next(case for case in CASES if not case.finds)

    with on_device(store, nothing) as offer, pytest.raises(RuntimeError, match="should have found a job: None"):
        line.claim(offer, finds=True)
