from __future__ import annotations

import pytest

from gpuqueue.client.progress import usual_of


@pytest.mark.parametrize(
    ("elapsed_s", "median_s", "p90_s", "runs"),
    [(0, 5, 9, 10), (5, 7, 10, 6), (9.5, 10, 10, 1)],
)
def test_what_is_usual_is_that_of_runs_that_lasted_as_long(
    elapsed_s: float, median_s: float, p90_s: float, runs: int
) -> None:
    """The usual duration comes from runs that lasted at least as long.

    A run that has lasted nine hours is not comparable with runs of one hour.
    """
    found = usual_of([10, 1, 9, 2, 8, 3, 7, 4, 6, 5], elapsed_s=elapsed_s)

    assert found is not None
    assert (median_s, p90_s, runs) == (found.median_s, found.p90_s, found.runs)


def test_nothing_is_usual_where_none_lasted_as_long() -> None:
    """Without a run that lasted as long the usual duration is None."""
    assert usual_of([], elapsed_s=0) is None
    assert usual_of([1.0], elapsed_s=2.0) is None
