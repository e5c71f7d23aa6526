"""Tests of the references to jobs: names, parts of arrays, and ranges of ids."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuqueue.errors import BadRequest
from gpuqueue.model.array import Indexes
from gpuqueue.model.job_ref import JobName, JobSpan, meant

ids = st.integers(1, 2**53)


@given(one=ids, other=ids)
def test_a_range_is_read_as_it_is_written(one: int, other: int) -> None:
    """A range includes both ends, the lower id first."""
    first, last = sorted((one, other))

    span = meant(f"{first}-{last}")

    assert JobSpan(first, last) == span
    assert f"{first}-{last}" == str(span)


@given(job_id=ids, first=st.integers(0, 999), count=st.integers(1, 999))
def test_a_part_of_an_array_is_no_range_of_ids(job_id: int, first: int, count: int) -> None:
    """The numbers after an underscore are always indexes."""
    text = f"{job_id}_{first}-{first + count}"

    name = meant(text)

    assert isinstance(name, JobName)
    assert (job_id, text) == (name.id, str(name))
    assert isinstance(meant(str(job_id)), JobName)


@given(text=st.text(st.sampled_from("0123456789-_.,x "), max_size=12))
def test_whatever_is_typed_is_a_name_or_refused(text: str) -> None:
    """Any text is a reference or `BadRequest`. A reference's text parses to the same reference."""
    with contextlib.suppress(BadRequest):
        name = meant(text)
        assert meant(str(name)) == name


@pytest.mark.parametrize("text", ["19-12", "1-9007199254740993"])
def test_a_range_that_holds_nothing_says_how_to_write_one(text: str) -> None:
    """An empty range is a usage error with an example. It is not "there is no job"."""
    with pytest.raises(BadRequest, match="write the lower id first, such as 12-19"):
        meant(text)


@given(starts=st.lists(st.tuples(st.integers(1, 50), st.integers(1, 40), st.integers(1, 5)), min_size=1, max_size=300))
def test_the_names_of_parts_mean_each_member_once(starts: list[tuple[int, int, int]]) -> None:
    """The names of parts contain each member once.

    They have no step and at most 4096 characters, because edit_members.lua accepts no more.
    """
    ranges, at = [], 0
    for gap, count, step in starts:
        ranges.append(range(at + gap, at + gap + count * step, step))
        at += gap + count * step
    wanted = Indexes(tuple(ranges))

    names = list(JobName.of_parts(7, wanted))

    assert list(wanted) == [index for name in names for index in name.part or ()]
    assert all(JobName.parse(str(name)) == name and ":" not in str(name) for name in names)
    assert all(len(str(name)) <= 4096 for name in names)
