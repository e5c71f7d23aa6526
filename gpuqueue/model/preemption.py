"""Which level may take the place of which. Nothing may, unless a site says so. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gpuqueue.errors import BadRequest
from gpuqueue.model.job import Level
from gpuqueue.text.sanitize import brief

#: So often a job makes place for others; then it is left alone.
MOST = 5


def parse_preempt(text: str) -> dict[Level, tuple[Level, ...]]:
    """Return what ``urgent: low normal; high: low`` means: which levels each level may take the place of.

    Raises:
        BadRequest: there is no such level, or it is not lower.

    """
    found: dict[Level, tuple[Level, ...]] = {}
    for each in filter(None, map(str.strip, text.split(";"))):
        word, colon, words = each.partition(":")
        if not colon or not words.split():
            raise BadRequest(f"{brief(each)} preempts nothing: write urgent: low normal")
        level, lower = _level(word), tuple(sorted({_level(word) for word in words.split()}))
        if level in found:
            raise BadRequest(f"{level} is named twice: put all levels that it may preempt behind one name")
        if lower[-1] >= level:
            raise BadRequest(f"{level} cannot preempt {lower[-1]}: only lower levels")
        found[level] = lower
    return found


def words_of(preempt: Mapping[Level, Sequence[Level]]) -> list[str]:
    """Return what ``preempt.lua`` is told of it: each level, and the digits of those that it may preempt."""
    digits = {level: "".join(str(int(each)) for each in lower) for level, lower in sorted(preempt.items())}
    return [word for level, lower in digits.items() for word in (str(int(level)), lower)]


def _level(word: str) -> Level:
    try:
        return Level[word.strip().upper()]
    except KeyError:
        raise BadRequest(f"{brief(word.strip())} is no level: choose from {', '.join(map(str, Level))}") from None
