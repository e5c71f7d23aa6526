"""Tests of the patterns that name results."""

from __future__ import annotations

import re

import pytest

from gpuqueue.errors import BadRequest
from gpuqueue.model.file_patterns import MOST_CHARACTERS, MOST_PATTERNS
from gpuqueue.snapshot.patterns import rules_of


def test_patterns_become_expressions_for_a_process_without_pathspec() -> None:
    """Each pattern is a regular expression, in the order given, and says whether it takes or refuses."""
    rules = rules_of(["out/*.pt", "!out/tmp.pt", "logs/"])

    assert [True, False, True] == [take for _, take in rules]
    matched = [
        [path for path in ("out/a.pt", "out/b/a.pt", "out/tmp.pt", "logs", "logs/", "x/logs/") if found.match(path)]
        for found in (re.compile(text, re.DOTALL) for text, _ in rules)
    ]
    assert [["out/a.pt", "out/tmp.pt"], ["out/tmp.pt"], ["logs/", "x/logs/"]] == matched


@pytest.mark.parametrize("pattern", ["/", "!", "!/"])
def test_a_pattern_without_effect_is_refused(pattern: str) -> None:
    """An ignore file may have such lines. Here it is a mistake, and the message says so."""
    with pytest.raises(BadRequest, match="matches nothing: write it as in"):
        rules_of(["a", pattern])


def test_patterns_are_bounded() -> None:
    """So that their expressions are small enough to be passed on."""
    rules_of(["a" * MOST_CHARACTERS] * MOST_PATTERNS)

    with pytest.raises(BadRequest, match="more than 1024 characters"):
        rules_of(["a" * (MOST_CHARACTERS + 1)])
    with pytest.raises(BadRequest, match="at most 32 patterns, not 33"):
        rules_of(["a"] * (MOST_PATTERNS + 1))
