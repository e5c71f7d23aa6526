"""Tests that a usual test run always tries the same examples, and that a long search tries others."""

from __future__ import annotations

import pytest
from hypothesis.database import DirectoryBasedExampleDatabase
from long_search import LONG_STEPS, VARIABLE, search


def test_every_run_tries_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """A usual run is deterministic and uses nothing of an earlier run."""
    monkeypatch.delenv(VARIABLE, raising=False)
    found = search(30)

    assert (found.max_examples, found.derandomize, found.database) == (30, True, None)


def test_a_long_search_tries_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """A long search tries the requested number of examples.

    A failing example is stored and tried first the next time.
    """
    monkeypatch.setenv(VARIABLE, "5000")
    monkeypatch.setenv("CI", "true")
    found = search(30)

    assert (found.max_examples, found.derandomize, found.stateful_step_count) == (5000, False, LONG_STEPS)
    assert isinstance(found.database, DirectoryBasedExampleDatabase)


def test_a_slip_of_the_finger_is_no_short_search() -> None:
    """An invalid number is an error. Otherwise the user would think that the long search had been done."""
    with pytest.raises(ValueError, match="5k"):
        search(30, asked="5k")
