from __future__ import annotations

import json

import pytest

from gpuqueue.model.finding import (
    Finding,
    Findings,
    Grade,
    examined,
    from_line,
    note,
    ok,
    problem,
    to_plain,
    unknown,
    warning,
)


def high_tide(facts: int) -> Findings:
    """A check that finds one thing."""
    return warning("the water is high", "move up") if facts else ok("dry")


def boats(facts: int) -> Findings:
    """A check that finds several things."""
    return (note(f"boat {number}", about=str(number)) for number in range(facts))


def sinks(facts: int) -> Findings:
    """A check with a bug, after it has found something."""
    yield ok("so far")
    yield ok(str(1 // (facts - facts)))


def test_a_finding_bears_the_name_of_its_check() -> None:
    """One can look it up in the documentation, and a program can tell it from the others."""
    found = list(examined("harbour", 2, (high_tide, boats)))

    assert [("harbour", "high tide", ""), ("harbour", "boats", "0"), ("harbour", "boats", "1")] == [
        (each.room, each.check, each.about) for each in found
    ]


def test_a_check_with_a_bug_is_unknown_and_harms_no_other() -> None:
    """Who examines a broken site must not break."""
    broken, after = examined("harbour", 0, (sinks, high_tide))

    assert (Grade.UNKNOWN, Grade.OK) == (broken.grade, after.grade)
    assert "ZeroDivisionError" in broken.seen


@pytest.mark.parametrize("grade", [Grade.WARNING, Grade.PROBLEM])
def test_what_is_bad_says_what_to_do(grade: Grade) -> None:
    """A finding without a remedy leaves its reader where they were."""
    with pytest.raises(ValueError, match="nobody says what to do"):
        Finding(grade=grade, seen="it burns")


@pytest.mark.parametrize("finding", [ok("a"), note("b", "c"), unknown("d"), problem("e", "f", about="g", fixable=True)])
def test_a_finding_travels_as_a_line(finding: Finding) -> None:
    """The machines' side tells its findings to ours in this form."""
    assert finding == from_line(json.dumps(to_plain(finding)))


@pytest.mark.parametrize("line", ["", "{", "[]", '{"grade": "ok"}', '{"grade": "bad", "seen": "x"}', "a log line"])
def test_a_line_that_is_no_finding_is_none(line: str) -> None:
    """A program that was killed may leave half a line, and a library may print what it likes."""
    assert from_line(line) is None


def test_grades_are_in_order() -> None:
    """The worst one decides the exit code, and only two of them leave nothing to do."""
    assert ["ok", "note", "unknown", "warning", "problem"] == [str(grade) for grade in Grade]
    assert [True, True, False, False, False] == [grade.is_well for grade in Grade]
