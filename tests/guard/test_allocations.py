"""Tests that bound the store's memory allocations for a claim, which grow with the tables and strings of a script."""

from __future__ import annotations

import platform
import re
import subprocess
from pathlib import Path

import pytest
from fake_driver.fake_driver import compiler
from guard.bounds import Bound
from guard.counted_store import CLAIMS, life

COMPILER = compiler()
pytestmark = [
    pytest.mark.skipif(COMPILER is None, reason="no C compiler here to build what counts: apt install gcc"),
    pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="what counts is written for glibc"),
]
#: Calls of malloc, calloc and realloc for a claim that finds a job, including the release of its lease. Measured: 276
#: to 277.
CLAIM = Bound(269, 285)


def test_a_claim_asks_for_memory_as_often_as_agreed(tmp_path: Path) -> None:
    """A claim takes no more allocations than agreed.

    They are the difference between a store's life with many claims and one with a single claim, which loads the
    function.
    """
    library = built(tmp_path)
    each = (allocations(CLAIMS, library) - allocations(1, library)) / (CLAIMS - 1)

    CLAIM.hold(each, "allocations for a claim")


def built(place: Path) -> Path:
    """Compile the counting library."""
    source, library = Path(__file__).with_name("count_allocations.c"), place / "count.so"
    flags = ["-shared", "-fPIC", "-O1", "-fno-builtin", "-Wall", "-Wextra", "-Werror"]
    subprocess.run([str(COMPILER), *flags, "-o", str(library), str(source)], check=True)
    return library


def allocations(claims: int, library: Path) -> int:
    """Return the number of a store's allocations from its start to its end, with this number of claims."""
    output = life(claims, environ={"LD_PRELOAD": str(library)})
    found = re.search(r"allocations: (\d+)", output)
    assert found is not None, output
    return int(found[1])
