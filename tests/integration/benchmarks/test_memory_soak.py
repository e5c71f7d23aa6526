"""A short soak of what benchmarks/soak_memory.py does for ten thousand claims."""

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
def test_no_card_is_ever_promised_twice(tmp_path: Path, store_url: str) -> None:
    """Two workers race on each of four cards; strangers move, jobs lie, and the fake driver keeps the truth.

    No claim promises more than there is, no honest job is refused memory, every liar is ended, every end is in the
    book, and no peak there is above the truth.
    """
    soak = Soak(tmp_path, store_url, claims=CLAIMS, seed=11, hold_ms=(700, 900))
    try:
        outcome = soak.run()
    finally:
        soak.close()

    assert [] == outcome.violations()
    # That there was something to go wrong:
    assert CLAIMS <= outcome.promises.claims
    assert min(outcome.kinds[kind.value] for kind in Kind) >= 2, "every kind of job"
    assert min(outcome.moves[move] for move in ("come", "grow", "shrink", "go")) >= 2, "every move of a stranger"
    assert max(outcome.promises.shares) > 0.9, "full cards"
    assert outcome.peaks.accounted > CLAIMS / 5
