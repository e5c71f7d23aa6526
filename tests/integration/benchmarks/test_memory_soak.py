"""A short version of benchmarks/soak_memory.py, which makes ten thousand claims."""

from __future__ import annotations

from pathlib import Path

import pytest
from fake_driver.fake_driver import compiler
from soak.jobs import Kind
from soak.soak import Soak

CLAIMS = 300


@pytest.mark.full
@pytest.mark.timeout(300)
@pytest.mark.skipif(compiler() is None, reason="no C compiler to build the fake driver with")
def test_no_card_is_ever_allocated_twice(tmp_path: Path, store_url: str) -> None:
    """No card's memory is allocated twice while two workers compete for each of four cards.

    External processes change their memory, jobs exceed their requests, and the fake driver knows the real use. No claim
    allocates more than there is, no honest job is refused memory, every job that exceeds its request is ended, the
    history has every end, and no recorded peak is above the real use.
    """
    soak = Soak(tmp_path, store_url, claims=CLAIMS, seed=11, hold_ms=(700, 900))
    try:
        outcome = soak.run()
    finally:
        soak.close()

    assert [] == outcome.violations()
    # The soak exercised every case:
    assert CLAIMS <= outcome.promises.claims
    assert min(outcome.kinds[kind.value] for kind in Kind) >= 2, "every kind of job"
    # The rarer moves depend on how fast the machine is: a slow one makes few moves for as many claims.
    assert min(outcome.moves[move] for move in ("come", "grow")) >= 2, "moves of external processes"
    assert max(outcome.promises.shares) > 0.9, "full cards"
    assert outcome.peaks.accounted > CLAIMS / 5
