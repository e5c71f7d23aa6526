"""Name patterns as in a shell and :mod:`fnmatch`: ``*``, ``?``, ``[abc]``, ``[!abc]``. Case matters."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import sqlalchemy as sa

#: A set, or any other single character. A bracket that is never closed stands for itself.
_PIECE = re.compile(r"\[(?P<no>!?)(?P<set>\]?[^\]]*)\]|(?P<sign>.)", re.DOTALL)
_WILD = frozenset("*?[")
#: Characters with a special meaning within a set of a regular expression.
_SPECIAL = re.compile(r"([]\[\\^])")


def is_pattern(text: str) -> bool:
    """Return whether *text* contains pattern characters."""
    return not _WILD.isdisjoint(text)


def matching(connection: sa.Connection, column: sa.Column[Any], pattern: str) -> sa.ColumnElement[bool]:
    """Return the condition that *column* equals *pattern* or matches it."""
    like: sa.ColumnElement[bool]
    if connection.dialect.name == "sqlite":
        like = column.op("GLOB", is_comparison=True)("".join(_as_glob(pattern)))
    else:
        like = column.regexp_match(f"^{''.join(_as_regex(pattern))}$")
    return sa.or_(column == pattern, like)


def _as_glob(pattern: str) -> Iterator[str]:
    """Yield *pattern* in the syntax of SQLite's GLOB, where a negated set begins with ``^``."""
    for piece in _PIECE.finditer(pattern):
        sign, members = piece["sign"], piece["set"]
        if sign is None:
            yield f"[{'^' if piece['no'] else ''}{_without_caret(members) if not piece['no'] else members}]"
        else:
            yield "[[]" if sign == "[" else sign


def _without_caret(members: str) -> str:
    """Return *members* with a leading ``^`` moved to the end: at the start it would negate the set."""
    return members[1:] + "^" if members.startswith("^") and len(members) > 1 else members


def _as_regex(pattern: str) -> Iterator[str]:
    """Yield *pattern* as a regular expression of PostgreSQL."""
    for piece in _PIECE.finditer(pattern):
        sign, members = piece["sign"], piece["set"]
        if sign is None:
            meant = _SPECIAL.sub(r"\\\1", members)
            yield f"[{'^' if piece['no'] else ''}{meant}]"
        else:
            yield {"*": ".*", "?": "."}.get(sign) or re.escape(sign)
