"""Puts what was learned into one line for the submitter. Pure."""

from __future__ import annotations

from gpuqueue.learning.rule import SEVERAL, Learned
from gpuqueue.learning.signature import Lesson
from gpuqueue.model.mem_source import Signature
from gpuqueue.text.units import GIB, format_bytes

#: A smaller request is suggested if it saves this share of it and this many bytes: less is not worth a line.
WORTH_FACTOR, WORTH_BYTES = 1.25, GIB // 2


def suggestion(asked_bytes: int, lesson: Lesson) -> str | None:
    """Return where the history knows better than the request *asked_bytes*, or None."""
    found, asked = lesson.learned, format_bytes(asked_bytes)
    would_do = format_bytes(found.mem_bytes)
    if found.died_bytes is not None and asked_bytes <= found.died_bytes:
        had = format_bytes(found.died_bytes)
        if found.mem_bytes <= asked_bytes:
            return f"asking {asked}, but a run{_which(lesson)} ran out of memory with {had}: its device gives no more"
        return f"asking {asked}, but a run{_which(lesson)} ran out of memory with {had}: try {would_do}"
    if found.high_bytes is not None and asked_bytes < found.high_bytes:
        return f"asking {asked}, but {_peaked(lesson)}: the job may die, {would_do} would do"
    is_large = asked_bytes >= WORTH_FACTOR * found.mem_bytes and asked_bytes - found.mem_bytes >= WORTH_BYTES
    if is_large and found.peaks >= SEVERAL:
        return f"{_peaked(lesson)}: {would_do} would do; asking {asked}"
    return None


def reason(lesson: Lesson) -> str:
    """Return what a learned number follows from."""
    found = lesson.learned
    if found.died_bytes is not None:
        return f"a run{_which(lesson)} ran out of memory with {format_bytes(found.died_bytes)}"
    if found.high_bytes is not None:
        return _peaked(lesson)
    if found.capped_bytes is not None:
        return f"{_last(found.runs, lesson)} filled {format_bytes(found.capped_bytes)} and did not need more"
    return f"{_last(found.runs, lesson)} could not be measured well"


def _peaked(lesson: Lesson) -> str:
    """Return the runs and their peaks: ``the last 12 runs peaked at 5.1G to 5.3G``."""
    found = lesson.learned
    return f"{_last(found.peaks, lesson)} peaked at {_range(found)}"


def _range(found: Learned) -> str:
    low, high = format_bytes(found.low_bytes), format_bytes(found.high_bytes)
    return high if low == high else f"{low} to {high}"


def _last(runs: int, lesson: Lesson) -> str:
    return f"the last run{_which(lesson)}" if runs == 1 else f"the last {runs} runs{_which(lesson)}"


def _which(lesson: Lesson) -> str:
    return {Signature.MOVING: " with such arguments", Signature.SCRIPT: " with other arguments"}.get(
        lesson.signature, ""
    )
