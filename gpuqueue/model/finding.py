"""What an examination finds: what was seen, how good that is, and what to do about it. Pure.

A **check** is a function that is given facts and returns findings; its name is the finding's. Checks look at nothing
themselves, so that none of them can hang; and one that fails takes no other with it. The two sides of the house
examine different rooms (:mod:`gpuqueue.doctor` and ``workers.doctor``) in these same words.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from enum import Enum
from typing import TypeVar

from gpuqueue.lazy.frozen import dataclass

T = TypeVar("T")


class Grade(str, Enum):
    """How good it is, from best to worst."""

    #: As it should be.
    OK = "ok"
    #: Nothing is wrong, but one should know it.
    NOTE = "note"
    #: It could not be looked at: neither good nor bad.
    UNKNOWN = "unknown"
    #: It works, and will hurt one day or under load.
    WARNING = "warning"
    #: Something does not work, or a promise does not hold.
    PROBLEM = "problem"

    def __str__(self) -> str:
        return self.value

    @property
    def is_well(self) -> bool:
        """Return whether nobody has to do anything."""
        return self in {Grade.OK, Grade.NOTE}


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """One thing that was looked at.

    ``room`` and ``check`` say which check of which room found it; ``about`` names the one thing of several that it
    is about, such as a setting or a device, and is empty otherwise. ``remedy`` is what to do next. ``fixable`` is
    whether ``gpuqueue doctor --fix`` would do it.
    """

    grade: Grade
    seen: str
    remedy: str = ""
    about: str = ""
    fixable: bool = False
    room: str = ""
    check: str = ""

    def __post_init__(self) -> None:
        if self.grade in {Grade.WARNING, Grade.PROBLEM} and not self.remedy:
            raise ValueError(f"{self.seen!r} is bad, and nobody says what to do")


#: What a check gives: one finding or several.
Findings = Finding | Iterable[Finding]
Check = Callable[[T], Findings]


def ok(seen: str, *, about: str = "") -> Finding:
    """Return that it is as it should be."""
    return Finding(grade=Grade.OK, seen=seen, about=about)


def note(seen: str, remedy: str = "", *, about: str = "") -> Finding:
    """Return that nothing is wrong, but one should know it."""
    return Finding(grade=Grade.NOTE, seen=seen, remedy=remedy, about=about)


def unknown(seen: str, remedy: str = "", *, about: str = "") -> Finding:
    """Return that it could not be looked at."""
    return Finding(grade=Grade.UNKNOWN, seen=seen, remedy=remedy, about=about)


def warning(seen: str, remedy: str, *, about: str = "", fixable: bool = False) -> Finding:
    """Return that it works, and will hurt one day or under load."""
    return Finding(grade=Grade.WARNING, seen=seen, remedy=remedy, about=about, fixable=fixable)


def problem(seen: str, remedy: str, *, about: str = "", fixable: bool = False) -> Finding:
    """Return that something does not work, or that a promise does not hold."""
    return Finding(grade=Grade.PROBLEM, seen=seen, remedy=remedy, about=about, fixable=fixable)


def examined(room: str, facts: T, checks: Iterable[Check[T]]) -> Iterator[Finding]:
    """Yield what each of *checks* finds in *facts*. A check that fails is a finding itself, and harms no other."""
    for check in checks:
        name = name_of(check)
        try:
            found = check(facts)
            for finding in [found] if isinstance(found, Finding) else list(found):
                yield replace(finding, room=room, check=name)
        except Exception as error:  # noqa: BLE001 - of whatever kind: who examines must say all that can be said
            seen = f"this check failed itself: {type(error).__name__}: {error}"
            yield replace(unknown(seen, "please report it, with this line"), room=room, check=name)


def name_of(check: Callable[..., object]) -> str:
    """Return what a check is called, in words that a person reads."""
    return check.__name__.replace("_", " ")


def to_plain(finding: Finding) -> dict[str, object]:
    """Return *finding* as JSON knows it, in the order that docs/reference/json.md describes."""
    return {
        "room": finding.room,
        "check": finding.check,
        "about": finding.about or None,
        "grade": finding.grade.value,
        "seen": finding.seen,
        "remedy": finding.remedy or None,
        "fixable": finding.fixable,
    }


def from_line(line: str) -> Finding | None:
    """Return the finding that one line of JSON holds, or None if it holds none: a writer may have been killed."""
    try:
        plain = json.loads(line)
        return Finding(
            grade=Grade(plain["grade"]),
            seen=plain["seen"],
            remedy=plain["remedy"] or "",
            about=plain["about"] or "",
            fixable=plain["fixable"],
            room=plain["room"],
            check=plain["check"],
        )
    except (ValueError, KeyError, TypeError):
        return None
