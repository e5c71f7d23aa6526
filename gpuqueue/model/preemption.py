"""Preemption rules: which priorities may preempt which. Without a setting there is no preemption. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gpuqueue.errors import BadRequest
from gpuqueue.model.job import Level
from gpuqueue.text.sanitize import brief

#: A job is preempted at most this often.
MOST = 5


def parse_preempt(text: str) -> dict[Level, tuple[Level, ...]]:
    """Return the priorities that each priority may preempt, from a text such as ``urgent: low normal; high: low``.

    Raises:
        BadRequest: the text is malformed, names an unknown priority, or names one that is not lower.

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
    """Return the arguments of ``preempt.lua``: each priority, and the digits of the priorities it may preempt."""
    digits = {level: "".join(str(int(each)) for each in lower) for level, lower in sorted(preempt.items())}
    return [word for level, lower in digits.items() for word in (str(int(level)), lower)]


def _level(word: str) -> Level:
    try:
        return Level[word.strip().upper()]
    except KeyError:
        raise BadRequest(f"{brief(word.strip())} is no priority: choose from {', '.join(map(str, Level))}") from None
