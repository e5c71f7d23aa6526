"""Puts what was learned into one line for the submitter. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuqueue.learning.rule import Learned, is_worth_less
from gpuqueue.learning.signature import Lesson
from gpuqueue.model.mem_source import Signature
from gpuqueue.text.sanitize import plain, short
from gpuqueue.text.units import format_bytes

if TYPE_CHECKING:
    from gpuqueue.learning.line import Line

#: What follows a number that no device can give.
NO_DEVICE = "no device that the job may use gives enough"
#: What follows the runs if a job asks for less than the largest peak at first.
FOR_MOST = "two thirds of them fit, and a job that does not runs again with twice as much"
#: What follows the runs of a program that took nothing of a device.
HELD_NONE = "held no device memory"


def suggestion(asked_bytes: int, lesson: Lesson, room_bytes: int | None = None) -> str | None:
    """Return where the history knows better than the request *asked_bytes*, or None.

    *room_bytes* is the most that a device of the job can give; None if it is unknown.
    """
    found, asked = lesson.learned, format_bytes(asked_bytes)
    would_do_bytes = found.mem_bytes if room_bytes is None else found.within(room_bytes)
    would_do = format_bytes(would_do_bytes)
    is_there = would_do_bytes > asked_bytes and (room_bytes is None or would_do_bytes <= room_bytes)
    if found.died_bytes is not None and asked_bytes <= found.died_bytes:
        had = format_bytes(found.died_bytes)
        advice = f": try {would_do}" if is_there else f", and {NO_DEVICE}"
        return f"asking {asked}, but a run{_which(lesson)} ran out of memory with {had}{advice}"
    if asked_bytes < max(found.high_bytes or 0, found.least_bytes or 0):
        advice = f"{would_do} would do" if is_there else f"and {NO_DEVICE}"
        return f"asking {asked}, but {_used(lesson)}: the job may die, {advice}"
    if lesson.advises_less and is_worth_less(asked_bytes, would_do_bytes):
        return f"{_peaked(lesson)}: {would_do} would do; asking {asked}"
    return None


def reason_for(mem_bytes: int, lesson: Lesson) -> str:
    """Return what the request *mem_bytes* follows from, with a remark if it has no room for the largest peak."""
    if mem_bytes >= (lesson.learned.high_bytes or 0):
        return reason(lesson)
    return f"{reason(lesson)}; {NO_DEVICE if lesson.learned.first_bytes is None else FOR_MOST}"


def reason(lesson: Lesson) -> str:
    """Return what a learned number follows from."""
    found = lesson.learned
    if found.died_bytes is not None:
        return f"a run{_which(lesson)} ran out of memory with {format_bytes(found.died_bytes)}"
    if found.high_bytes is None and found.capped_bytes is not None:
        return f"{_last(found.runs, lesson)} filled {format_bytes(found.capped_bytes)} and did not need more"
    return _used(lesson)


def _used(lesson: Lesson) -> str:
    """Return the runs and their peaks, or what they needed at least if that is more or if no peak is trusted."""
    found = lesson.learned
    if found.least_bytes is None or (found.high_bytes is not None and found.least_bytes <= found.high_bytes):
        return _peaked(lesson)
    if not found.least_bytes:
        return f"{_last(found.runs, lesson)} {HELD_NONE}"
    one = "" if found.runs == 1 else "one of "  # each of the others may have needed less
    return f"{one}{_last(found.runs, lesson)} needed at least {format_bytes(found.least_bytes)}"


def _peaked(lesson: Lesson) -> str:
    """Return the runs and their peaks: ``the last 12 runs peaked at 5.1G to 5.3G``."""
    found = lesson.learned
    if lesson.line is not None:
        return _on(lesson.line, found.peaks)
    runs = _last(found.peaks, lesson)
    return f"{runs} peaked at {_range(found)}" if found.high_bytes else f"{runs} {HELD_NONE}"


def _on(line: Line, runs: int) -> str:
    """Return what a line says: ``9 runs with batch-size 16 to 64 peaked at 1.2G + 40M x batch-size, 6.2G for 128``."""
    name = line.argument
    name = f"argument {int(name[1:]) + 1}" if name.startswith("#") else short(plain(name), 40)
    base = f"{format_bytes(line.base_bytes)} + " if line.base_bytes else ""
    formula = f"{base}{format_bytes(round(line.step_bytes))} x {name}"
    text = f"{runs} runs with {name} {line.low:g} to {line.high:g} peaked at {formula}"
    far = f", which is more than twice {line.high:g}" if line.is_far else ""
    return f"{text}, {format_bytes(line.predicted_bytes)} for {line.value:g}{far}"


def _range(found: Learned) -> str:
    low, high = format_bytes(found.low_bytes), format_bytes(found.high_bytes)
    return high if low == high else f"{low} to {high}"


def _last(runs: int, lesson: Lesson) -> str:
    return f"the last run{_which(lesson)}" if runs == 1 else f"the last {runs} runs{_which(lesson)}"


def _which(lesson: Lesson) -> str:
    such = " with such arguments"
    return {Signature.MOVING: such, Signature.LINE: such, Signature.SCRIPT: " with other arguments"}.get(
        lesson.signature, ""
    )
