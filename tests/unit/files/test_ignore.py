"""Tests of ignore rules and of patterns. tests/integration/files/test_ignore_like_git.py compares them with git."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from gpuqueue.errors import BadRequest
from gpuqueue.files.ignore import Ignored, IgnoreRules, rules_of
from gpuqueue.model.file_patterns import MOST_CHARACTERS, MOST_PATTERNS


def test_the_first_rules_that_know_a_path_decide() -> None:
    """A pattern of the first list takes back in what the second leaves out."""
    own, defaults = IgnoreRules(["!keep.pt", "*.log"]), IgnoreRules(["*.pt"])
    ignored = Ignored([own, defaults])

    assert ignored.by("keep.pt", folder=False) is None
    match = ignored.by("a/w.pt", folder=False)
    assert match is not None
    assert ("*.pt", True) == (match.pattern, match.ignored)
    assert match.rules is defaults
    assert ignored.by("a/x.log", folder=False) is not None
    assert ignored.by("a/x.py", folder=False) is None


def test_nothing_below_an_ignored_directory_comes_back() -> None:
    """As in git, a negated pattern does not help below a directory that is left out."""
    ignored = Ignored([IgnoreRules(["data/", "!data/keep", "runs/*", "!runs/keep"])])

    assert ignored.by("data/keep", folder=False) is not None
    assert ignored.by("runs/keep", folder=False) is None
    assert ignored.by("runs/other", folder=False) is not None
    assert ignored.by("data", folder=False) is None, "the pattern is for directories only"


def test_a_file_of_rules_is_for_its_directory() -> None:
    """Patterns of an ignore file are relative to its directory, and the deepest file decides."""
    rules = IgnoreRules(["*.txt"])
    rules.add("a/b", ["!x.txt", "/y"])
    ignored = Ignored([rules])

    assert ignored.by("x.txt", folder=False) is not None
    assert ignored.by("a/x.txt", folder=False) is not None
    assert ignored.by("a/b/x.txt", folder=False) is None
    assert ignored.by("a/b/c/x.txt", folder=False) is None
    assert ignored.by("a/b/y", folder=False) is not None
    assert ignored.by("a/b/c/y", folder=False) is None


def test_what_is_no_pattern_is_skipped() -> None:
    """Comments, empty lines and malformed patterns leave nothing out, and do not hide the pattern that matched."""
    ignored = Ignored([IgnoreRules(["# *", "", "  ", "!", "/", "[a", "x"])])

    match = ignored.by("x", folder=False)
    assert match is not None
    assert "x" == match.pattern
    assert ignored.by("[a", folder=False) is None


def test_without_patterns_no_library_is_loaded() -> None:
    """A tree without ignore files does not pay for the import of pathspec."""
    program = (
        "import sys; from gpuqueue.files.ignore import *; from gpuqueue.files.take import take_snapshot;"
        "assert Ignored([IgnoreRules()]).by('a', folder=False) is None; assert 'pathspec' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


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
