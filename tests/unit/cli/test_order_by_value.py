"""Tests of ``gpuqueue history --array ID --sort NAME``: the order of members by a value of their sweep."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timezone
from types import SimpleNamespace
from typing import Any

import pytest
from factories import make_spec

from gpuqueue.cli.commands.history import by_value
from gpuqueue.model.history_query import HistoryQuery
from gpuqueue.model.job import Job, JobState
from gpuqueue.model.run import Record

NOW = datetime(2026, 11, 21, 12, 0, tzinfo=timezone.utc)


def ordered(values: Mapping[int, str], *, reverse: bool = False) -> list[int]:
    """Return the ids of the jobs 1 to 4 in the order of the *values* that are known of them."""
    records = [Record(job=Job(id=i, spec=make_spec(), state=JobState.FAILED, submitted_at=NOW)) for i in range(1, 5)]
    history: Any = SimpleNamespace(
        records_of=lambda _query: records, params=lambda _records: {i: {"lr": value} for i, value in values.items()}
    )
    client: Any = SimpleNamespace(history=history)
    return [row.record.job.id for row in by_value(client, HistoryQuery(reverse=reverse), "lr")]


@pytest.mark.parametrize(
    ("values", "order", "backwards"),
    [
        ({1: "1", 2: "10", 3: "2", 4: "0"}, [2, 3, 1, 4], [4, 1, 3, 2]),
        ({1: "b", 2: "a", 3: "d", 4: "c"}, [2, 1, 4, 3], [3, 4, 1, 2]),
        ({2: "1", 3: "2"}, [3, 2, 1, 4], [2, 3, 1, 4]),
        ({}, [1, 2, 3, 4], [1, 2, 3, 4]),
    ],
)
def test_unknown_values_are_last(values: Mapping[int, str], order: list[int], backwards: list[int]) -> None:
    """Regression: members whose array the history lacks, as after a loss of it, ended the command with a KeyError."""
    assert order == ordered(values)
    assert backwards == ordered(values, reverse=True)
