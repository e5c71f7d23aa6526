"""Tests that ignore files leave out what git leaves out, with random patterns."""

from __future__ import annotations

import os
import shutil
import subprocess
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from gpuqueue.files.limits import DEFAULT
from gpuqueue.files.take import select_in_directory
from gpuqueue.files.tree import Tree

FILES = ("a", "b.x", "d/a", "d/b.x", "d/d/a", "d/e/a", "d/e/b.x", "e/a", "e/d/b.x", "[a", "!a", "#a", "a b")
PIECES = (
    "a",
    "b",
    "d",
    "e",
    "x",
    ".",
    "*",
    "**",
    "?",
    "/",
    "/",
    "[ab]",
    "[!a]",
    "[a-d]",
    "\\",
    " ",
    "#",
    "b.x",
    "d/",
    "/**/",
)


def usual(pattern: str) -> bool:
    """Return whether *pattern* is one that pathspec reads as git does, as it does all that people write.

    The others have ``**`` beside another character or ``**``, an escaped slash, or stars and slashes alone (``/**/``).
    """
    parts = pattern.removeprefix("!").rstrip().split("/")
    return (
        bool(set(pattern) - set("!*/ "))
        and "\\/" not in pattern
        and all("**" not in part or part == "**" for part in parts)
        and "**/**" not in pattern
    )


PATTERNS = (
    st.tuples(st.sampled_from(["", "", "!", "/"]), st.lists(st.sampled_from(PIECES), min_size=1, max_size=4))
    .map(lambda both: both[0] + "".join(both[1]))
    .filter(usual)
)


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a work tree without commits."""
    root = tmp_path_factory.mktemp("tree")
    for each in FILES:
        (root / each).parent.mkdir(parents=True, exist_ok=True)
        (root / each).write_text("")
    subprocess.run([shutil.which("git") or "git", "init", "-q", str(root)], check=True)
    return root


def by_git(root: Path) -> set[str]:
    """Return the files that git takes."""
    words = ("-c", f"core.excludesFile={os.devnull}", "ls-files", "-z", "--others", "--exclude-standard")
    done = subprocess.run([shutil.which("git") or "git", *words], cwd=root, capture_output=True, text=True, check=True)
    return set(done.stdout.split("\0")) - {"", ".gitignore", "d/.gitignore"}


def by_us(root: Path) -> set[str]:
    """Return the files that we take without git."""
    with closing(Tree(root)) as opened:
        selected = select_in_directory(opened, DEFAULT)
    return {path for path, _ in selected.found} - {".gitignore", "d/.gitignore"}


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(PATTERNS, max_size=4), st.lists(PATTERNS, max_size=3))
@example(["d/**", "!d/a"], [])
@example(["/*", "!/d", "/d/*", "!/d/e"], [])
@example(["d/*", "!d/e/"], ["a"])
@example(["a "], [])
@example(["\\!a", "\\#a", "a\\ b", "\\[a"], [])
def test_we_leave_out_what_git_leaves_out(tree: Path, top: list[str], below: list[str]) -> None:
    """The patterns of two ignore files have the same effect as in git."""
    (tree / ".gitignore").write_text("\n".join([*top, ""]))
    (tree / "d/.gitignore").write_text("\n".join([*below, ""]))

    assert by_git(tree) == by_us(tree)
