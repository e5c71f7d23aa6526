"""The output of a job as the page shows it: what a terminal would show, and never anything but text."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).parent / "log_of_the_page.mjs"


def all_shown(*cases: dict[str, Any]) -> list[dict[str, Any]]:
    """Return what the page's terminal shows after the pieces of output of each case."""
    node = shutil.which("node")
    if node is None:
        pytest.skip("no Node.js to run the page's modules with")
    done = subprocess.run([node, SCRIPT], input=json.dumps(cases), capture_output=True, text=True, check=True)
    found: list[dict[str, Any]] = json.loads(done.stdout)
    return found


def shown(*pieces: str, **more: Any) -> dict[str, Any]:
    """Return what it shows in one case."""
    return all_shown({"pieces": pieces, **more})[0]


CASES = (
    (["one\ntwo"], ["one", "two"]),
    (["one\r\ntwo\r\n"], ["one", "two", ""]),
    (["10%\r20%\r100%\ndone"], ["100%", "done"]),
    (["long text\rshort"], ["shorttext"]),
    (["long text\r\x1b[Kshort"], ["short"]),
    (["abc\b\bX"], ["aXc"]),
    (["a: 1\nb: 1\x1b[A\ra: 2\x1b[B\rb: 2"], ["a: 2", "b: 2"]),
    (["\x1b[9999A\x1b[9999Bx\x1b[3Cy"], ["x   y"]),
    (["\x1b]0;title\x07a\x1b]8;;http://x\x1b\\b\x1bPq#0\x1b\\c\x1b(Bd\x1b=e"], ["abcde"]),
    (["a\x1b", "[3", "1mb\x1b]0;ti", "tle\x07c"], ["abc"]),
    (["a\x00b\x07c\x01d\x7fe\x9bf"], ["abc\u2401d\u2421e\ufffdf"]),
    (["<script>alert(1)</script>\u202e&amp;"], ["<script>alert(1)</script>\u202e&amp;"]),
    (["tab\there"], ["tab\there"]),
)


def test_lines_are_those_of_a_terminal() -> None:
    """Bars are drawn over, sequences are obeyed or dropped, also if they come in two pieces; markup is text."""
    found = all_shown(*[{"pieces": pieces} for pieces, _ in CASES])
    assert [lines for _, lines in CASES] == [each["lines"] for each in found]


def test_colours_are_words_of_the_theme() -> None:
    """The sixteen colours have classes, which follow the theme; the others bring their own."""
    found = shown(
        "\x1b[1;31mred\x1b[22m thin\x1b[0m plain \x1b[38;5;196;48;2;1;2;3mrich\x1b[39;49m \x1b[97;44mbright\x1b[m."
    )
    assert [
        ["red", "t-b t-fg1", None, False],
        [" thin", "t-fg1", None, False],
        [" plain ", "", None, False],
        ["rich", "t-bg t-fg", {"--bg": "#010203", "--fg": "#ff0000"}, False],
        [" ", "", None, False],
        ["bright", "t-bg4 t-fg15", None, False],
        [".", "", None, False],
    ] == found["runs"][0]


def test_a_search_marks_matches_across_colours() -> None:
    """Letters match regardless of case, and a match keeps its colours."""
    runs = shown("an \x1b[31mErr\x1b[0mor, error", search="error")["runs"][0]
    assert [("Err", True), ("or", True), (", ", False), ("error", True)] == [(each[0], each[3]) for each in runs[1:]]


def test_memory_is_bounded() -> None:
    """The oldest lines go, very long lines are cut, and a sequence without an end does not wait for ever."""
    found = shown("".join(f"{number}\n" for number in range(250)), most=100)
    assert (100, 151, "151") == (len(found["lines"]), found["dropped"], found["lines"][0])
    assert [20000] == [len(each) for each in shown("x" * 50000, "y" * 50000)["lines"]]
    assert "" == shown("\x1b]" + "x" * 5000)["pending"]
