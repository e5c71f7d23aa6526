"""The patterns of files to keep, and of files to fetch."""

from __future__ import annotations

from typing import Any

import pytest
from factories import make_spec

from gpuqueue.errors import BadRequest
from gpuqueue.model.file_patterns import MOST_CHARACTERS, MOST_PATTERNS, file_patterns, from_directory

SNAPSHOT = f"{'0' * 64}:."


@pytest.mark.parametrize("value", [(), ["results/**", "!*.tmp", "a b", "/é"], ("x" * MOST_CHARACTERS,) * MOST_PATTERNS])
def test_patterns_come_as_a_tuple(value: Any) -> None:
    """Patterns stay as they were typed."""
    assert tuple(value) == file_patterns("keep", value)


@pytest.mark.parametrize(
    ("directory", "pattern", "from_top"),
    [
        (".", "results/**", "/results/**"),
        (".", "./a.txt", "/a.txt"),
        (".", "*.csv", "*.csv"),
        ("src", "results/**", "/src/results/**"),
        ("src", "!results/*.tmp", "!/src/results/*.tmp"),
        ("src/deep", "./a/b", "/src/deep/a/b"),
        ("src", "*.csv", "*.csv"),
        ("src", "results/", "results/"),
        ("src", "/results/**", "/results/**"),
        ("src", "**/out/a", "**/out/a"),
        ("a[1] *", "b/c", "/a\\[1\\]\\ \\*/b/c"),
    ],
)
def test_a_pattern_begins_where_the_job_ran(directory: str, pattern: str, from_top: str) -> None:
    """A person in `src` writes `results/**` for what is below it, as in a `.gitignore` there."""
    assert (from_top,) == from_directory([pattern], directory)


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ("results/**", "must be a list of patterns"),
        (7, "must be a list of patterns"),
        ([7], "it is no text"),
        ([""], "it is empty"),
        (["  "], "it is empty"),
        (["#a"], "it is a comment"),
        (["a\nb"], "it has control characters"),
        (["a\0"], "it has control characters"),
        (["\udcff"], "it has control characters"),
        (["x" * (MOST_CHARACTERS + 1)], "it has more than 1024 characters"),
        (["x"] * (MOST_PATTERNS + 1), "has at most 32 patterns, not 33"),
    ],
)
def test_what_is_no_pattern_is_refused(value: Any, why: str) -> None:
    """The message says which pattern, and why."""
    with pytest.raises(BadRequest, match=why):
        file_patterns("keep", value)


def test_a_job_keeps_files_only_of_a_copy_of_its_code() -> None:
    """A spec with patterns needs a snapshot, and checks its patterns."""
    assert ("*.csv",) == make_spec(snapshot=SNAPSHOT, keep=("*.csv",)).keep
    with pytest.raises(BadRequest, match=r"only a job whose code travels keeps files: add --snapshot DIR"):
        make_spec(keep=("*.csv",))
    with pytest.raises(BadRequest, match="it is empty"):
        make_spec(snapshot=SNAPSHOT, keep=("",))
