"""CSV of the history and of statistics: the columns, and text that no spreadsheet takes for a formula."""

from __future__ import annotations

import csv
import io
from datetime import datetime, timedelta, timezone

import pytest
from factories import make_spec

from gpuqueue.cli.output.history_columns import COLUMNS
from gpuqueue.codec.csv_text import cell, csv_of_records, csv_of_statistics
from gpuqueue.codec.wire import to_plain
from gpuqueue.model.job import Job, JobState
from gpuqueue.model.run import VALUES, Record
from gpuqueue.model.statistics import By, Figures, Group, Statistics

NOON = datetime(2026, 11, 21, 12, tzinfo=timezone(timedelta(hours=2)))


def test_the_table_and_the_csv_have_the_same_columns() -> None:
    """A column of one is a column of the other, in the same order."""
    assert [*VALUES] == [*COLUMNS]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, ""),
        (-1.5, "-1.5"),
        ("-1", "'-1"),
        ("=HYPERLINK(1)", "'=HYPERLINK(1)"),
        ("@SUM(A1)", "'@SUM(A1)"),
        ("+1", "'+1"),
        ("a\x1b[2Jb", "a\N{REPLACEMENT CHARACTER}[2Jb"),
        (NOON, "2026-11-21T10:00:00.000+00:00"),
    ],
)
def test_a_cell_is_no_formula(value: object, expected: str) -> None:
    """Numbers may begin with a sign, texts may not. Times are in UTC."""
    assert expected == cell(value)


def test_a_record_is_one_line() -> None:
    """A name with quotes, commas and line ends stays in its cell, and what is unknown is empty."""
    name = '=1,"two"'
    job = Job(id=7, spec=make_spec(name=name), state=JobState.QUEUED, submitted_at=NOON, note="one\ntwo", tags=("a",))
    (row,) = csv.reader(io.StringIO(csv_of_records([Record(job=job)])))
    found = dict(zip(VALUES, row, strict=True))
    assert ("7", f"'{name}", "queued", "", "a") == tuple(
        found[each] for each in ("id", "name", "state", "peak_bytes", "tags")
    )
    assert "one\N{REPLACEMENT CHARACTER}two" == found["note"]


def test_statistics_have_a_line_for_each_group() -> None:
    """Without a group there are only the names of the figures."""
    group = Group(key="ada", label="=ada", figures=Figures(jobs=2, ended=2, succeeded=1, gpu_s=60.0))
    some = Statistics(by=By.USER, since=NOON, until=NOON, groups=(group,), total=group.figures)
    none = Statistics(by=By.USER, since=NOON, until=NOON, groups=(), total=Figures())
    (row,) = csv.DictReader(io.StringIO(csv_of_statistics(some)))
    assert ("'=ada", "60.0", "0.5", "") == tuple(row[each] for each in ("label", "gpu_s", "failure_rate", "used"))
    assert ["key", "label", *to_plain(none.total)] == csv_of_statistics(none).strip().split(",")
