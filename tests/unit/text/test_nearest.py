"""What a mistaken name may have been meant to be."""

from __future__ import annotations

import pytest

from gpuqueue.text.nearest import MOST_LISTED, meant

MANY = [f"field_{chr(97 + number)}" for number in range(MOST_LISTED + 1)]


@pytest.mark.parametrize(
    ("name", "known", "hint"),
    [
        ("colour", ["mem_bytes", "color"], "did you mean color?"),
        ("time_limit", ["time", "time_limit_s", "limit"], "did you mean time_limit_s?"),
        ("xyz", ["mem", "gpus"], "there are mem, gpus"),
        ("xyz", MANY, "elsewhere"),
    ],
)
def test_similar_names_come_first(name: str, known: list[str], hint: str) -> None:
    """All names are listed only where they are few."""
    assert hint == meant(name, known, others="elsewhere")
