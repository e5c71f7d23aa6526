"""Findings of ``gpuqueue doctor``: what a check saw, its grade, and a remedy. Pure.

A **check** is a function that reads what it needs, judges it and returns findings with remedies. The name of the
function is the name of the check. A check may hang, so that its section has a time limit.
:mod:`gpuqueue.doctor` and ``workers.doctor`` check different areas and both report in these types.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from enum import Enum
from typing import TypeVar

from gpuqueue.errors import GpuQueueError
from gpuqueue.lazy.frozen import dataclass

T = TypeVar("T")


class Grade(str, Enum):
    """Grades of a finding, from best to worst."""

    #: Works as intended.
    OK = "ok"
    #: Nothing is wrong, but the user should know it.
    NOTE = "note"
    #: The check was not possible.
    UNKNOWN = "unknown"
    #: It works, but will cause trouble later or under load.
    WARNING = "warning"
    #: Something does not work, or a guarantee does not hold.
    PROBLEM = "problem"

    def __str__(self) -> str:
        return self.value

    @property
    def is_well(self) -> bool:
        """Return whether no action is needed."""
        return self in {Grade.OK, Grade.NOTE}


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """One result of a check.

    ``section`` is the area of the check (such as ``store`` or ``host``), ``check`` is its name. ``about`` names the
    setting, device or other object that the finding concerns, and is empty if the check has only one. ``remedy`` is
    what to do next. ``fixable`` is whether ``gpuqueue doctor --fix`` can do it.
    """

    grade: Grade
    seen: str
    remedy: str = ""
    about: str = ""
    fixable: bool = False
    section: str = ""
    check: str = ""

    def __post_init__(self) -> None:
        if self.grade in {Grade.WARNING, Grade.PROBLEM} and not self.remedy:
            raise ValueError(f"{self.seen!r} is bad, and has no remedy")


#: The result of a check: one finding or several.
Findings = Finding | Iterable[Finding]
Check = Callable[[T], Findings]


def ok(seen: str, *, about: str = "") -> Finding:
    """Return a finding of the grade OK."""
    return Finding(grade=Grade.OK, seen=seen, about=about)


def note(seen: str, remedy: str = "", *, about: str = "") -> Finding:
    """Return a finding of the grade NOTE."""
    return Finding(grade=Grade.NOTE, seen=seen, remedy=remedy, about=about)


def unknown(seen: str, remedy: str = "", *, about: str = "") -> Finding:
    """Return a finding of the grade UNKNOWN."""
    return Finding(grade=Grade.UNKNOWN, seen=seen, remedy=remedy, about=about)


def warning(seen: str, remedy: str, *, about: str = "", fixable: bool = False) -> Finding:
    """Return a finding of the grade WARNING."""
    return Finding(grade=Grade.WARNING, seen=seen, remedy=remedy, about=about, fixable=fixable)


def problem(seen: str, remedy: str, *, about: str = "", fixable: bool = False) -> Finding:
    """Return a finding of the grade PROBLEM."""
    return Finding(grade=Grade.PROBLEM, seen=seen, remedy=remedy, about=about, fixable=fixable)


def examined(section: str, subject: T, checks: Sequence[Check[T]]) -> Iterator[Finding]:
    """Run *checks* on *subject* and yield their findings. A check that raises becomes a finding of its own.

    Raises:
        OSError, GpuQueueError: the first check cannot read its part of the site, so that none of them can.

    """
    for check in checks:
        name = name_of(check)
        try:
            found = check(subject)
            for finding in [found] if isinstance(found, Finding) else list(found):
                yield replace(finding, section=section, check=name)
        except Exception as error:  # a bug in one check must not stop the others
            if check is checks[0] and isinstance(error, (OSError, GpuQueueError)):
                raise
            seen = f"this check failed itself: {type(error).__name__}: {error}"
            yield replace(unknown(seen, "please report it, with this line"), section=section, check=name)


def name_of(check: Callable[..., object]) -> str:
    """Return the display name of a check."""
    return check.__name__.replace("_", " ")
