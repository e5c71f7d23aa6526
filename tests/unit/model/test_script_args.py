"""Where the arguments of a script begin in a command line."""

from __future__ import annotations

import pytest
from factories import make_spec

from gpuqueue.model.script_args import words_before_args


@pytest.mark.parametrize(
    ("argv", "interpreter", "before"),
    [
        (("sleep", "1"), None, 1),
        (("./run.sh", "python", "1"), None, 1),
        (("python3", "t.py", "python"), "python3", 2),
        (("python", "t.py", "python"), "python", 2),
        (("uv", "run", "--frozen", "python", "t.py", "-x"), "uv run", 5),
        (("uv", "run", "--frozen", "--project=python", "python", "t.py", "python"), "uv run", 6),
    ],
)
def test_the_arguments_of_a_script_begin_after_its_name(
    argv: tuple[str, ...], interpreter: str | None, before: int
) -> None:
    """A retry replaces the arguments, and the estimate compares them, whatever runs the script."""
    assert before == words_before_args(make_spec(argv=argv, interpreter=interpreter))


@pytest.mark.parametrize(
    ("argv", "before"),
    [
        (("/w/run.sh", "/w/run.sh"), 1),
        (("./run.sh", "1"), 1),
        (("/bin/bash", "/w/run.sh", "1"), 2),
        (("/usr/bin/env", "-S bash -e", "/w/run.sh", "1"), 3),
        (("other", "1"), 1),
    ],
)
def test_a_script_may_stand_behind_the_words_of_its_first_line(argv: tuple[str, ...], before: int) -> None:
    """A retry keeps them, and replaces the arguments alone."""
    assert before == words_before_args(make_spec(argv=argv, script="below/run.sh"))
