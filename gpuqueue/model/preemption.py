"""Preemption rules: which priorities may preempt which. Without a setting there is no preemption. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gpuqueue.errors import BadRequest
from gpuqueue.model.job_spec import Priority
from gpuqueue.text.sanitize import brief

#: A job is preempted at most this often.
MOST = 5


def parse_preempt(text: str) -> dict[Priority, tuple[Priority, ...]]:
    """Return the priorities that each priority may preempt, from a text such as ``urgent: low normal; high: low``.

    Raises:
        BadRequest: the text is malformed, names an unknown priority, or names one that is not lower.

    """
    found: dict[Priority, tuple[Priority, ...]] = {}
    for each in filter(None, map(str.strip, text.split(";"))):
        word, colon, words = each.partition(":")
        if not colon or not words.split():
            raise BadRequest(f"{brief(each)} preempts nothing: write urgent: low normal")
        priority, lower = _priority(word), tuple(sorted({_priority(word) for word in words.split()}))
        if priority in found:
            raise BadRequest(f"{priority} is named twice: put all priorities that it may preempt behind one name")
        if lower[-1] >= priority:
            raise BadRequest(f"{priority} cannot preempt {lower[-1]}: only lower priorities")
        found[priority] = lower
    return found


def words_of(preempt: Mapping[Priority, Sequence[Priority]]) -> list[str]:
    """Return the arguments of ``preempt.lua``: each priority, and the digits of the priorities it may preempt."""
    digits = {priority: "".join(str(int(each)) for each in lower) for priority, lower in sorted(preempt.items())}
    return [word for priority, lower in digits.items() for word in (str(int(priority)), lower)]


def _priority(word: str) -> Priority:
    try:
        return Priority[word.strip().upper()]
    except KeyError:
        raise BadRequest(f"{brief(word.strip())} is no priority: choose from {', '.join(map(str, Priority))}") from None
