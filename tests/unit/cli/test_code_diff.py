"""Tests of a difference on a terminal."""

from __future__ import annotations

import click

from gpuqueue.cli.output.code_diff import shown_lines

TEXT = b"""difference to commit abc: 1 modified
M  a.py

diff --git a/a.py b/a.py
--- a/a.py
+++ b/a.py
@@ -1,2 +1,2 @@
 \tsame
-\x1b]0;old\x07
+\xff new
"""


def test_lines_have_the_colours_of_git() -> None:
    """Added lines are green, removed ones red."""
    lines = [*shown_lines(TEXT)]

    assert ["difference to commit abc: 1 modified", "M  a.py", ""] == lines[:3]
    assert click.style("diff --git a/a.py b/a.py", bold=True) == lines[3]
    assert [click.style("--- a/a.py", bold=True), click.style("+++ b/a.py", bold=True)] == lines[4:6]
    assert click.style("@@ -1,2 +1,2 @@", fg="cyan", bold=False) == lines[6]
    assert " " * 8 + "same" == lines[7]
    assert click.style("-\N{REPLACEMENT CHARACTER}]0;old\N{REPLACEMENT CHARACTER}", fg="red", bold=False) == lines[8]
    assert click.style("+\N{REPLACEMENT CHARACTER} new", fg="green", bold=False) == lines[9]
    assert 10 == len(lines)


def test_one_line_is_one_line() -> None:
    """A text without a difference has no more."""
    assert ["no difference to commit abc"] == [*shown_lines(b"no difference to commit abc\n")]
