"""A run of all tests tries the same examples each time; a long search tries others."""

from __future__ import annotations

import pytest
from hypothesis.database import DirectoryBasedExampleDatabase
from long_search import LONG_STEPS, VARIABLE, search


def test_every_run_tries_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is left to chance, and nothing of an earlier run is used."""
    monkeypatch.delenv(VARIABLE, raising=False)
    found = search(30)

    assert (found.max_examples, found.derandomize, found.database) == (30, True, None)


def test_a_long_search_tries_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many as were asked for; what failed is kept and tried first the next time."""
    monkeypatch.setenv(VARIABLE, "5000")
    monkeypatch.setenv("CI", "true")
    found = search(30)

    assert (found.max_examples, found.derandomize, found.stateful_step_count) == (5000, False, LONG_STEPS)
    assert isinstance(found.database, DirectoryBasedExampleDatabase)


def test_a_slip_of_the_finger_is_no_short_search() -> None:
    """Who asked for a long one would think that it had been made."""
    with pytest.raises(ValueError, match="5k"):
        search(30, asked="5k")
