"""Patterns that name results of a job, in the syntax of ``.gitignore``.

They become regular expressions, because the process that reads the results may have the standard library only.
"""

from __future__ import annotations

from collections.abc import Sequence

from gpuqueue.errors import BadRequest
from gpuqueue.snapshot.ignore import rule_of
from gpuqueue.text.sanitize import brief

#: Most patterns of one request, and longest pattern, in characters.
MOST_PATTERNS = 32
LONGEST_PATTERN = 1024


def rules_of(patterns: Sequence[str]) -> tuple[tuple[str, bool], ...]:
    """Return for each pattern its regular expression, and whether it takes what it matches (``!`` does not).

    As in an ignore file, the last pattern that matches a path decides, and all that is below a matched directory
    belongs to it. :func:`gpuqueue.snapshot.ignore.rule_of` says what an expression is for.

    Raises:
        BadRequest: There are too many patterns, or one is too long or matches nothing.

    """
    if len(patterns) > MOST_PATTERNS:
        raise BadRequest(f"there are {len(patterns)} patterns: give at most {MOST_PATTERNS}")
    return tuple(_rule(each) for each in patterns)


def _rule(pattern: str) -> tuple[str, bool]:
    if len(pattern) > LONGEST_PATTERN:
        raise BadRequest(f"the pattern {brief(pattern)} is longer than {LONGEST_PATTERN} characters")
    found = rule_of(pattern)
    if found is None:
        raise BadRequest(f"the pattern {brief(pattern)} matches nothing: write it as in a .gitignore, such as out/*.pt")
    return found
