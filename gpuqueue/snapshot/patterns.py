"""Patterns that name results of a job, in the syntax of ``.gitignore``.

They become regular expressions, because the process that reads the results may have the standard library only.
"""

from __future__ import annotations

from collections.abc import Sequence

from gpuqueue.errors import BadRequest
from gpuqueue.model.file_patterns import file_patterns
from gpuqueue.snapshot.ignore import rule_of
from gpuqueue.text.sanitize import brief


def rules_of(patterns: Sequence[str]) -> tuple[tuple[str, bool], ...]:
    """Return for each pattern its regular expression, and whether it takes what it matches (``!`` does not).

    As in an ignore file, the last pattern that matches a path decides, and all that is below a matched directory
    belongs to it. :func:`gpuqueue.snapshot.ignore.rule_of` says what an expression is for.

    Raises:
        BadRequest: There are too many patterns, or one is too long or matches nothing.

    """
    return tuple(_rule(each) for each in file_patterns("the list of patterns", patterns))


def _rule(pattern: str) -> tuple[str, bool]:
    found = rule_of(pattern)
    if found is None:
        raise BadRequest(f"the pattern {brief(pattern)} matches nothing: write it as in a .gitignore, such as out/*.pt")
    return found
