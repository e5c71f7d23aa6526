"""Tests that bound the CPU instructions of a claim in the store, independent of the load. valgrind counts them."""

from __future__ import annotations

import platform
import re
import shutil

import pytest
from guard.bounds import Bound
from guard.counted_store import CLAIMS, life

VALGRIND = shutil.which("valgrind")
pytestmark = [
    pytest.mark.skipif(VALGRIND is None, reason="no valgrind here to count instructions: apt install valgrind"),
    pytest.mark.skipif(platform.machine() != "x86_64", reason="the bound is for the instructions of x86_64"),
]
#: Instructions of the store for a claim that finds a job, including the release of its lease. Measured: 528 000 to
#: 546 000, for any Python, with the store of the wheel. The rest of the range is for the C library,
#: which differs between processors. Most of a claim's time is spent on these instructions: fewer make claims cheaper.
CLAIM = Bound(517_000, 556_000)


@pytest.mark.full
def test_a_claim_takes_as_many_instructions_as_agreed() -> None:
    """A claim takes no more instructions than agreed.

    They are the difference between a store's life with many claims and one with a single claim, which loads the
    function.
    """
    each = (instructions(CLAIMS) - instructions(1)) / (CLAIMS - 1)

    CLAIM.hold(each, "instructions for a claim")


def instructions(claims: int) -> int:
    """Return the instructions of a store from its start to its end, with this number of claims."""
    count = [str(VALGRIND), "--tool=cachegrind", "--cache-sim=no", "--cachegrind-out-file=/dev/null"]
    output = life(claims, under=count)
    found = re.search(r"I\s+refs:\s+([\d,]+)", output)
    assert found is not None, output
    return int(found[1].replace(",", ""))
