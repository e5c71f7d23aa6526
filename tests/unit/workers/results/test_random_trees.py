"""Tests of packing with random trees and patterns, beside independent answers."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st
from long_search import search
from results_copy import Copy

from gpuqueue.files.ignore import Ignored, IgnoreRules, rule_of, rules_of
from workers.results.pack import ArchiveRequest, Wanted

PART = st.text(st.sampled_from("ab.-_ é"), min_size=1, max_size=3).filter(lambda each: each.strip(".") != "")
PATH = st.lists(PART, min_size=1, max_size=3).map("/".join)
FILE = st.tuples(st.binary(max_size=600), st.sampled_from(["644", "755"]))
PATTERN = st.lists(st.sampled_from(["a", "b", "*", "**", "/", "!", "?", "[ab]", "é", "."]), min_size=1, max_size=5).map(
    "".join
)


def fitting(tree: dict[str, Any]) -> dict[str, Any]:
    """Return the entries that can be on a disk together: nothing is below a file."""
    return {path: each for path, each in tree.items() if not any(path.startswith(f"{other}/") for other in tree)}


TREE = st.dictionaries(PATH, FILE, max_size=8).map(fitting)


def write(copy: Copy, tree: dict[str, Any]) -> None:
    """Make the files of *tree* the only ones of the copy."""
    shutil.rmtree(copy.tree)
    copy.tree.mkdir()
    for path, (content, mode) in tree.items():
        copy.write(path, content, mode=int(mode, 8))


@search(30)
@given(before=TREE, after=TREE)
@example(before={"a": (b"x", "644")}, after={"a": (b"x", "755")})
def test_a_round_trip_has_exactly_the_changes(before: dict[str, Any], after: dict[str, Any]) -> None:
    """What the archive has is what differs, byte for byte, whatever the trees are."""
    with tempfile.TemporaryDirectory() as place:
        copy = Copy(Path(place) / "run" / "code")
        write(copy, before)
        copy.take()
        write(copy, after)

        found = copy.pack()

    assert sorted((path, each) for path, each in after.items() if before.get(path) != each) == [*found.items()]


@search(30)
@given(TREE, st.lists(PATTERN, min_size=1, max_size=4))
@example({"a/b": (b"", "644")}, ["a/", "!a/b"])
def test_patterns_mean_what_they_mean_in_an_ignore_file(tree: dict[str, Any], patterns: list[str]) -> None:
    """What an ignore file with these patterns would leave out is packed, and nothing else."""
    patterns = [each for each in patterns if each.removeprefix("!").strip("/") and rule_of(each) is not None]
    ignored = Ignored([IgnoreRules(patterns)])
    with tempfile.TemporaryDirectory() as place:
        copy = Copy(Path(place) / "run" / "code")
        write(copy, tree)
        copy.take()

        found = copy.pack(*patterns) if patterns else {}

    expected = sorted(path for path in tree if ignored.by(path, folder=False) is not None)
    assert expected == [*found]
    wanted = Wanted(ArchiveRequest.of(patterns, rules_of(patterns)))
    assert not patterns or expected == sorted(filter(wanted.has, tree))
