from __future__ import annotations

import pytest

from gpuqueue.model.finding import (
    Finding,
    Findings,
    Grade,
    examined,
    note,
    ok,
    warning,
)


def high_tide(facts: int) -> Findings:
    """Return one finding."""
    return warning("the water is high", "move up") if facts else ok("dry")


def boats(facts: int) -> Findings:
    """Return one finding for each boat."""
    return (note(f"boat {number}", about=str(number)) for number in range(facts))


def sinks(facts: int) -> Findings:
    """Yield one finding, then fail with `ZeroDivisionError`."""
    yield ok("so far")
    yield ok(str(1 // (facts - facts)))


def test_a_finding_bears_the_name_of_its_check() -> None:
    """A finding has the name of its check, for the documentation and for programs."""
    found = list(examined("harbour", 2, (high_tide, boats)))

    assert [("harbour", "high tide", ""), ("harbour", "boats", "0"), ("harbour", "boats", "1")] == [
        (each.section, each.check, each.about) for each in found
    ]


def test_a_check_with_a_bug_is_unknown_and_harms_no_other() -> None:
    """A check that fails gives an unknown finding, and the next checks run. Doctor must work on a broken site."""
    broken, after = examined("harbour", 0, (sinks, high_tide))

    assert (Grade.UNKNOWN, Grade.OK) == (broken.grade, after.grade)
    assert "ZeroDivisionError" in broken.seen


def away(_: int) -> Findings:
    """Fail as a check does that cannot read its part of the site."""
    raise OSError("it is away")


def test_a_part_that_cannot_be_read_is_no_bug() -> None:
    """What the first check cannot read, the others cannot read either: the caller says why, once for the section."""
    with pytest.raises(OSError, match="it is away"):
        list(examined("harbour", 0, (away, high_tide)))

    assert [Grade.OK, Grade.UNKNOWN] == [each.grade for each in examined("harbour", 0, (high_tide, away))]


@pytest.mark.parametrize("grade", [Grade.WARNING, Grade.PROBLEM])
def test_what_is_bad_says_what_to_do(grade: Grade) -> None:
    """A warning or problem needs a remedy, so that the reader knows what to do."""
    with pytest.raises(ValueError, match="has no remedy"):
        Finding(grade=grade, seen="it burns")


def test_grades_are_in_order() -> None:
    """The grades are ordered. The worst grade decides the exit status, and only `ok` and `note` need no action."""
    assert ["ok", "note", "unknown", "warning", "problem"] == [str(grade) for grade in Grade]
    assert [True, True, False, False, False] == [grade.is_well for grade in Grade]
