"""Names by a pattern, as a shell and :mod:`fnmatch` read it: ``*``, ``?``, ``[abc]``, ``[!abc]``; by case."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import sqlalchemy as sa

#: A set, or a sign for one or any number of others, or any other sign. A bracket that is never closed is itself.
_PIECE = re.compile(r"\[(?P<no>!?)(?P<set>\]?[^\]]*)\]|(?P<sign>.)", re.DOTALL)
_WILD = frozenset("*?[")
#: What means something within a set of a regular expression.
_SPECIAL = re.compile(r"([]\[\\^])")


def is_pattern(text: str) -> bool:
    """Return whether *text* may mean more than itself."""
    return not _WILD.isdisjoint(text)


def matching(connection: sa.Connection, column: sa.Column[Any], pattern: str) -> sa.ColumnElement[bool]:
    """Return that *column* is *pattern* itself, or like it."""
    like: sa.ColumnElement[bool]
    if connection.dialect.name == "sqlite":
        like = column.op("GLOB", is_comparison=True)("".join(_as_glob(pattern)))
    else:
        like = column.regexp_match(f"^{''.join(_as_regex(pattern))}$")
    return sa.or_(column == pattern, like)


def _as_glob(pattern: str) -> Iterator[str]:
    """Yield *pattern* as SQLite has it, where a set that is not meant begins with ``^``."""
    for piece in _PIECE.finditer(pattern):
        sign, members = piece["sign"], piece["set"]
        if sign is None:
            yield f"[{'^' if piece['no'] else ''}{_without_caret(members) if not piece['no'] else members}]"
        else:
            yield "[[]" if sign == "[" else sign


def _without_caret(members: str) -> str:
    """Return *members* with a ``^`` that stands first elsewhere: there it would turn the set into its opposite."""
    return members[1:] + "^" if members.startswith("^") and len(members) > 1 else members


def _as_regex(pattern: str) -> Iterator[str]:
    """Yield *pattern* as PostgreSQL has it."""
    for piece in _PIECE.finditer(pattern):
        sign, members = piece["sign"], piece["set"]
        if sign is None:
            meant = _SPECIAL.sub(r"\\\1", members)
            yield f"[{'^' if piece['no'] else ''}{meant}]"
        else:
            yield {"*": ".*", "?": "."}.get(sign) or re.escape(sign)
