"""Findings of the doctor's checks, for tests."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

from gpuqueue.model.finding import Check, Finding, examined

T = TypeVar("T")


def findings(checks: Sequence[Check[T]], subject: T) -> list[Finding]:
    """Return the findings of *checks* about *subject*."""
    return list(examined("tested", subject, checks))


def the(found: Iterable[Finding], check: str, about: str = "") -> Finding:
    """Return the only finding of a check about one thing."""
    (finding,) = [each for each in found if (each.check, each.about) == (check, about)]
    return finding


def by_check(checks: Sequence[Check[T]], subject: T) -> Mapping[str, Finding]:
    """Return the finding of each check about *subject*, of which a check has one at most."""
    return {each.check: each for each in findings(checks, subject)}
